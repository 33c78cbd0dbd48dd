"""A network with a longer context is still the one that was loaded."""

from pathlib import Path

import torch

from etude.model import Transformer, config_from_recipe
from etude.recipe.model import ModelRecipe


def test_it_keeps_its_weights_and_where_it_came_from() -> None:
    model = Transformer(config_from_recipe(ModelRecipe(hidden_size=16, num_hidden_layers=1), 32)).initialise(0)
    model.origin, before = Path("checkpoint"), model.config
    anew = Transformer(before.extended(4.0))
    anew.load_state_dict(model.state_dict())
    model.rotary.turn, compiled = (lambda *given: compiled(*given)), model.rotary.turn
    turn = model.rotary.turn
    model.take_positions(anew.config)
    assert model.origin == Path("checkpoint"), "what travels beside the network is read from there"
    assert model.config.max_position_embeddings == 4 * before.max_position_embeddings
    tokens = torch.randint(32, (1, 20))
    assert torch.equal(model(tokens).logits_btv, anew(tokens).logits_btv)
    assert model.rotary.turn is turn, "what was compiled is used on"
