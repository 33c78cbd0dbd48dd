"""Renders conversations by the chat template of a model's folder, for comparison with our own formats."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.text import template_child
from etude.text.pretrained import token_name
from etude.text.vocabulary import TokenizerError

_CPU_SECONDS = 5
_MEMORY = 1 << 30
_WALL_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template and the names of the special tokens that it may use."""

    text: str
    names: Mapping[str, str]
    source: Path

    def render(self, conversations: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """Return the text of each conversation, given as the template's variables; None where the template refuses it.
        Raises TokenizerError if the template does not end or renders no conversation at all."""
        given = {
            "template": self.text,
            "conversations": [{**self.names, **values} for values in conversations],
            "cpu_seconds": _CPU_SECONDS,
            "memory": _MEMORY,
        }
        command = [sys.executable, "-P", template_child.__file__]
        try:
            child = subprocess.run(
                command, input=json.dumps(given), capture_output=True, text=True, timeout=_WALL_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise self._problem(f"did not end within {_WALL_SECONDS} s") from None
        if child.returncode < 0:
            raise self._problem(f"did not end within {_CPU_SECONDS} s")
        if child.returncode:
            said = child.stderr.strip().rpartition("\n")[2] or f"exit code {child.returncode}"
            raise self._problem(f"cannot be rendered ({said})")
        results = json.loads(child.stdout)
        if all("problem" in result for result in results):
            raise self._problem(f"cannot be rendered ({' '.join(results[0]['problem'].split())[:200]})")
        return [result.get("text") for result in results]

    def _problem(self, what: str) -> TokenizerError:
        return TokenizerError(f"the chat template of {self.source} {what}: name the chat format (harness.format)")


def read_template(folder: Path) -> Template | None:
    """Return the chat template of a model's folder; None if it has none. Raises TokenizerError."""
    settings, alone = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    try:
        values = json.loads(settings.read_text(encoding="utf-8")) if settings.exists() else {}
        text = alone.read_text(encoding="utf-8") if alone.exists() else values.get("chat_template")
    except (OSError, ValueError, AttributeError) as error:
        raise TokenizerError(f"the chat template of {folder} cannot be read: {error}") from error
    if isinstance(text, list):  # several, by name
        named = {one["name"]: one["template"] for one in text}
        text = named.get("tool_use") or named.get("default")
    if not text:
        return None
    names = {key: token_name(values[key]) for key in values if key.endswith("_token") and values[key] is not None}
    return Template(str(text), {key: name for key, name in names.items() if name}, folder)
