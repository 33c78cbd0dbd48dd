"""Whole or absent: torn, damaged and unwritable checkpoints."""

import json
import math
import os
import re
import subprocess
from pathlib import Path

import pytest
import safetensors.torch
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.training import CheckpointError, NonFiniteError, latest_checkpoint, load_checkpoint, save_checkpoint

STATE = {"step": 3, "name": "a", "nested": {"w": torch.arange(6.0).view(2, 3), "list": [1, 2.5, None, True]}}

leaves = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5)
trees = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.text(max_size=5), trees, max_size=4))
def test_what_is_saved_is_loaded(tmp_path_factory, state):
    state = {**state, "tensor": torch.tensor([1, 2], dtype=torch.int16)}
    loaded = load_checkpoint(save_checkpoint(tmp_path_factory.mktemp("c"), 1, state))
    assert loaded.pop("tensor").tolist() == [1, 2]
    state.pop("tensor")
    assert loaded == state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64, torch.bool])
def test_tensors_keep_dtype_and_bits(tmp_path, dtype):
    tensor = torch.randn(5, 4).mul(3).to(dtype)
    view = tensor.T[1:]
    loaded = load_checkpoint(save_checkpoint(tmp_path, 1, {"a": tensor, "b": view, "scalar": tensor[0, 0]}))
    assert loaded["a"].dtype == dtype
    assert torch.equal(loaded["a"], tensor)
    assert torch.equal(loaded["b"], view)
    assert loaded["scalar"].shape == ()


def test_files_of_earlier_programs_are_read_and_theirs_read_ours(tmp_path):
    path = save_checkpoint(tmp_path, 1, {"odd": torch.ones(3, dtype=torch.uint8), "w": torch.randn(4), "n": 3})
    file = path / "tensors.safetensors"
    found = safetensors.torch.load(file.read_bytes())
    file.write_bytes(earlier := safetensors.torch.save(found))
    head = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(head | {"digest": xxhash.xxh3_128_hexdigest(earlier)}))
    loaded = load_checkpoint(path)
    assert torch.equal(loaded["w"], found["/w"])
    assert torch.equal(loaded["odd"], found["/odd"])
    assert loaded["n"] == 3


PROCESS = Path("/proc/self")


@pytest.mark.skipif(not os.access(PROCESS / "clear_refs", os.W_OK), reason="measures memory by Linux's /proc")
def test_neither_saving_nor_loading_needs_the_state_twice(tmp_path):
    def peak_mb() -> float:
        return int(re.search(r"VmHWM:\s+(\d+) kB", (PROCESS / "status").read_text())[1]) / 1000

    def begin_mb() -> float:
        (PROCESS / "clear_refs").write_text("5")  # the peak begins anew at what is used now
        return peak_mb()

    state = {str(number): torch.ones(800_000) for number in range(20)}
    size_mb, begun = 64, begin_mb()
    path = save_checkpoint(tmp_path, 1, state)
    assert peak_mb() - begun < 0.3 * size_mb
    begun = begin_mb()
    for name, tensor in load_checkpoint(path).items():
        state[name].copy_(tensor)
    assert peak_mb() - begun < 1.3 * size_mb, "the mapped file itself counts once"


def test_the_newest_are_kept(tmp_path):
    for step in (1, 2, 10):
        save_checkpoint(tmp_path, step, STATE, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000010"]
    step, path = latest_checkpoint(tmp_path)
    assert (step, path.name) == (10, "step-00000010")


def test_there_may_be_none(tmp_path):
    assert latest_checkpoint(tmp_path / "nowhere") is None
    assert latest_checkpoint(tmp_path) is None


def damage_tensors(path):
    data = bytearray((path / "tensors.safetensors").read_bytes())
    data[-3] ^= 4
    (path / "tensors.safetensors").write_bytes(data)


def truncate_state(path):
    (path / "state.json").write_bytes((path / "state.json").read_bytes()[:20])


def drop_state(path):
    (path / "state.json").unlink()


def empty_tensors(path):
    (path / "tensors.safetensors").write_bytes(b"")


def foreign_format(path):
    (path / "state.json").write_text(json.dumps({"format": "etude-checkpoint/9"}))


@pytest.mark.parametrize("harm", [damage_tensors, truncate_state, drop_state, empty_tensors, foreign_format])
def test_a_damaged_checkpoint_is_stepped_over_and_can_be_written_again(tmp_path, harm):
    save_checkpoint(tmp_path, 1, STATE)
    newest = save_checkpoint(tmp_path, 2, STATE)
    harm(newest)
    assert latest_checkpoint(tmp_path)[0] == 1
    with pytest.raises(CheckpointError, match="step-00000002"):
        load_checkpoint(newest)
    save_checkpoint(tmp_path, 2, STATE)
    assert latest_checkpoint(tmp_path)[0] == 2


def test_what_a_kill_leaves_behind_is_ignored_and_cleared_away(tmp_path):
    save_checkpoint(tmp_path, 1, STATE)
    torn = tmp_path / "tmp-00000002-12345"
    torn.mkdir()
    (torn / "tensors.safetensors").write_bytes(b"half")
    assert latest_checkpoint(tmp_path)[0] == 1
    save_checkpoint(tmp_path, 3, STATE)
    assert not torn.exists()


def test_what_cannot_be_stored_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="/a/b: expected tensors and JSON values, found set"):
        save_checkpoint(tmp_path, 1, {"a": {"b": {1, 2}}})


@given(bad=st.sampled_from([math.nan, math.inf, -math.inf]), at=st.integers(0, 5))
def test_what_is_not_finite_is_not_written(tmp_path_factory, bad, at):
    folder = tmp_path_factory.mktemp("c")
    save_checkpoint(folder, 1, STATE)
    poisoned = torch.arange(6.0).index_fill(0, torch.tensor([at]), bad).view(2, 3).bfloat16()
    with pytest.raises(NonFiniteError, match="/nested/w has 1 of 6 numbers that are not finite"):
        save_checkpoint(folder, 2, {"nested": {"v": torch.ones(3), "none": torch.empty(0), "w": poisoned}})
    assert [path.name for path in folder.iterdir()] == ["step-00000001"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs to fill needs root")
def test_a_full_disk_is_one_clear_error_and_spares_the_last_checkpoint(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    try:
        save_checkpoint(small, 1, {"w": torch.zeros(1000)})
        with pytest.raises(CheckpointError, match=r"step-00000002: the disk is full \(needs 0\.4 MB\)") as caught:
            save_checkpoint(small, 2, {"w": torch.zeros(100_000)})
        assert "\n" not in str(caught.value)
        assert [path.name for path in small.iterdir()] == ["step-00000001"]
        assert latest_checkpoint(small)[0] == 1
    finally:
        subprocess.run(["umount", str(small)], check=True)
