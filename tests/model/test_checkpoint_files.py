"""Checkpoints in any number of files, and single safetensors files beside those of the safetensors package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from etude.model import Transformer, checkpoint_digest, load_hf, save_hf, survey
from etude.model.checkpoints.tensor_file import read_header, read_into, write_tensors

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool]
INDEX = "model.safetensors.index.json"


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    names = draw(st.lists(st.text('abé. "\\', min_size=1, max_size=6), unique=True, max_size=6))
    made = {}
    for name in names:
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        numbers = torch.arange(torch.Size(shape).numel()).view(shape) % 7
        made[name] = numbers.to(draw(st.sampled_from(DTYPES)))
    return made


@settings(max_examples=40, deadline=None)
@given(tensors())
def test_files_are_those_of_the_safetensors_package(
    tmp_path_factory: pytest.TempPathFactory, made: dict[str, torch.Tensor]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    ours, theirs = folder / "ours.safetensors", folder / "theirs.safetensors"
    write_tensors(ours, made)
    save_file(made, theirs)
    there, here = load_file(ours), read_header(theirs)
    assert there.keys() == here.keys() == made.keys()
    for name, tensor in made.items():
        assert there[name].dtype == here[name].dtype == tensor.dtype
        assert there[name].shape == here[name].shape == tensor.shape
        read = torch.empty(tensor.shape, dtype=tensor.dtype)
        read_into(here[name], read)
        assert torch.equal(there[name].double(), tensor.double())
        assert torch.equal(read.double(), tensor.double())
    assert all(tensor.begin % tensor.dtype.itemsize == 0 for tensor in read_header(ours).values())


@pytest.fixture(scope="module")
def model(model_of: Any) -> Transformer:
    return model_of(tie_word_embeddings=False, num_hidden_layers=2, n_routed_experts=3)


@pytest.fixture(scope="module")
def place(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is written again and again, so that the files of one write must not survive the next."""
    folder = tmp_path_factory.mktemp("shards")
    save_hf(model, folder / "single")
    return folder


@settings(max_examples=20, deadline=None)
@example(most=1, dtype=None, cut_by_us=True)
@given(most=st.integers(10_000, 120_000), dtype=st.sampled_from([None, torch.bfloat16]), cut_by_us=st.booleans())
def test_any_cut_into_shards_gives_the_same_network(
    place: Path, model: Transformer, most: int, dtype: torch.dtype | None, cut_by_us: bool
) -> None:
    single = load_file(place / "single" / "model.safetensors")
    folder = place / ("ours" if cut_by_us else "theirs")
    if cut_by_us:
        save_hf(model, folder, shard_bytes=most)
    else:
        _cut_by_others(single, folder, most % 5 + 1, json.loads((place / "single" / "config.json").read_text()))
    files = sorted(folder.glob("*.safetensors"))
    parts = [load_file(file) for file in files]
    assert {name: tensor.shape for part in parts for name, tensor in part.items()} == {
        name: tensor.shape for name, tensor in single.items()
    }
    assert sum(len(part) for part in parts) == len(single)
    if cut_by_us:
        assert all(len(part) == 1 or sum(tensor.nbytes for tensor in part.values()) <= most for part in parts)
        assert (folder / INDEX).exists() == (len(files) > 1)
    found = survey(folder)
    assert found.problems == ()
    assert found.bytes == sum(tensor.nbytes for tensor in single.values())
    loaded, expected = load_hf(folder, dtype).state_dict(), load_hf(place / "single", dtype).state_dict()
    assert list(loaded) == list(expected)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    assert (checkpoint_digest(folder) == checkpoint_digest(place / "single")) == (cut_by_us and len(files) == 1)


def _cut_by_others(single: dict[str, torch.Tensor], folder: Path, count: int, config: dict[str, Any]) -> None:
    """Deal the tensors out to shards like cards, and list them in an index."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    names = [f"part{number}.safetensors" for number in range(count)]
    for number, name in enumerate(names):
        save_file(dict(list(single.items())[number::count]), folder / name)
    listed = {tensor: names[i % count] for i, tensor in enumerate(single)}
    (folder / INDEX).write_text(json.dumps({"weight_map": listed}))
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"unread": torch.ones(2)}, folder / "not-listed.safetensors")
    (folder / "not-listed.safetensors").rename(folder / "not-listed.bin")
    assert survey(folder).unread == ("not-listed.bin",)


def test_files_of_the_tokenizer_travel_and_others_stay(model: Transformer, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("tokenizer.json", "generation_config.json", "chat_template.jinja", "README.md", "journal.jsonl"):
        (source / name).write_text(name)
    save_hf(model, tmp_path / "written", source)
    assert sorted(path.name for path in (tmp_path / "written").iterdir()) == [
        *("chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json")
    ]
    assert (tmp_path / "written" / "tokenizer.json").read_text() == "tokenizer.json"


def test_half_a_write_is_never_taken_for_a_checkpoint(
    model: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second write fails after its first shard has replaced the former file."""
    save_hf(model, tmp_path)
    replaced: list[Path] = []

    def replace_once(path: Path, target: Path) -> Path:
        if replaced:
            raise OSError("the disk is gone")
        replaced.append(target)
        path.rename(target)
        return target

    monkeypatch.setattr(Path, "replace", replace_once)
    with pytest.raises(OSError, match="the disk is gone"):
        save_hf(model, tmp_path, shard_bytes=20_000)
    assert replaced
    assert not (tmp_path / "config.json").exists()


LOOK = """
import sys, torch
from pathlib import Path
from etude.model import load_hf, save_hf
def peak() -> int:
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmHWM")) << 10
before = peak()
model = load_hf(sys.argv[1])
loaded = peak()
save_hf(model, sys.argv[2], shard_bytes=100 << 20)
print(loaded - before, peak() - loaded)
"""


@pytest.mark.slow
def test_loading_and_saving_take_little_more_than_the_network(config_of: Any, tmp_path: Path) -> None:
    big = config_of(
        hidden_size=1024, intermediate_size=8192, moe_intermediate_size=1024, num_hidden_layers=4, n_routed_experts=16
    )
    network = Transformer(big).to(torch.bfloat16)
    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    save_hf(network, tmp_path / "a")
    command = [sys.executable, "-c", LOOK, str(tmp_path / "a"), str(tmp_path / "b")]
    loading, saving = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert size > 250e6
    assert loading < 1.15 * size
    assert saving < 0.1 * size
    with safe_open(next((tmp_path / "b").glob("model-00002*")), "pt") as shard:
        assert shard.keys()
