"""What the compiler makes of the kernels for Hopper: the instructions on which their speed and their rounding rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.slow
QUANTISERS, MOVES = ("tiles", "rows"), ("permute", "unpermute", "gate gradients")
Found = dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    script = Path(__file__).with_name("for_hopper.py")
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    done = subprocess.run([sys.executable, "-P", str(script)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    made: Found = json.loads(done.stdout.splitlines()[-1])
    return made


def test_matmuls_are_wgmma_fed_by_bulk_copies(found: Found) -> None:
    matmuls = {name: made for name, made in found.items() if not name.startswith(QUANTISERS + MOVES)}
    assert {name.rpartition(" ")[0] for name in matmuls} == {
        *("bf16", "bf16 turned", "fp8_row", "fp8_block", "mxfp8"),
        *("wgrad bf16", "wgrad fp8_tile", "wgrad mxfp8"),
    }
    for name, made in matmuls.items():
        assert made["wgmma"] > 0, name
        assert made["older_mma"] == 0, name
        assert made["bulk_copies"] > 0, name


def test_quantisers_divide_and_round_as_ieee_754_says(found: Found) -> None:
    for name, made in found.items():
        if name.startswith(QUANTISERS):
            assert made["to_e4m3"] > 0, name
            assert made["other_to_e4m3"] == 0, name
            assert made["other_divisions"] == 0, name
            assert made["multiply_adds"] == 0, name
            # MXFP8 divides by powers of two: a multiplication. SwiGLU divides, too.
            by_powers = name.startswith("tiles mxfp8") and not name.endswith("swiglu")
            assert (made["ieee_divisions"] == 0) == by_powers, name


def test_rows_are_read_sixteen_bytes_at_a_time(found: Found) -> None:
    for name, made in found.items():
        if name.startswith(QUANTISERS + MOVES):
            assert made["wide_loads"] > 0, name
