"""Leaks through the scales of low-precision matmuls: do other rows of a batch, or later tokens, change a log-prob?

The SFT model runs in fp32 except for its experts' matmuls. It is replayed with the same experts before and after a
change of tokens, so that every matmul keeps its shape, and a difference in log-probs can come from scales alone. The
seed draws the tokens.

`future`: the second half of a row is changed, and log-probs of its first half are compared. `batch`: all rows but one
are changed, and log-probs of that one are compared. Reported are the mean and largest absolute difference of a
log-prob, and the share of positions that differ at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _arms import Arm
from _claim import Claim, main
from _figures import Told, of_seeds, stated
from _rows import Rows
from _verdict import Never, above

from etude.journal import RunPaths
from etude.recipe import load_recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from etude.model import Transformer

PER_ROW = ("bf16", "nvfp4", "mxfp8", "fp8_block")
"""Formats whose scales must not let anything reach another row or an earlier position."""
EXPERTS = (*PER_ROW, "nvfp4_tensor")
WAYS = ("future", "batch")
BATCH, LENGTH = 4, 128


def measure(paths: RunPaths, arm: Arm) -> dict[str, Any]:
    import torch

    from etude.model import Numerics, load_hf, round_with
    from etude.recipe.precision import PrecisionRecipe

    model = load_hf(paths.model("sft"), torch.float32)
    generator = torch.Generator().manual_seed(load_recipe(paths.recipe).seed)
    tokens, others = torch.randint(model.config.vocab_size, (2, BATCH, LENGTH), generator=generator)
    found = {}
    for experts in EXPERTS:
        round_with(model, Numerics.of(PrecisionRecipe(experts=experts, emulate=True)))
        with torch.no_grad():
            found[experts] = _reached(model, tokens, others)
    return found


def _reached(model: Transformer, tokens: Tensor, others: Tensor) -> dict[str, float]:
    import torch

    half = LENGTH // 2
    chosen = model(tokens).experts_btlk
    before = _log_probs(model, tokens, chosen)
    future = torch.cat((tokens[:, :half], others[:, half:]), 1)
    late = torch.stack(
        # One row at a time, so that only its own future can reach a row.
        [
            _log_probs(model, changed[None], own[None])[0] - _log_probs(model, row[None], own[None])[0]
            for row, changed, own in zip(tokens, future, chosen, strict=True)
        ]
    )
    beside = _log_probs(model, torch.cat((tokens[:1], others[1:])), chosen)[0] - before[0]
    return {**_differing("future", late[:, : half - 1]), **_differing("batch", beside[:-1])}


def _log_probs(model: Transformer, tokens_bt: Tensor, experts_btlk: Tensor) -> Tensor:
    """Log-prob of one fixed token at every position, so that the compared quantity does not depend on the tokens."""
    from etude.model import Replay

    found: Tensor = model(tokens_bt, replay=Replay(experts_btlk, "on")).logits_btv.log_softmax(-1)[..., 0]
    return found


def _differing(way: str, difference: Tensor) -> dict[str, float]:
    return {
        f"{way}_mean": float(difference.abs().mean()),
        f"{way}_max": float(difference.abs().max()),
        f"{way}_share": float((difference != 0).float().mean()),
    }


def conclude(rows: Rows) -> dict[str, Any]:
    seeds = list(rows.of("sft").values())
    found: dict[str, Any] = {}
    for key in (f"{way}_{figure}" for way in WAYS for figure in ("mean", "max", "share")):
        found |= stated(f"{key}_per_tensor", of_seeds([figures["nvfp4_tensor"][key] for figures in seeds]))
    for experts in PER_ROW:
        reached = (figures[experts][f"{way}_share"] for figures in seeds for way in WAYS)
        found[f"share_{experts}"] = max(reached, default=None)
    return {**found, "share_of_others": max(found[f"share_{experts}"] for experts in PER_ROW) if seeds else None}


def draw(rows: Rows) -> Figure:
    from _plots import bars, panels, title

    figure, axes = panels(1)
    seeds = rows.of("sft").values()
    means = {
        way: {experts: of_seeds([figures[experts][f"{way}_mean"] for figures in seeds]) for experts in EXPERTS}
        for way in WAYS
    }
    bars(axes[0], {f"another {way}": by_experts for way, by_experts in means.items()})
    title(axes[0], "what it moves a log-prob by", y="nats, mean")
    return figure


CLAIM = Claim(
    name="precision_leak",
    says="With one NVFP4 scale per tensor the batch and the future reach a row's past; per token, in MXFP8 and block "
    "FP8 neither does",
    arms=(Arm("sft", "rl.toml"),),
    until="sft",
    measure=measure,
    conclude=conclude,
    decided=(above("future_mean_per_tensor"), above("batch_mean_per_tensor"), Never("share_of_others")),
    headline=(
        Told("future_mean_per_tensor", "per tensor, another future moves a log-prob by {} nats on average", ".3f"),
        Told("batch_mean_per_tensor", "another batch by {}", ".3f"),
        Told("share_of_others", "in all others, bits differ at {} % of positions", ".2g", 100.0),
    ),
    draw=draw,
    measured=2,
)

if __name__ == "__main__":
    main(CLAIM)
