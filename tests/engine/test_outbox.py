"""Any order of begins, tokens, ends, pulls, lost deliveries and repeated calls keeps the outbox's invariants."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from etude.engine.outbox import SILENT_SECONDS, Outbox
from etude.engine.protocol import EngineError, Generation, Piece, StopReason, StreamsLost

WHO = st.sampled_from(["a", "b"])


def ids(tokens):
    return np.asarray(tokens, np.int32)


class AnyOrder(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.outbox, self.now, self.count = Outbox(), 0.0, 0
        self.consumer = {}  # of every request in flight
        self.sampled, self.received, self.answered = {}, {}, set()
        self.after = {"a": 0, "b": 0}
        self.known = set()
        self.unseen = {"a": None, "b": None}

    @rule(who=WHO, again=st.booleans())
    def begin(self, who, again):
        mine = [name for name, holder in self.consumer.items() if holder == who]
        if again and mine:
            assert not self.outbox.begin(who, mine[0], self.now, first=False)
            return
        name = f"r{self.count}"
        self.count += 1
        if who not in self.known:
            with pytest.raises(StreamsLost):
                self.outbox.begin(who, name, self.now, first=False)
        assert self.outbox.begin(who, name, self.now, first=who not in self.known)
        self.known.add(who)
        self.consumer[name], self.sampled[name], self.received[name] = who, [], []
        with pytest.raises(EngineError, match="another consumer"):
            self.outbox.begin("ba"[who == "b"], name, self.now, first=True)

    @precondition(lambda self: self.consumer)
    @rule(tokens=st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=3))
    def step(self, tokens):
        """Every request in flight samples some tokens."""
        for number, name in enumerate(self.consumer):
            new = tokens[number % len(tokens)]
            assert self.outbox.count(name) == len(self.sampled[name])
            assert (name in self.outbox.unheard()) == (not self.sampled[name])
            first = not self.sampled[name] and new
            self.outbox.put(name, ids(new), ids(new).astype(np.float32), ids(new))
            self.sampled[name] += new
            if first:
                assert self.outbox.urgent(self.consumer[name], self.after[self.consumer[name]])

    @precondition(lambda self: self.consumer)
    @rule(pick=st.integers(0, 99), rest=st.lists(st.integers(0, 9), max_size=2))
    def end(self, pick, rest):
        name = sorted(self.consumer)[pick % len(self.consumer)]
        who = self.consumer.pop(name)
        self.sampled[name] += rest
        tokens = ids(self.sampled[name])
        nothing = tokens.astype(np.float32)
        self.outbox.end(Generation(name, tokens, nothing, tokens, StopReason.STOP, None))
        assert not self.outbox.holds(name)
        assert self.outbox.urgent(who, self.after[who])
        assert not self.outbox.begin(who, name, self.now, first=False), "a repeated call does not begin it anew"

    @rule(who=WHO, lost=st.booleans(), everything=st.booleans())
    def pull(self, who, lost, everything):
        if who not in self.known:
            with pytest.raises(StreamsLost):
                self.outbox.take(who, 0, self.now, everything=everything)
            return
        self.now += 1
        delivery = self.outbox.take(who, self.after[who], self.now, everything=everything)
        if self.unseen[who] is not None:
            assert delivery is self.unseen[who], "what was lost comes again"
        if lost and delivery.items:
            self.unseen[who] = delivery
            assert self.outbox.urgent(who, self.after[who])
            return
        if self.unseen[who] is None:
            pieces = [item for item in delivery.items if isinstance(item, Piece)]
            assert everything or all(piece.start == 0 for piece in pieces)
            assert (self.outbox.due(who) == self.now) == (everything and bool(delivery.items))
        self.unseen[who] = None
        assert delivery.number == self.after[who] + bool(delivery.items)
        self.after[who] = delivery.number
        for item in delivery.items:
            assert item.id not in self.answered, "nothing comes after the answer"
            if isinstance(item, Piece):
                assert item.start == len(self.received[item.id])
                self.received[item.id] += item.tokens.tolist()
            else:
                assert item.tokens[: len(self.received[item.id])].tolist() == self.received[item.id]
                assert item.tokens.tolist() == self.sampled[item.id]
                self.answered.add(item.id)
        names = [item.id for item in delivery.items if isinstance(item, Piece)]
        assert len(names) == len(set(names)), "at most one piece of each request"
        assert self.answered.isdisjoint(names), "an answer holds what waited"
        with pytest.raises(StreamsLost):
            self.outbox.take(who, delivery.number + 1, self.now, everything=everything)

    @rule(who=WHO)
    def everything_arrives(self, who):
        """Once everything was pulled, all that was put was received."""
        for _ in range(2):
            self.pull(who, False, True)
        for name, holder in self.consumer.items():
            if holder == who:
                assert self.received[name] == self.sampled[name]

    @precondition(lambda self: self.known)
    @rule(pulling=st.integers(0, 4))
    def silence(self, pulling):
        self.now += SILENT_SECONDS + 1
        if pulling:  # more often, since the other way ends everything
            assert self.outbox.silent(self.now, self.known) == []
            for who in self.known:
                self.pull(who, False, True)
            return
        assert set(self.outbox.silent(self.now)) == self.known
        for who in list(self.known):
            mine = sorted(name for name, holder in self.consumer.items() if holder == who)
            assert self.outbox.forget(who) == mine
            for name in mine:
                del self.consumer[name]
                assert not self.outbox.holds(name)
            self.known.discard(who)
            self.after[who], self.unseen[who] = 0, None


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
