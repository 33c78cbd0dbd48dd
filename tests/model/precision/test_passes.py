"""Loops and plain torch are the same to the last bit, whatever is quantised."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from tests.model.precision.oracles import bits_of, every_bf16, random_rows, tensors
from torch import Tensor

from etude.model.precision import FORMATS, dequantise, quantise_nvfp4
from etude.model.precision.passes import has_numba, in_torch, passes_on

NAMES = sorted(FORMATS)
QUANTISERS = {name: FORMATS[name].quantise for name in NAMES} | {
    "nvfp4 by reciprocals": lambda x: quantise_nvfp4(x, reciprocal_bits=10),
    "nvfp4 of a given scale": lambda x: quantise_nvfp4(x, outer=torch.tensor(0.01)),
}


@contextmanager
def without_numba() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in ("mxfp8", "nvfp4", "fp8"):
            patch.setattr(f"etude.model.precision.{module}.passes_on", lambda device: in_torch)
        yield


def agree(a: Tensor, b: Tensor) -> bool:
    """To the bit, but for which NaN it is."""
    if a.is_floating_point() and a.element_size() > 1:
        a, b = a.nan_to_num(7e33), b.nan_to_num(7e33)
    return a.dtype == b.dtype and torch.equal(bits_of(a), bits_of(b))


def every_part(name: str, x: Tensor) -> list[Tensor]:
    q = QUANTISERS[name](x)
    parts = [getattr(q, part) for part in ("codes", "scales", "outer") if hasattr(q, part)]
    back = [dequantise(q, dtype) for dtype in (torch.bfloat16, torch.float32, torch.float16)]
    fakes = [FORMATS[name].fake(x)] if name in FORMATS else []
    return [*parts, *back, *fakes]


@pytest.mark.parametrize("name", QUANTISERS)
@given(x=tensors(rows=3, width=128))
@settings(max_examples=15)
def test_loops_and_plain_torch_are_the_same(name: str, x: Tensor) -> None:
    with without_numba():
        plain = every_part(name, x)
    assert all(map(agree, every_part(name, x), plain))


@pytest.mark.parametrize("name", QUANTISERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_so_they_are_for_every_bf16_and_for_many_numbers(name: str, dtype: torch.dtype) -> None:
    for x in (every_bf16().view(256, 256).to(dtype), random_rows(3, 200, 384, dtype)):
        with without_numba():
            plain = every_part(name, x)
        assert all(map(agree, every_part(name, x), plain))


def test_a_cpu_has_loops_where_numba_is_installed_and_another_device_plain_torch() -> None:
    assert has_numba()
    assert passes_on(torch.device("cpu")).__name__.endswith(".in_numba")
    assert passes_on(torch.device("cuda")) is in_torch


def test_where_nothing_can_be_kept_the_loops_are_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*args: object) -> None:
        raise RuntimeError("no locator available")

    monkeypatch.setattr("numba.core.caching.FunctionCache.__init__", nowhere)
    found = importlib.import_module("etude.model.precision.passes.in_numba")
    spec = importlib.util.spec_from_file_location("kept_nowhere", str(found.__file__))
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    x = random_rows(0, 4, 64)
    assert torch.equal(fresh.largest(x, 32), in_torch.largest(x, 32))
