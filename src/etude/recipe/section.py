"""What every section of a recipe shares: unknown keys are refused, values are frozen, fields are documented."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # "5" is not 5, and true is not 1
        allow_inf_nan=False,  # TOML has them, sense has not
        use_attribute_docstrings=True,
        validate_default=True,
    )
