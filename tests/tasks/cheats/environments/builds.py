"""The hidden products of environments that ask for a build (a script, a CI workflow, a Dockerfile): sound and broken
ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from .micro import Micro


def build_environments() -> list[Micro]:
    """Each with what must be found of the built text, which joins src/*.txt."""
    return [
        _built("script-build", lambda text: {"artifacts": {"dist/all.txt": {"text": text}}}),
        _built("workflow-check", lambda text: {}),
        _built(
            "image-build",
            lambda text: {
                "folders": {"/srv/made": {"all.txt": text}},
                "answers": [{"command": ["cat", "all.txt"], "prints": text}],
            },
        ),
    ]


def _built(name: str, looked_at: Callable[[str], dict[str, object]]) -> Micro:
    micro = Micro.read(name)
    product = {path: text for path, text in micro.before.items() if path != micro.target}

    def sound(name: str, **files: str) -> dict[str, object]:
        there = {**product, **{f"src/{stem}.txt": text for stem, text in files.items()}}
        text = "".join(there[path] for path in sorted(there) if path.startswith("src/"))
        added = {path: text for path, text in there.items() if product.get(path) != text}
        return {"name": name, "succeeds": True, "files": added, **looked_at(text)}

    def broken(name: str, files: dict[str, str | None]) -> dict[str, object]:
        return {"name": name, "succeeds": False, "files": files}

    products = [
        sound("as it is"),
        sound("three files", c="third\n"),
        sound("another order", a2="between\n", b="changed\n"),
        sound("long", **{f"p{number}": f"line {number}\n" * 20 for number in range(7)}),
        broken("no version", {"VERSION": "soon\n"}),
        broken("half a version", {"VERSION": "1.4\n"}),
        broken("work left", {"src/b.txt": "TODO: write this\n"}),
        broken("nothing", {"src/a.txt": None, "src/b.txt": None}),
    ]
    return replace(micro, hidden={"tests/products.json": json.dumps(products, indent=1).encode()})
