"""Checkpoint folders that somebody else made: an index and the headers of two shards."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from tests.fuzz.target import Target, kind_of
from tests.fuzz.targets.values import TEXTS, mostly, record, written
from tests.fuzz.temporary import fresh_folder

from etude.model import UnsupportedCheckpoint, config_from_recipe, survey
from etude.model.checkpoints.folder import INDEX, CheckpointFolder
from etude.model.families import write_config
from etude.recipe.model import ModelRecipe

_BETWEEN = b"\n--next--\n"
_SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
_NAMES = st.sampled_from(["model.norm.weight", "lm_head.weight", "a.weight", "a.weight_scale", "b"]) | TEXTS
_DTYPES = st.sampled_from(["F32", "BF16", "U8", "F8_E4M3", "I64", "F4", "bool"])
_ITEM = {"F32": 4, "BF16": 2, "I64": 8}


@cache
def _config() -> bytes:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8, "moe_intermediate_size": 8}
    return json.dumps(write_config(config_from_recipe(ModelRecipe(**sizes), 11))).encode()


@st.composite
def _headers(draw: st.DrawFn) -> bytes:
    """A shard whose header mostly is right."""
    header: dict[str, Any] = {}
    end = 0
    for name in draw(st.lists(_NAMES, max_size=4, unique=True)):
        dtype, shape = draw(_DTYPES), draw(st.lists(st.integers(0, 3), max_size=3))
        begin, end = end, end + torch.Size(shape).numel() * _ITEM.get(dtype, 1)
        usual = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        header[name] = draw(mostly(record({key: st.just(value) for key, value in usual.items()})))
    text = written(header)
    length = len(text) + draw(st.sampled_from([0, 0, 0, 0, 1, -1, 1 << 40]))
    return max(0, length).to_bytes(8, "little") + text + bytes(max(0, end + draw(st.sampled_from([0, 0, 0, 1, -1]))))


_INDICES = record({"metadata": st.just({}), "weight_map": st.dictionaries(_NAMES, st.sampled_from(_SHARDS))}).map(
    written
) | st.just(b"")
_FOLDERS = st.tuples(_INDICES, _headers(), _headers()).map(_BETWEEN.join)


def _examples() -> list[bytes]:
    header = written({"b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})
    first, second = (
        len(text).to_bytes(8, "little") + text + bytes(4) for text in (header, header.replace(b'"b"', b'"c"'))
    )
    index = written({"weight_map": {"b": _SHARDS[0], "c": _SHARDS[1]}})
    return [_BETWEEN.join((index, first, second)), _BETWEEN.join((b"", first, second))]


def _run(data: bytes) -> str:
    folder = fresh_folder("checkpoint")
    (folder / "config.json").write_bytes(_config())
    for name, content in zip((INDEX, *_SHARDS), data.split(_BETWEEN), strict=False):
        if content or name != INDEX:
            (folder / name).write_bytes(content)
    try:
        opened = CheckpointFolder.open(folder)
    except UnsupportedCheckpoint as error:
        said, kind = str(error), kind_of(error)
        assert said.isprintable(), "a message of several lines"
        assert len(said) < 2000
        return kind
    assert sum(tensor.bytes for tensor in opened.stored.values()) <= len(data)
    for name, tensor in opened.stored.items():
        assert tensor.file.parent == folder
        assert opened.tensor(name).nbytes == tensor.bytes
    problems = survey(folder).problems
    assert all(problem.isprintable() for problem in problems)
    return f"{len(problems)} problems"


TARGETS = (
    Target(
        "checkpoint",
        _run,
        _FOLDERS,
        ("etude.model.checkpoints.folder", "etude.model.checkpoints.tensor_file", "etude.model.checkpoints.survey"),
        _examples,
    ),
)
