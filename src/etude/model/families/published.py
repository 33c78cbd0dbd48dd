"""`Published`, the settings of a published config.json, and what all families read in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from etude.model.config import Rope, Yarn
from etude.model.errors import UnsupportedCheckpoint


@dataclass(frozen=True, slots=True)
class Published:
    data: Mapping[str, Any]

    def require(self, *names: str) -> None:
        """Raise UnsupportedCheckpoint, which names all settings that are missing, if any of these is."""
        if missing := [name for name in names if self.data.get(name) is None]:
            raise UnsupportedCheckpoint(f"config.json lacks {', '.join(missing)}")

    def require_values(self, expected: Mapping[str, Any]) -> None:
        """Raise UnsupportedCheckpoint if a setting is present and has another value than the only one implemented."""
        for name, value in expected.items():
            if self.data.get(name, value) != value:
                raise UnsupportedCheckpoint(f"{name} is {self.data[name]!r}; only {value!r} is implemented")

    def rope(self) -> Rope:
        rope = dict(self.data.get("rope_parameters") or self.data.get("rope_scaling") or {})
        theta = rope.get("rope_theta", self.data.get("rope_theta"))
        if theta is None:
            raise UnsupportedCheckpoint("config.json lacks rope_theta")
        return Rope(theta, _read_scaling(rope))


def write_rope(rope: Rope) -> dict[str, Any]:
    """Return the published settings of the rotary embedding."""
    scaling = None
    if rope.scaling is not None:
        scaling = {"type": "yarn", **{f.name: getattr(rope.scaling, f.name) for f in fields(rope.scaling)}}
    return {"rope_theta": rope.theta, "rope_scaling": scaling}


def _read_scaling(rope: Mapping[str, Any]) -> Yarn | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "yarn":
        raise UnsupportedCheckpoint(f"rope scaling {kind!r} is not implemented; expected 'yarn' or none")
    for name in ("attention_factor", "truncate"):
        if rope.get(name, True) not in (None, True):
            raise UnsupportedCheckpoint(f"rope scaling with {name} = {rope[name]!r} is not implemented")
    try:
        return Yarn(
            factor=float(rope["factor"]),
            original_max_position_embeddings=int(rope["original_max_position_embeddings"]),
            beta_fast=float(rope.get("beta_fast") or 32),
            beta_slow=float(rope.get("beta_slow") or 1),
            mscale=float(rope.get("mscale") or 0),
            mscale_all_dim=float(rope.get("mscale_all_dim") or 0),
        )
    except KeyError as missing:
        raise UnsupportedCheckpoint(f"rope scaling lacks {missing}") from missing
