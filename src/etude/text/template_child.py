"""Renders a chat template (Jinja) in a process of its own: read from stdin, written to stdout, both JSON.

A template comes with a checkpoint and may be anything: it may never end, or fill the memory. So it runs in jinja2's
sandbox, and the process limits its own CPU time and memory before it looks at the template. `rendering` starts it.
"""

from __future__ import annotations

import json
import resource
import sys
from datetime import datetime
from typing import Any

LONGEST = 1_000_000
"""Maximum number of characters of a rendered conversation."""
_NOW = datetime(2024, 7, 26)
"""The date that a template is told, so that it renders the same text every day."""


def main() -> None:
    given = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (given["cpu_seconds"], given["cpu_seconds"]))
    resource.setrlimit(resource.RLIMIT_AS, (given["memory"], given["memory"]))
    json.dump(rendered(given["template"], given["conversations"]), sys.stdout)


def rendered(template: str, conversations: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return {"text": ...} or {"problem": ...} for each conversation."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`, with which templates mark what the assistant says. It changes no text."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def tojson(
        value: object, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, **options: Any
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, **options)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = _NOW.strftime

    def result(values: dict[str, Any]) -> dict[str, str]:
        try:
            text = compiled.render(**values)
        except MemoryError:
            return {"problem": "it fills the memory"}
        except Exception as error:  # noqa: BLE001 - a template can raise anything
            return {"problem": f"{type(error).__name__}: {error}"}
        return {"text": text} if len(text) <= LONGEST else {"problem": "it does not stop writing"}

    try:
        compiled = environment.from_string(template)
    except TemplateError as error:
        return [{"problem": f"{type(error).__name__}: {error}"}] * len(conversations)
    return [result(values) for values in conversations]


if __name__ == "__main__":
    main()
