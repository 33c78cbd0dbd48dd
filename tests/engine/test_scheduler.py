"""Any order of arrivals, ends, aborts, closes and swaps keeps the scheduler's invariants."""

import random

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from etude.engine.builtin import scheduler as scheduler_module
from etude.engine.builtin.scheduler import WORTH_A_STEP, Aborted, Scheduler
from etude.engine.protocol import GenerateRequest, Sampling

SLOTS, CACHE_SLOTS, CONTEXT = 4, 3, 48
START = list(range(10, 28))
"""What all prompts begin with: enough to be worth waiting for."""


def request(name, prompt, conversation=""):
    return GenerateRequest(name, np.asarray(prompt, np.int32), Sampling(8, ()), conversation)


def common(one, other):
    """Tokens that two prompts begin with."""
    width = min(one.prompt.size, other.prompt.size)
    different = one.prompt[:width] != other.prompt[:width]
    return int(different.argmax()) if different.any() else width


class Simulated:
    """Carries out admissions as the engine does, on a cache whose latents say what they are made of."""

    def __init__(self, scheduler, lookahead, policy="reset"):
        self.scheduler = scheduler
        self.lookahead = lookahead
        self.policy = policy
        self.began = {}
        """The epoch in which the first request of each conversation arrived."""
        self.latents = [[None] * CONTEXT for _ in range(scheduler.rows)]
        self.epoch = 0
        self.prefilled = 0

    def carry_out(self, admissions):
        for a in admissions:
            if a.source != a.row:
                self.latents[a.row][: a.reused] = self.latents[a.source][: a.reused]
        for a in admissions:
            prompt = a.request.prompt.tolist()
            for i in range(a.reused, len(prompt) - 1):
                self.latents[a.row][i] = (tuple(prompt[: i + 1 + self.lookahead]), self.epoch)
                self.prefilled += 1
        for a in admissions:
            prompt = a.request.prompt.tolist()
            latents = self.latents[a.row][: len(prompt) - 1]
            expected = [tuple(prompt[: i + 1 + self.lookahead]) for i in range(len(prompt) - 1)]
            assert [tokens for tokens, _ in latents] == expected, "a foreign latent was taken over"
            epochs = [epoch for _, epoch in latents]
            assert min(epochs, default=self.epoch) >= self.oldest_allowed(a.request), "a stale latent was taken over"
            assert a.oldest == min(epochs[: a.reused], default=-1)

    def oldest_allowed(self, request):
        if self.policy == "keep":
            return 0
        known = self.began.setdefault(request.conversation, self.epoch) if request.conversation else self.epoch
        return known if self.policy == "salt" else self.epoch

    def end(self, request, row, sampled):
        tokens = request.prompt.tolist() + sampled
        for i in range(len(request.prompt) - 1, len(tokens) - 1):
            # Written under whatever weights there were; under "reset" a row that saw a swap never matches again.
            self.latents[row][i] = (tuple(tokens[: i + 1 + self.lookahead]), self.epoch)
        self.scheduler.finish(request.id, np.asarray(sampled, np.int32))


