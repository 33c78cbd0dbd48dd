"""Versions stored as deltas: their size beside the entropy bound and other codecs, and bytes of weights per CPU second.

Rows are steps of RL's trainer on the network of the tiny recipe in bf16 (random rollouts, so that it takes seconds), at
the recipe's learning rate and at 2e-6, and Adam-sized steps of a large synthetic checkpoint, which is made tensor by
tensor. For each: `unchanged`, the share of elements; the stored `share` of the weights' bytes, and that of XOR + zstd
and of a list of positions (4 bytes) and values, as trainers send it; `bound`, the entropy of each tensor's differences,
and `bound_exponent`, if the exponent of the base is given; speeds of publishing and of reading with one thread, with
all checksums; and `peak_mib`, the memory of either beside the two versions. `quantised`: a step of tensors whose
versions hold codes and scales (`precision.experts`), bytes of the delta and of the whole version over those in bf16.

    make bench NAME=deltas
    .venv/bin/python benchmarks/deltas.py --gb 8     # the synthetic checkpoint in its full size: 20 GB of disk, an hour
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import zstandard
from _report import finish
from numpy.typing import NDArray
from torch import Tensor

from etude.journal import RunPaths
from etude.model import Numerics, Transformer, config_from_recipe, save_hf
from etude.recipe import load_recipe
from etude.rl.batch import TrainingGroup, TrainingMember
from etude.rl.trainer import RlTrainer
from etude.tasks import Judgement, Verdict
from etude.trace import Segment, SegmentKind, StopCause, Trace
from etude.training import Compute
from etude.weights import AnyManifest, HeldVersion, RawTensor, Tensors, WeightStore
from etude.weights.torch_bridge import from_state_dict, view_of

RECIPE = Path(__file__).resolve().parent.parent / "recipes/tiny.toml"
STEPS, LENGTH = 4, 128
DEVIATION, TENSOR_ELEMENTS = 0.02, 8_000_000
CODES, WHOLE_BLOCKS = 1000, 992
"""Rows and columns of a tensor that is quantised: of the columns a multiple of the block sizes, 16 and 32."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=0.1, help="size of the synthetic checkpoint")
    parser.add_argument("--place", help="folder for the stores (default: the system's temporary one)")
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows: dict[str, dict[str, float]] = {}
    for rate in (load_recipe(RECIPE).rl.optimizer.lr, 2e-6):
        with tempfile.TemporaryDirectory(dir=asked.place) as place:
            old, new = rl_step(Path(place), rate)
            rows[f"rl_{rate:.0e}".replace("e-0", "e-")] = row(rate, new, old, asked.place)
    for rate in (2e-6, 2e-5, 1e-4):
        number = max(1, round(asked.gb * 1e9 / 2 / TENSOR_ELEMENTS))
        pair = (Synthetic(number, 0.0), Synthetic(number, rate))
        rows[f"synthetic_{rate:.0e}".replace("e-0", "e-")] = row(rate, pair[1], pair[0], asked.place)
    peers = "XOR + zstd 1; positions and values"
    finish("deltas", {"peer": peers, "gb": asked.gb, **rows, "quantised": quantised()})


class Synthetic(Mapping[str, RawTensor]):
    """A checkpoint of equal tensors that are made as they are asked for, before or after an Adam-sized step."""

    def __init__(self, number: int, rate: float) -> None:
        self._number, self._rate = number, rate

    def __getitem__(self, name: str) -> RawTensor:
        generator = torch.Generator().manual_seed(int(name))
        master = torch.randn(TENSOR_ELEMENTS, generator=generator) * DEVIATION
        step = (torch.rand(TENSOR_ELEMENTS, generator=generator) * 2 - 1) * self._rate
        return view_of((master + step).bfloat16())

    def __iter__(self) -> Iterator[str]:
        return (f"{number:04d}" for number in range(self._number))

    def __len__(self) -> int:
        return self._number


class Timed(Mapping[str, RawTensor]):
    """Tensors, and the CPU seconds that making them has taken."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors, self.seconds = tensors, 0.0

    def __getitem__(self, name: str) -> RawTensor:
        spent, tensor = seconds(lambda: self._tensors[name])
        self.seconds += spent
        return cast(RawTensor, tensor)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def rl_step(place: Path, rate: float) -> tuple[Tensors, Tensors]:
    """Return the two newest versions of RL's trainer after some steps."""
    recipe = load_recipe(
        RECIPE, [f"rl.optimizer.lr={rate}", "rl.optimizer.warmup_steps=0", "rl.checkpoint_seconds=1e9"]
    )
    paths = RunPaths(place)
    config = config_from_recipe(recipe.model, recipe.tokenizer.vocab_size)
    save_hf(Transformer(config).initialise(0), paths.model(recipe.before("rl")))
    compute = asdict(Compute("cpu", "bfloat16", 1, "a benchmark"))
    trainer = RlTrainer(str(place), recipe.model_dump(mode="json", by_alias=True), compute, str(paths.weights))
    for step in range(STEPS):
        members = tuple(
            member(config.vocab_size, step, n, Judgement.PASS if n % 2 else Judgement.FAIL) for n in range(8)
        )
        trainer.train(step, [TrainingGroup(step, step, members)])
    return trainer.store.read(STEPS - 1), trainer.store.read(STEPS)


