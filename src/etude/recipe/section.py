"""The base class of all recipe sections: unknown keys are refused, values are frozen, types are strict.

A section in TOML may be partial. The fields that `[rl.optimizer]` leaves out, for example, have the values of the
optimizer that is the default in `rl`. These may differ from the defaults of the optimizer's own class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # "5" is not 5, and true is not 1
        allow_inf_nan=False,  # TOML allows them, but no field has a use for them
        validate_default=True,
    )

    LATER: ClassVar[frozenset[str]] = frozenset()
    """Names of the section's fields that were added later, whose default is the earlier behaviour. `made_from`, by
    which recipes are compared, leaves them out if they have their default, so that older runs still resume."""

    FITTING: ClassVar[frozenset[str]] = frozenset()
    """Names of the section's fields that only decide how work fits into memory. `made_from` gives them their default,
    so that a run which ran out of memory resumes with other values."""

    COMPARED: ClassVar[frozenset[str]] = frozenset()
    """Names of those among FITTING whose values were compared in earlier versions."""

    def made_from(self, *, earlier: bool = False) -> dict[str, Any]:
        """Return the section's values for comparison: two runs, or two sessions of one run, used the same recipe if
        these values are equal. With `earlier`, they are those that earlier versions compared, and left digests of."""
        values = self.model_dump(mode="json", by_alias=True)
        for name, about in type(self).model_fields.items():
            value, written = getattr(self, name), about.alias or name
            if name in self.FITTING and not (earlier and name in self.COMPARED):
                value = values[written] = about.default
            if name in self.LATER and value == about.default:
                del values[written]
            elif isinstance(value, Section):
                values[written] = value.made_from(earlier=earlier)
            elif isinstance(value, Mapping):
                values[written] = {
                    key: one.made_from(earlier=earlier) if isinstance(one, Section) else one
                    for key, one in value.items()
                }
        return values

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Complete partial nested sections with this section's defaults for them: `rl.optimizer.lr = 1e-4` changes only
        the learning rate of RL's default optimizer."""
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
