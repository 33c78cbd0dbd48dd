from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.vllm.networks import SHAPES

from etude.engine.vllm.replica import Replica, sums_of
from etude.model import Transformer, read_config, save_hf
from etude.model.checkpoints.slots import slots_of
from etude.weights.torch_bridge import from_state_dict, to_torch

MODEL = Transformer(read_config(SHAPES["qwen3_moe"])).initialise(0)
SLOTS = slots_of(MODEL)
TENSORS = from_state_dict(MODEL.swapped_state())


@given(st.sets(st.sampled_from(sorted(TENSORS))))
def test_a_group_is_everything_of_a_layer_and_has_what_changed(changed):
    replica = Replica(1, TENSORS, sums_of(TENSORS), SLOTS)
    loaded = {name: ("other",) if name in changed else total for name, total in replica.sums.items()}
    sent = [[row["name"] for row in group] for group in replica.groups(loaded)]
    replica.close()
    everything = [name for group in sent for name in group]
    assert len(everything) == len(set(everything))
    assert set(everything) >= changed
    for group in sent:
        layers = {name.split(".")[2] for name in group if ".layers." in name}
        assert len(group) == 1 if not layers else len(layers) == 1
        if layers:
            assert set(group) == {name for name in SLOTS if f".layers.{min(layers)}." in name}
        assert changed & set(group)


def test_its_rows_are_the_published_tensors(tmp_path):
    from safetensors.torch import load_file

    save_hf(MODEL, tmp_path)
    published = load_file(tmp_path / "model.safetensors")
    replica = Replica(1, TENSORS, sums_of(TENSORS), SLOTS)
    raw = Path(replica.path).read_bytes()
    rows = {row["name"]: row for group in replica.groups({}) for row in group}
    assert rows.keys() == published.keys()
    for name, row in rows.items():
        found = np.frombuffer(raw[row["offset"] : row["offset"] + row["length"]], np.float32).reshape(row["shape"])
        np.testing.assert_array_equal(found, published[name].numpy(), err_msg=name)
    for name, stacked in MODEL.state_dict().items():
        assert torch.equal(to_torch(replica.tensors[name]), stacked), name
    replica.close()