class AnyOrder(RuleBasedStateMachine):
    lookahead = 1

    def __init__(self):
        super().__init__()
        self.waiting, self.running, self.histories = [], {}, {}
        self.count = 0

    @initialize(policy=st.sampled_from(["reset", "salt", "keep"]))
    def start(self, policy):
        options = {"lookahead": self.lookahead, "cache_at_swap": policy}
        self.scheduler = Scheduler(slots=SLOTS, cache_slots=CACHE_SLOTS, context=CONTEXT, **options)
        self.cache = Simulated(self.scheduler, self.lookahead, policy)

    @rule(conversation=st.integers(0, 6), tail=st.lists(st.integers(0, 1), min_size=1, max_size=4), go_on=st.booleans())
    def arrive(self, conversation, tail, go_on):
        name = f"c{conversation}" if conversation < 6 else ""
        self.cache.began.setdefault(name, self.cache.epoch)
        start = self.histories.get(name, []) if go_on else []
        prompt = [*(start or START), *tail][: CONTEXT - 9]
        self.count += 1
        arrived = request(f"r{self.count}", prompt, name)
        self.scheduler.submit(arrived)
        self.waiting.append(arrived)

    @rule()
    def step(self):
        offered = self.waiting[: SLOTS - len(self.running)]
        admissions = self.scheduler.admit()
        begun = [a.request for a in admissions]
        assert begun[:1] == offered[:1], "whenever a row is free, the first that waits begins"
        assert begun == [r for r in offered if r in begun], "requests begin in the order of their arrival"
        passed = [r for r in offered if r not in begun]
        for waits in passed:
            assert any(common(waits, r) >= WORTH_A_STEP for r in begun), "it waits though nobody computes its prompt"
        self.waiting = passed + self.waiting[len(offered) :]
        for a in admissions:
            assert a.row not in self.running.values(), "a row serves one request at a time"
            self.running[a.request.id] = a.row
            self.histories.setdefault(a.request.id, a.request.prompt.tolist())
        self.cache.carry_out(admissions)
        self.requests = {**getattr(self, "requests", {}), **{a.request.id: a.request for a in admissions}}

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 99), sampled=st.lists(st.integers(0, 1), max_size=8))
    def end(self, pick, sampled):
        name = sorted(self.running)[pick % len(self.running)]
        row, ended = self.running.pop(name), self.requests[name]
        self.histories[ended.conversation] = ended.prompt.tolist() + sampled
        self.cache.end(ended, row, sampled)

    @rule(pick=st.integers(0, 99))
    def abort(self, pick):
        names = sorted(self.running) + [r.id for r in self.waiting]
        assert self.scheduler.abort("nobody") is Aborted.UNKNOWN
        if not names:
            return
        name = names[pick % len(names)]
        state = self.scheduler.abort(name)
        assert state is (Aborted.RUNNING if name in self.running else Aborted.REMOVED)
        if state is Aborted.RUNNING:
            self.cache.end(self.requests[name], self.running.pop(name), [])
        self.waiting = [r for r in self.waiting if r.id != name]

    @rule()
    def swap(self):
        self.cache.epoch += 1
        self.scheduler.swapped(self.cache.epoch)

    @rule(conversation=st.integers(0, 5))
    def close(self, conversation):
        assert self.scheduler.close(f"c{conversation}") is None
        self.cache.began.pop(f"c{conversation}", None)

    @invariant()
    def counts(self):
        assert self.scheduler.running == len(self.running) <= SLOTS
        assert self.scheduler.waiting == len(self.waiting)
        assert len(self.scheduler._cached) <= CACHE_SLOTS
        assert {name: self.scheduler.row(name) for name in self.running} == self.running


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=35, stateful_step_count=40, deadline=None)


def scheduler_and_cache(**options):
    scheduler = Scheduler(**{"slots": 8, "cache_slots": 8, "context": CONTEXT, "lookahead": 1, **options})
    return scheduler, Simulated(scheduler, 1)


def test_a_group_prefills_its_prompt_once():
    scheduler, cache = scheduler_and_cache(context=64)
    cache.latents = [[None] * 64 for _ in range(scheduler.rows)]
    prompt = list(range(40))
    for member in range(8):
        scheduler.submit(request(f"m{member}", prompt, f"c{member}"))
    (first,) = scheduler.admit()
    cache.carry_out([first])
    scheduler.submit(request("other", [50, 51], "c"))
    others = scheduler.admit()
    assert [a.request.id for a in others] == [f"m{member}" for member in range(1, 8)]
    cache.carry_out(others)
    # A draft head reads the token after: the last token that is shared is computed by everyone.
    assert cache.prefilled == len(prompt) - 1
    assert {a.source for a in others} == {first.row}


def test_who_waits_for_a_prompt_lets_others_pass_and_keeps_his_row():
    scheduler, cache = scheduler_and_cache(slots=4, context=64)
    cache.latents = [[None] * 64 for _ in range(scheduler.rows)]
    for name, prompt in (("a", range(40)), ("b", range(40)), ("c", [50]), ("d", range(40)), ("e", [51])):
        scheduler.submit(request(name, list(prompt), name))
    steps = []
    for _ in range(3):
        admissions = scheduler.admit()
        cache.carry_out(admissions)
        steps.append([a.request.id for a in admissions])
    assert steps == [["a", "c"], ["b", "d"], []]
    assert scheduler.waiting == 1


