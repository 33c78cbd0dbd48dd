"""The choice of an implementation is explicit, printed, and never replaced in silence."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
import torch
from tests.model.precision.kernels.loads import ends_of

from etude.model import KernelUnavailable
from etude.model.precision import FORMATS
from etude.model.precision.kernels import (
    IMPLEMENTATIONS,
    choose,
    implementation_for,
    kernels_for,
    overview,
    reference,
    refusal,
)
from etude.recipe.precision import PrecisionRecipe

LOOPS = f"rounding by loops of Numba {version('numba')}"


def test_a_choice_runs_and_prints_itself() -> None:
    chosen = choose("quantise", "reference", "mxfp8", "cpu")
    assert str(chosen) == f"quantise of mxfp8 by reference on cpu ({LOOPS})"
    x = torch.randn(4, 64)
    assert torch.equal(chosen(x, "mxfp8").scales, FORMATS["mxfp8"].quantise(x).scales)


@pytest.mark.parametrize("name", [name for name in IMPLEMENTATIONS if name != "torch_scaled"])
@pytest.mark.parametrize("operation", ["grouped_mm", "grouped_wgrad"])
def test_implementations_compute_the_same(name: str, operation: str) -> None:
    if name == "triton":
        pytest.importorskip("triton")
    ends = ends_of([3, 0, 13])
    a = torch.randint(-4, 5, (16, 64)).bfloat16()
    b = torch.randint(-4, 5, (3, 32, 64) if operation == "grouped_mm" else (16, 32)).bfloat16()
    if operation == "grouped_wgrad":
        a, b = a.mT, b.mT
    found = choose(operation, name, "bf16", "cpu")(a, b, ends)
    assert torch.equal(found, getattr(reference, operation)(a, b, ends))


def test_every_operation_of_every_implementation_exists() -> None:
    pytest.importorskip("triton")
    for name, implementation in IMPLEMENTATIONS.items():
        for operation, formats in implementation.formats.items():
            for format in formats:
                if refusal(operation, name, format, "cpu") is None:
                    assert callable(choose(operation, name, format, "cpu").run)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (
            ("grouped_mm", "torch_scaled", "fp8_row", "cpu"),
            "torch implements it for GPUs only; implementations that can run it here: reference",
        ),
        (
            ("grouped_mm", "torch", "mxfp8", "cpu"),
            "it takes only the formats bf16; implementations that can run it here: reference",
        ),
        (("quantise", "torch", "mxfp8", "cpu"), "it implements only grouped_mm, grouped_wgrad"),
        (("quantise", "cutlass", "mxfp8", "cpu"), "the implementations are reference, triton, torch, torch_scaled"),
        (("attention", "reference", "bf16", "cpu"), "implementations that can run it here: none"),
        (("grouped_mm", "torch", "bf16", "meta"), "it needs a CUDA device, not meta"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(asked: tuple[str, str, str, str], reason: str) -> None:
    with pytest.raises(KernelUnavailable) as refused:
        choose(*asked)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_overview_has_everybody_s_reason() -> None:
    told = overview("cpu").splitlines()
    assert any(line.startswith("grouped_mm of bf16: reference") and line.endswith("torch") for line in told)
    assert "  not torch_scaled: torch implements it for GPUs only" in told
    offered = sum(len(formats) for formats in IMPLEMENTATIONS["reference"].formats.values())
    assert sum(not line.startswith(" ") for line in told) == offered


def test_without_triton_and_numba_all_else_works() -> None:
    code = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "numba" else found(name, *rest)
sys.modules |= {"triton": None, "numba": None}
import torch
from etude.model.precision import FORMATS
from etude.model.precision.kernels import choose, overview
assert all(format.fake(torch.ones(2, 128)).eq(1).all() for format in FORMATS.values())
assert "etude.model.precision.passes.in_numba" not in sys.modules
overview("cpu")
try:
    choose("quantise", "triton", "mxfp8", "cpu")
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == (
        "KernelUnavailable quantise of mxfp8 by triton on cpu: Triton is not installed (pip install triton); "
        "implementations that can run it here: reference\n"
    ), done.stderr


def test_without_its_interpreter_triton_serves_no_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(KernelUnavailable, match="Triton compiles for GPUs"):
        choose("permute", "triton", "bf16", "cpu")


@pytest.mark.parametrize(
    ("precision", "said", "own"),
    [
        (PrecisionRecipe(), "by torch on cpu", False),
        (PrecisionRecipe(experts="nvfp4", emulate=True), f"by reference on cpu ({LOOPS})", False),
        (PrecisionRecipe(kernels="reference"), "by reference on cpu", True),
        (PrecisionRecipe(kernels="triton"), "by triton on cpu (under Triton's interpreter)", True),
        (PrecisionRecipe(experts="fp8_block", kernels="triton"), "by triton on cpu (under Triton's interpreter)", True),
    ],
    ids=lambda case: str(case)[:30],
)
def test_a_recipe_says_who_computes_its_experts(precision: PrecisionRecipe, said: str, own: bool) -> None:
    if precision.kernels == "triton":
        pytest.importorskip("triton")
    assert implementation_for(precision, "cpu").by == said
    assert (kernels_for(precision, "cpu") is not None) == own


@pytest.mark.parametrize("experts", ["nvfp4", "mxfp8", "fp8_block"])
def test_kernels_are_interpreted_only_where_they_are_named(experts: str) -> None:
    with pytest.raises(
        KernelUnavailable, match=r"no implementation multiplies this format on cpu; set precision\.emulate"
    ):
        implementation_for(PrecisionRecipe(experts=experts), "cpu")


def test_on_a_gpu_fp8_needs_no_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a Hopper chip, one before FP8, and one that has no Triton."""
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    fp8 = PrecisionRecipe(experts="fp8_block")
    assert str(implementation_for(fp8, "cuda")).startswith("grouped_mm of fp8_block by triton on cuda (H200, Triton ")
    assert implementation_for(PrecisionRecipe(), "cuda").by == "by torch on cuda (H200)"
    assert implementation_for(PrecisionRecipe(experts="mxfp8", kernels="triton"), "cuda").implementation == "triton"
    for experts in ("mxfp8", "nvfp4"):
        with pytest.raises(KernelUnavailable, match="no implementation multiplies this format on cuda"):
            implementation_for(PrecisionRecipe(experts=experts), "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(KernelUnavailable, match="no implementation multiplies this format on cuda"):
        implementation_for(fp8, "cuda")


def test_what_a_recipe_names_is_not_replaced() -> None:
    with pytest.raises(
        KernelUnavailable, match=r'precision\.kernels = "triton": grouped_mm of nvfp4 by triton on cpu: it'
    ):
        implementation_for(PrecisionRecipe(experts="nvfp4", kernels="triton"), "cpu")
    with pytest.raises(KernelUnavailable, match=r'take bfloat16, not float32; set compute.dtype = "bfloat16"'):
        implementation_for(PrecisionRecipe(kernels="reference"), "cpu", torch.float32)
