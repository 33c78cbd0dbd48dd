"""Draws variants of a package, called products. An agent's build is graded on them: it must succeed for the sound ones
and fail for the broken ones."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from etude.tasks.categories.alterations import altered
from etude.tasks.categories.packages import Package, written_otherwise
from etude.tasks.categories.scripts import RULES


@dataclass(frozen=True, slots=True)
class Drawn:
    """A product: a sound or broken variant of a package, as changes to the workspace."""

    name: str
    files: Mapping[str, bytes | None]
    succeeds: bool

    def over(self, base: Mapping[str, bytes]) -> dict[str, bytes]:
        return {path: data for path, data in {**base, **self.files}.items() if data is not None}

    def row(self, base: Mapping[str, bytes]) -> dict[str, object]:
        """Return the entry of this variant (product) in tests/products.json."""
        files = {path: data for path, data in self.files.items() if base.get(path) != data}
        texts = {path: None if data is None else data.decode() for path, data in files.items()}
        return {"name": self.name, "succeeds": self.succeeds, "files": texts}


def versioned(files: Mapping[str, bytes], name: str, version: str) -> dict[str, bytes]:
    init = files[f"{name}/__init__.py"] + f'\n__version__ = "{version}"\n'.encode()
    return {**files, f"{name}/__init__.py": init, "VERSION": f"{version}\n".encode()}


def draw_products(package: Package, base: Mapping[str, bytes], rule: str, rng: random.Random) -> list[Drawn]:
    """Draw the variants of a package on which a build is graded: it must succeed for four sound variants, and fail for
    seven others, each broken in a different way. `base` are the files of the workspace. One of the broken variants
    breaks the rule that `rule` names in `RULES`."""
    name = package.name
    init, extra, suite = f"{name}/__init__.py", f"{name}/notes.py", f"tests/test_{name}.py"
    other = f"9.{rng.randint(0, 40)}.{rng.randint(1, 40)}"
    bumped = versioned(package.files, name, other)
    rewritten = {path: data for path, data in written_otherwise(package, rng).items() if path != init}
    damage, second = rng.sample(package.damages, 2)
    test = rng.choice(package.ids).rpartition(".")[2]
    return [
        Drawn("as it is", {}, True),
        Drawn("a newer version", {init: bumped[init], "VERSION": bumped["VERSION"]}, True),
        Drawn("written otherwise", rewritten, True),
        Drawn("one more module", {extra: b'"""Notes."""\n\nLIMIT = 12\n'}, True),
        Drawn("a bug", altered(package.files, [damage.alteration]) | {init: base[init]}, False),
        Drawn("another bug", altered(package.files, [second.alteration]) | {init: base[init]}, False),
        Drawn("no tests", {suite: None}, False),
        Drawn("a failing test", {suite: base[suite].replace(f"def {test}(self):\n".encode(), _failing(test))}, False),
        Drawn("no Python", {extra: b"def limit(:\n    return 12\n"}, False),
        Drawn("two versions", {"VERSION": f"{other}\n".encode()}, False),
        Drawn("against the rule", {extra: RULES[rule].broken.encode()}, False),
    ]


def _failing(test: str) -> bytes:
    return f"def {test}(self):\n        self.fail('for now')\n".encode()
