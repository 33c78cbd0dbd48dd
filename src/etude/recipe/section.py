"""What every section of a recipe shares: unknown keys are refused, values are frozen, fields are documented, and what a
table leaves out has the default of the place where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # "5" is not 5, and true is not 1
        allow_inf_nan=False,  # TOML has them, sense has not
        use_attribute_docstrings=True,
        validate_default=True,
    )

    LATER: ClassVar[frozenset[str]] = frozenset()
    """Fields that came when runs had been made without them, and whose default means what was done then: at that
    default they are no part of what a stage was made from, so such runs go on."""

    def made_from(self) -> dict[str, Any]:
        """What counts when two runs, or two sessions of one, are asked whether they were made alike."""
        values = self.model_dump(mode="json", by_alias=True)
        for name, about in type(self).model_fields.items():
            value, written = getattr(self, name), about.alias or name
            if name in self.LATER and value == about.default:
                del values[written]
            elif isinstance(value, Section):
                values[written] = value.made_from()
        return values

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """`rl.optimizer.lr = 1e-4` changes the rate and nothing else of the optimizer that `rl` has by default."""
        if not isinstance(values, dict):
            return values
        defaults = {field.alias or name: field.default for name, field in cls.model_fields.items()}
        return {name: _over(defaults.get(name), value) for name, value in values.items()}


def _over(default: Any, given: Any) -> Any:
    if not isinstance(default, Section) or not isinstance(given, Mapping):
        return given
    fields = {field.alias or name: getattr(default, name) for name, field in type(default).model_fields.items()}
    plain = default.model_dump(by_alias=True)
    return {**plain, **{name: _over(fields.get(name), value) for name, value in given.items()}}
