"""Compare trainer and engine on the same weights: log-probs of the same tokens, and the experts each token was routed
to.

The engine is exercised in three ways, from its bare network to the whole engine: sequences fed to the network in
chunks, sequences fed token by token, and continuations that the engine samples itself, many at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from etude.engine.builtin import BuiltinEngine
from etude.engine.protocol import GenerateRequest, Generation, Sampling
from etude.model import Cache, Transformer
from etude.model.drift import Magnitudes, Pass, flips
from etude.rl.measure import k3

CHUNK = 64
"""Number of prompt tokens fed to the network per step."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probs of a sequence's tokens, and the experts that the network used to predict each token."""

    logprobs_t: Tensor
    experts_tlk: Tensor

    @classmethod
    def by(cls, logits_tv: Tensor, experts_tlk: Tensor, next_t: Tensor) -> Self:
        """Score the tokens `next_t`. Row t of `logits_tv` predicts token t; surplus rows are ignored."""
        logs_tv = torch.log_softmax(logits_tv[: len(next_t)], dim=-1)
        return cls(logs_tv.gather(1, next_t.unsqueeze(1)).squeeze(1), experts_tlk[: len(next_t)])


@dataclass(frozen=True, slots=True)
class Agreement:
    tokens: int
    logprobs: Magnitudes
    """Absolute difference of trainer and engine log-probs, over all tokens."""
    k3: float
    flips: list[float]
    """Share of the trainer's expert choices that the engine did not make, one value per MoE layer."""


def agreement(trainer: Sequence[Scored], engine: Sequence[Scored]) -> Agreement:
    pairs = list(zip(trainer, engine, strict=True))
    delta = torch.cat([ours.logprobs_t - theirs.logprobs_t for ours, theirs in pairs])
    flipped = torch.cat([flips(ours.experts_tlk, theirs.experts_tlk) for ours, theirs in pairs])
    return Agreement(len(delta), Magnitudes.of(delta.abs()), k3(delta), flipped.mean(0).tolist())


def trained(one: Pass, tokens_t: Tensor) -> Scored:
    """Score a sequence, from its second token on, by the trainer's forward pass over it."""
    return Scored.by(one.logits_tv, one.experts_tlk, tokens_t[1:])


def fed(model: Transformer, sequences: Sequence[Tensor], chunk: int) -> list[Scored]:
    """Score sequences by a network prepared with `serve`, feeding `chunk` tokens of every sequence at a time."""
    tokens_bt = pad_sequence(list(sequences), batch_first=True)
    lengths_b = torch.tensor([len(tokens_t) for tokens_t in sequences])
    longest, dtype = tokens_bt.shape[1], model.embed_tokens.weight.dtype
    cache = Cache(model.config, len(sequences), longest, dtype, invariant=model.invariant)
    parts = [list[Scored]() for _ in sequences]
    for start in range(0, longest, chunk):
        slots_b = (lengths_b > start).nonzero().squeeze(1)
        fed_b = (lengths_b[slots_b] - start).clamp(max=chunk)
        step = cache.step(slots_b, torch.full_like(slots_b, start), fed_b)
        # Padding positions may lie beyond the longest sequence.
        out = model.extend(tokens_bt[slots_b[step.rows_t], step.positions_t.clamp(max=longest - 1)], step)
        for slot, first, count in zip(slots_b.tolist(), step.first_b.tolist(), fed_b.tolist(), strict=True):
            next_t = sequences[slot][start + 1 : start + 1 + count]
            parts[slot].append(Scored.by(out.logits_rv[first:], out.experts_tlk[first:], next_t))
    return [
        Scored(torch.cat([part.logprobs_t for part in said]), torch.cat([part.experts_tlk for part in said]))
        for said in parts
    ]


def sampled(engine: BuiltinEngine, prompts: Sequence[Tensor], most: int) -> list[tuple[Tensor, Scored]]:
    """Continue all prompts at once by up to `most` tokens. Return each full sequence and its sampled tokens' scores."""
    for number, prompt in enumerate(prompts):
        engine.submit(GenerateRequest(str(number), prompt.numpy().astype(np.int32), Sampling(most, (), seed=number)))
    answers: dict[int, Generation] = {}
    while engine.busy:
        for answer in engine.step():
            if not isinstance(answer, Generation):
                raise answer.error
            answers[int(answer.id)] = answer
    made = []
    for number, prompt in enumerate(prompts):
        answer, given = answers[number], len(prompt)
        experts = torch.zeros(len(answer.tokens), 0, 1)
        if answer.experts is not None:
            experts = torch.from_numpy(answer.experts[given - 1 : -1].astype(np.int64))
        tokens = torch.cat((prompt, torch.from_numpy(answer.tokens.astype(np.int64))))
        made.append((tokens, Scored(torch.from_numpy(answer.logprobs), experts)))
    return made


def after(scored: Scored, given: int) -> Scored:
    """Return the scores of the tokens after the first `given` tokens of the sequence."""
    return Scored(scored.logprobs_t[given - 1 :], scored.experts_tlk[given - 1 :])
