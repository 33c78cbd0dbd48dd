"""A network with a longer context is still the one that was loaded."""

from pathlib import Path

import torch

from etude.model import Transformer, config_from_recipe
from etude.pretrain.long import _extended
from etude.recipe.model import ModelRecipe


def test_it_keeps_its_weights_and_where_it_came_from() -> None:
    before = Transformer(config_from_recipe(ModelRecipe(hidden_size=16, num_hidden_layers=1), 32))
    before.origin = Path("checkpoint")
    longer = _extended(before, 4, None)
    assert longer.origin == before.origin, "what travels beside the network is read from there"
    assert longer.config.max_position_embeddings == 4 * before.config.max_position_embeddings
    assert all(torch.equal(tensor, longer.state_dict()[name]) for name, tensor in before.state_dict().items())