def member(vocabulary: int, version: int, number: int, judgement: Judgement) -> TrainingMember:
    random, sampled = np.random.default_rng(100 * version + number), np.arange(LENGTH) >= LENGTH // 4
    segment = Segment(
        0,
        None,
        SegmentKind.START,
        random.integers(0, vocabulary, LENGTH).astype(np.int32),
        sampled,
        np.full(LENGTH, -np.log(vocabulary), np.float32),
        np.where(sampled, version, -1).astype(np.int32),
        None,
    )
    trace = Trace(f"{version}-{number}", "task", "train", str(version), 0, "model", 0, [segment])
    trace.stop = StopCause.FINISHED
    return TrainingMember(trace, Verdict(judgement, ""))


def row(rate: float, new: Tensors, old: Tensors, place: str | None) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=place) as folder:
        store, held = WeightStore(f"{folder}/store"), HeldVersion("s3://nowhere")
        store.publish(0, old, held=held)
        assert held.base is not None
        base, tensors = held.base, Timed(new)
        store.publish(1, new, base=base)  # all loops are compiled
        store.read(1, have=base)
        spent, manifest = seconds(lambda: store.publish(2, tensors, base=base))
        apply_seconds, read = seconds(lambda: store.read(2, have=base))
        assert all(read[name].equals(new[name]) for name in new), "a delta must be lossless"
        del read
        peaks = (
            peak(lambda: store.publish(3, new, base=base)),
            peak(lambda: store.read(2, have=base)) - manifest.bytes_full,
        )
        held.drop()
    sums = np.sum([of_tensor(new[name], base[1][name]) for name in new], axis=0)
    size = manifest.bytes_full
    return {
        "lr": rate,
        "unchanged": 1 - manifest.share_changed,
        "share": manifest.bytes_stored / size,
        **{name: value / size for name, value in zip(SIZES, sums[: len(SIZES)].tolist(), strict=True)},
        "over_bound": manifest.bytes_stored / float(sums[0]) - 1,
        "encode_gb_s": size / 1e9 / (spent - tensors.seconds),
        "apply_gb_s": size / 1e9 / apply_seconds,
        **{name: size / 1e9 / value for name, value in zip(SPEEDS, sums[len(SIZES) :].tolist(), strict=True)},
        "peak_mib": max(peaks) / 2**20,
    }


SIZES = ("bound", "bound_exponent", "share_xor_zstd", "share_sparse")
SPEEDS = ("xor_zstd_encode_gb_s", "xor_zstd_apply_gb_s", "sparse_encode_gb_s", "sparse_apply_gb_s")


def of_tensor(new: RawTensor, base: RawTensor) -> list[float]:
    """Return the bounds and the sizes of other codecs for one tensor of bf16, and the CPU seconds of these."""
    words, under = new.data.view(np.uint16), base.data.view(np.uint16)
    difference = words - under
    by_exponent = (under >> 7 & 0xFF).astype(np.int64) << 16 | difference
    xor, packed = seconds(lambda: zstandard.ZstdCompressor(level=1).compress(words ^ under))
    unpack = seconds(lambda: np.frombuffer(zstandard.ZstdDecompressor().decompress(packed), np.uint16) ^ under)[0]
    sparse, (places, values) = seconds(lambda: sparsely(words, under))
    scatter = seconds(lambda: np.put(under.copy(), places, values))[0]
    return [
        entropy(np.bincount(difference, minlength=1 << 16)),
        entropy(np.unique(by_exponent, return_counts=True)[1]) - entropy(np.bincount(under >> 7 & 0xFF)),
        len(packed),
        places.nbytes + values.nbytes,
        xor,
        unpack,
        sparse,
        scatter,
    ]


def sparsely(words: NDArray[np.uint16], under: NDArray[np.uint16]) -> tuple[NDArray[np.int32], NDArray[np.uint16]]:
    places = np.flatnonzero(words != under).astype(np.int32)
    return places, words[places]


def entropy(counts: NDArray[np.int64]) -> float:
    """Return the bytes that so many symbols take at the entropy of their histogram."""
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / counts.sum())).sum()) / 8


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    result = work()
    return time.process_time() - begun, result


def peak(work: Callable[[], object]) -> int:
    """Return how many bytes were allocated at the most."""
    tracemalloc.start()
    work()
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def quantised() -> dict[str, dict[str, float]]:
    """Sizes of a delta and of a whole version in each format, over those in bf16."""
    masters = torch.randn(CODES, WHOLE_BLOCKS) * DEVIATION
    pair = [(masters + step).bfloat16() for step in (torch.zeros(()), 1e-6 * torch.randn_like(masters).sign())]

    def published(name: str) -> AnyManifest:
        versions = [from_state_dict(codes(name, tensor)) for tensor in pair]
        with tempfile.TemporaryDirectory() as place:
            store = WeightStore(place)
            store.publish(0, versions[0])
            return store.publish(1, versions[1], base=(0, versions[0]))

    plain = published("bf16")
    found = {name: published(name) for name in ("mxfp8", "nvfp4", "fp8_block")}
    return {
        name: {
            "delta_ratio": one.bytes_stored / plain.bytes_stored,
            "whole_ratio": one.bytes_full / plain.bytes_full,
            "share_changed": one.share_changed,
        }
        for name, one in found.items()
    }


def codes(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The tensors that a version stores for these weights: the weights themselves, or their codes and scales."""
    if name == "bf16":
        return {"w": tensor}
    (q,) = Numerics(name).codes([tensor.unsqueeze(0)])
    return {f"w.{part}": getattr(q, part) for part in ("codes", "scales", "outer") if hasattr(q, part)}


if __name__ == "__main__":
    main()
