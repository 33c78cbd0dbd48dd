"""What every kind of attention has in common: the part of a layer in which a token reads what earlier tokens left."""

from __future__ import annotations

from torch import Tensor, nn

from etude.model.attend import Mask
from etude.model.pieces import Packed
from etude.model.rope import Rotation
from etude.model.step import LayerStep

Context = Mask | Packed | LayerStep
"""What a token attends to: keys of the same pass (Mask, Packed), or those in the cache (LayerStep)."""


class Attention(nn.Module):
    """Attention of one layer. A kind of attention is a subclass, with published parameter names.

    It must compute the same function for every kind of context, and with `Packed` the same bits as with a `LayerStep`
    that has pieces.
    """

    scale: float
    """Factor of the attention scores."""
    invariant = False
    """Whether to compute batch-invariantly: the result of a token then does not depend on the rest of its batch."""

    def forward(self, x_btd: Tensor, rotation: Rotation, context: Context) -> Tensor:
        """Return what is added to the residual stream, given the normed residual stream."""
        raise NotImplementedError
