"""Every damaged or hostile checkpoint folder is refused in one line that names what is wrong, before a network is
built."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from etude.model import ModelError, PoisonedWeights, Transformer, load_hf, save_hf, survey

INDEX = "model.safetensors.index.json"
FIRST, SECOND, THIRD = (f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3))
NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def model(model_of: Any) -> Transformer:
    return model_of(num_nextn_predict_layers=0)


@pytest.fixture
def folder(model: Transformer, tmp_path: Path) -> Path:
    """A checkpoint in three shards, the last of which holds the final norm."""
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    save_hf(model, tmp_path / "base", shard_bytes=int(size * 0.45))
    assert sorted(path.name for path in (tmp_path / "base").iterdir()) == ["config.json", FIRST, SECOND, THIRD, INDEX]
    return tmp_path / "base"


def _change_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def _change_tensors(folder: Path, shard: str, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / shard)
    change(tensors)
    save_file(tensors, folder / shard, metadata={"format": "pt"})


def _half_downloaded(folder: Path) -> None:
    os.truncate(folder / SECOND, (folder / SECOND).stat().st_size // 2)


def _shard_missing(folder: Path) -> None:
    (folder / SECOND).unlink()


def _shard_missing_without_index(folder: Path) -> None:
    (folder / THIRD).unlink()
    (folder / INDEX).unlink()


def _shards_swapped(folder: Path) -> None:
    (folder / FIRST).rename(folder / "other")
    (folder / SECOND).rename(folder / FIRST)
    (folder / "other").rename(folder / SECOND)


def _index_leaves_one_out(folder: Path) -> None:
    _change_index(folder, lambda places: places.pop(NORM))


def _index_lists_what_is_not_there(folder: Path) -> None:
    _change_index(folder, lambda places: places.update({"a\nb": THIRD}))


def _index_leads_out(folder: Path) -> None:
    (folder / THIRD).rename(folder.parent / THIRD)
    _change_index(folder, lambda places: places.update({NORM: f"../{THIRD}"}))


def _index_nested_deep(folder: Path) -> None:
    (folder / INDEX).write_text("[" * 100_000)


def _name_in_two_files(folder: Path) -> None:
    _change_tensors(folder, FIRST, lambda tensors: tensors.update({NORM: torch.ones(32)}))


def _single_file_beside_the_index(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / FIRST).read_bytes())


def _header_longer_than_the_file(folder: Path) -> None:
    data = (folder / FIRST).read_bytes()
    (folder / FIRST).write_bytes((1 << 40).to_bytes(8, "little") + data[8:])


def _offsets_that_overlap(folder: Path) -> None:
    header = {name: {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} for name in "ab"}
    text = json.dumps(header).encode()
    (folder / FIRST).write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))


def _another_dtype(folder: Path) -> None:
    _change_tensors(folder, THIRD, lambda tensors: tensors.update({NORM: torch.ones(32, dtype=torch.int64)}))


def _an_extra_tensor(folder: Path) -> None:
    _change_tensors(folder, THIRD, lambda tensors: tensors.update({"lm_head.bias": torch.ones(61)}))
    _change_index(folder, lambda places: places.update({"lm_head.bias": THIRD}))


def _link_out(folder: Path) -> None:
    (folder / THIRD).rename(folder.parent / "elsewhere")
    (folder / THIRD).symlink_to("../elsewhere")


def _link_to_nothing(folder: Path) -> None:
    (folder / THIRD).unlink()
    (folder / THIRD).symlink_to("blob")


def _pipe(folder: Path) -> None:
    (folder / THIRD).unlink()
    os.mkfifo(folder / THIRD)


def _only_a_pickle(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def _a_pickle_by_another_name(folder: Path) -> None:
    torch.save({}, folder / FIRST)


def _a_size_in_words(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": "many\n"}))


def _not_a_number(folder: Path) -> None:
    _change_tensors(folder, THIRD, lambda tensors: tensors[NORM].__setitem__(0, float("nan")))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_half_downloaded, rf"{SECOND} is damaged: it has \d+ bytes, but its header describes \d+"),
        (_shard_missing, f"base is incomplete: it lacks {SECOND}"),
        (_shard_missing_without_index, f"base is incomplete: it lacks {THIRD}"),
        (_shards_swapped, rf"{INDEX} says that \S+ is in {FIRST}, but it is not"),
        (_index_leaves_one_out, f"{INDEX} does not list {NORM}, which is in {THIRD}"),
        (_index_lists_what_is_not_there, rf"{INDEX} says that a\\nb is in {THIRD}, but it is not"),
        (_index_leads_out, f"{INDEX} lists '../{THIRD}', which is no .safetensors file of the folder"),
        (_index_nested_deep, f"{INDEX} is damaged: it is nested too deeply"),
        (_name_in_two_files, f"base has {NORM} twice: in {FIRST} and {THIRD}"),
        (_single_file_beside_the_index, "has model.safetensors and an index that does not list it"),
        (_header_longer_than_the_file, f"{FIRST} is damaged or of another format: it has no safetensors header"),
        (_offsets_that_overlap, f"{FIRST} is damaged: b does not begin where the tensor before it ends"),
        (_another_dtype, f"base {NORM} is torch.int64, but has no scales of a known format"),
        (_an_extra_tensor, "base has the tensor lm_head.bias that the network does not have"),
        (_link_out, f"{THIRD} is a link that leads out of the folder, to .*/elsewhere"),
        (_link_to_nothing, f"{THIRD} is a link to a file that is missing: .*/blob"),
        (_pipe, f"{THIRD} is not a file"),
        (_only_a_pickle, r"holds no .safetensors file, only pytorch_model.bin: save it as safetensors"),
        (_a_pickle_by_another_name, f"{FIRST} is damaged or of another format"),
        (_a_size_in_words, r"base: vocab_size is 'many\\n', which is no number that a network can have"),
        (_not_a_number, f"{NORM} has 1 of 32 numbers that are not finite"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_damaged_folder_is_refused_in_one_line(folder: Path, damage: Callable[[Path], None], told: str) -> None:
    load_hf(folder)
    damage(folder)
    with pytest.raises(ModelError, match=told) as refused:
        load_hf(folder)
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, PoisonedWeights) == (damage is _not_a_number)


def test_all_that_does_not_fit_is_told_at_once(folder: Path) -> None:
    _change_tensors(folder, THIRD, lambda tensors: tensors.update({NORM: torch.ones(5), "other": tensors.pop(NORM)}))
    _change_index(folder, lambda places: places.update({"other": THIRD}))
    place = next(name for name, file in json.loads((folder / INDEX).read_text())["weight_map"].items() if file == FIRST)
    _change_tensors(folder, FIRST, lambda tensors: tensors.pop(place))
    _change_index(folder, lambda places: places.pop(place))
    assert survey(folder, vocabulary=70, room=1000).problems == (
        f"lacks the tensor {place}",
        "has the tensor other that the network does not have",
        f"{NORM} has shape (5,), config.json says (32,)",
        "knows 61 tokens, but the tokenizer has 70",
        "takes 0.0 GB in float32, but there is room for 0.0 GB",
    )


def test_a_folder_with_only_a_description_is_surveyed(folder: Path) -> None:
    complete = survey(folder)
    for path in folder.glob("model*"):
        path.unlink()
    described = survey(folder)
    assert (complete.weights, described.weights) == (True, False)
    assert described.problems == complete.problems == ()
    assert described.parameters == complete.parameters
    with pytest.raises(ModelError, match=r"it has no \.safetensors file"):
        load_hf(folder)


def test_the_links_of_the_hugging_face_cache_are_followed(folder: Path, model: Transformer, tmp_path: Path) -> None:
    repository = tmp_path / "models--etude--tiny"
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for path in folder.iterdir():
        path.rename(repository / "blobs" / f"hash-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/hash-{path.name}")
    loaded = load_hf(snapshot).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())
