"""Stores the permission rules that users asked to remember, for all folders in one file.

A rule is stored only if it is an allow rule and the user asked for it when answering a question. The file is readable
only by its owner.
"""

from __future__ import annotations

import json
from pathlib import Path

from etude.harness.permissions import PermissionsError, Rule, rules_of
from etude.journal.files import disk_problem, write_atomically

FORMAT = "etude-permissions/1"


class RememberedRules:
    def __init__(self, file: Path) -> None:
        self._file = file

    def of(self, folder: Path) -> list[Rule]:
        """Return the rules stored for a folder. Raises PermissionsError if the file cannot be read."""
        return rules_of(self._read().get(str(folder.resolve()), []))

    def add(self, folder: Path, rules: list[Rule]) -> None:
        known = self._read()
        texts = known.setdefault(str(folder.resolve()), [])
        texts += [str(rule) for rule in rules if str(rule) not in texts]
        data = json.dumps({"format": FORMAT, "folders": known}, indent=1).encode()
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self._file, data)
            self._file.chmod(0o600)
        except OSError as error:
            raise PermissionsError(f"cannot store a rule in {self._file}: {disk_problem(error)}") from error

    def _read(self) -> dict[str, list[str]]:
        try:
            found = json.loads(self._file.read_bytes())
            if found["format"] != FORMAT:
                raise ValueError(f"its format is {found['format']!r}")
            return {str(folder): [str(text) for text in texts] for folder, texts in found["folders"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PermissionsError(f"{self._file} cannot be read ({error}): repair or delete it") from error