def test_one_who_waited_begins_even_if_what_he_waited_for_is_gone():
    scheduler, _ = scheduler_and_cache(context=64)
    for name in "ab":
        scheduler.submit(request(name, range(40), name))
    (first,) = scheduler.admit()
    scheduler.discard(first.request.id)
    (second,) = scheduler.admit()
    assert (second.request.id, second.reused) == ("b", 0)


def test_a_step_reads_a_bounded_number_of_prompt_tokens_but_at_least_one_prompt(monkeypatch):
    monkeypatch.setattr(scheduler_module, "TOKENS_AT_ONCE", 30)
    scheduler, _ = scheduler_and_cache(context=64)
    for number, length in enumerate((40, 20, 10, 10)):
        scheduler.submit(request(f"r{number}", [number] * length))
    begun = [[a.request.id for a in scheduler.admit()] for _ in range(3)]
    assert begun == [["r0"], ["r1", "r2"], ["r3"]]


def test_a_conversation_goes_on_in_its_own_row_and_a_swap_ends_that():
    scheduler, cache = scheduler_and_cache()
    scheduler.submit(request("a", [1, 2, 3], "c"))
    (first,) = scheduler.admit()
    cache.carry_out([first])
    cache.end(first.request, first.row, [4, 5])
    scheduler.submit(request("b", [1, 2, 3, 4, 5, 6, 7], "c"))
    (second,) = scheduler.admit()
    assert (second.row, second.source, second.reused) == (first.row, first.row, 4)
    cache.carry_out([second])
    scheduler.swapped(1)
    scheduler.submit(request("d", [1, 2, 3, 4, 5, 6, 7, 8], "other"))
    (third,) = scheduler.admit()
    assert third.reused == 0, "what an in-flight row holds is of older weights"
    cache.end(second.request, second.row, [8])
    assert not scheduler._cached, "a row that saw a swap is not kept"


def test_no_cache_slots_keep_nothing():
    scheduler, cache = scheduler_and_cache(cache_slots=0)
    scheduler.submit(request("a", [1, 2, 3], "c"))
    (first,) = scheduler.admit()
    cache.carry_out([first])
    cache.end(first.request, first.row, [4])
    assert not scheduler._cached


def lockstep_run(order: random.Random, conversations: int, turns: int):
    """Drives a lockstep scheduler with arrivals in a random order and returns everything that it decided."""
    scheduler = Scheduler(slots=3, cache_slots=4, context=64, lookahead=1, lockstep=True)
    names = [f"c{i}" for i in range(conversations)]
    scheduler.open(order.sample(names, len(names)))
    prompts = {
        name: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, i % 3] for i, name in enumerate(names)
    }
    turn = dict.fromkeys(names, 0)
    to_send = list(names)
    decided, running, steps = [], {}, 0
    while to_send or running or scheduler.busy:
        # Something arrives, or a step is made: which, chance decides.
        if to_send and (order.random() < 0.5 or not scheduler.busy):
            name = to_send.pop(order.randrange(len(to_send)))
            if turn[name] == turns - names.index(name) % 2:
                scheduler.close(name)
            else:
                scheduler.submit(request(f"{name}/{turn[name]}", prompts[name], name))
            continue
        for a in scheduler.admit():
            decided.append((steps, a.request.id, a.row, a.source, a.reused))
            running[a.request.id] = (a.request, 1 + len(a.request.id) * (turn[a.request.conversation] + 1) % 4)
        steps += 1
        for request_id, (ended, left) in list(running.items()):
            running[request_id] = (ended, left - 1)
            if left == 1:
                del running[request_id]
                sampled = [turn[ended.conversation], 5]
                scheduler.finish(request_id, np.asarray(sampled, np.int32))
                prompts[ended.conversation] += [*sampled, 3]
                turn[ended.conversation] += 1
                to_send.append(ended.conversation)
    return decided


def test_lockstep_decides_the_same_whatever_the_order_of_arrival():
    runs = [lockstep_run(random.Random(seed), conversations=7, turns=4) for seed in range(8)]
    assert len(runs[0]) > 7 * 3
    assert all(run == runs[0] for run in runs)
