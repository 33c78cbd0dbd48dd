"""`Published`, the settings of a published config.json, and what all families read in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from etude.model.errors import UnsupportedCheckpoint
from etude.model.rope import LinearScaling, Llama3Scaling, Rope, Yarn

_LARGEST = 1 << 40
_FRACTIONS = ("rms_norm_eps", "routed_scaling_factor", "initializer_range", "router_aux_loss_coef")
"""Numbers that need not be whole."""


@dataclass(frozen=True, slots=True)
class Published:
    data: Mapping[str, Any]

    def require(self, *names: str) -> None:
        """Raise UnsupportedCheckpoint unless all these settings are there, and are numbers that a network can have."""
        if missing := [name for name in names if self.data.get(name) is None]:
            raise UnsupportedCheckpoint(f"config.json lacks {', '.join(missing)}")
        for name in names:
            value = self.data[name]
            kinds = (int, float) if name in _FRACTIONS else (int,)
            if type(value) not in kinds or not 0 <= value < _LARGEST:
                raise UnsupportedCheckpoint(
                    f"{name} is {str(value)[:40]!r}, which is no number that a network can have"
                )

    def require_values(self, expected: Mapping[str, Any]) -> None:
        """Raise UnsupportedCheckpoint if a setting is present and has another value than the only one implemented."""
        for name, value in expected.items():
            if self.data.get(name, value) != value:
                raise UnsupportedCheckpoint(f"{name} is {self.data[name]!r}; only {value!r} is implemented")

    def number(self, *names: str, default: float) -> Any:
        """Return the first of these settings that is there, which must be a number; `default` if none is."""
        for name in names:
            if self.data.get(name) is not None:
                self.require(name)
                return self.data[name]
        return default

    def rope(self, *, interleaved: bool, theta: float | None = None) -> Rope:
        """Read the rotary embedding; `theta` is the family's base for folders that name none."""
        rope = dict(self.data.get("rope_parameters") or self.data.get("rope_scaling") or {})
        theta = rope.get("rope_theta", self.data.get("rope_theta", theta))
        if theta is None:
            raise UnsupportedCheckpoint("config.json lacks rope_theta")
        if type(theta) not in (int, float) or not theta > 0:
            raise UnsupportedCheckpoint(f"rope_theta is {str(theta)[:40]!r}, which is no base of frequencies")
        return Rope(theta, _read_scaling(rope), interleaved)


def write_rope(rope: Rope) -> dict[str, Any]:
    """Return the published settings of the rotary embedding, but for the order of its pairs."""
    if rope.scaling is None:
        return {"rope_theta": rope.theta, "rope_scaling": None}
    scaling = {"type": _KINDS[type(rope.scaling)]}
    for setting in fields(rope.scaling):
        value = getattr(rope.scaling, setting.name)
        if setting.name not in _RARE or value != setting.default:
            scaling[setting.name] = value
    return {"rope_theta": rope.theta, "rope_scaling": scaling}


_KINDS = {Yarn: "yarn", Llama3Scaling: "llama3", LinearScaling: "linear"}
_RARE = ("attention_factor", "truncate")
"""Settings that few readers know. They are written only where they differ from the default."""


def _read_scaling(rope: Mapping[str, Any]) -> Yarn | Llama3Scaling | LinearScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind not in _KINDS.values():
        raise UnsupportedCheckpoint(f"rope scaling {kind!r} is not implemented; known are {', '.join(_KINDS.values())}")
    try:
        factor = float(rope["factor"])
        if kind == "linear":
            return LinearScaling(factor)
        original = int(rope["original_max_position_embeddings"])
        if kind == "llama3":
            return Llama3Scaling(factor, original, float(rope["low_freq_factor"]), float(rope["high_freq_factor"]))
        attention_factor = rope.get("attention_factor")
        return Yarn(
            factor=factor,
            original_max_position_embeddings=original,
            beta_fast=float(rope.get("beta_fast") or 32),
            beta_slow=float(rope.get("beta_slow") or 1),
            mscale=float(rope.get("mscale") or 0),
            mscale_all_dim=float(rope.get("mscale_all_dim") or 0),
            attention_factor=None if attention_factor is None else float(attention_factor),
            truncate=rope.get("truncate") in (None, True),
        )
    except KeyError as missing:
        raise UnsupportedCheckpoint(f"rope scaling lacks {missing}") from missing
