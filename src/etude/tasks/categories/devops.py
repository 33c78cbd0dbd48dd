"""DevOps: a package without a build; the script accepts what is sound, refuses what is broken, and leaves artifacts."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template

from etude.tasks.categories.alterations import altered
from etude.tasks.categories.base import CategorySource, Draft
from etude.tasks.categories.packages import PYTHON, Package, kins, package_of, written_otherwise
from etude.tasks.categories.scripts import MANIFESTS, RULES, Plan, makefile, shell_script, two_files
from etude.tasks.verifiers.script import FILE

_INSTRUCTION = Template("""Write $where, run as `$command` in the workspace, which has nothing but python3 and the \
usual programs. It must fail, with an exit code other than 0, if
- a test below tests/ fails, or there is none (they are unittest's);
- a .py file of $name/, also one that no test imports, is no valid Python;
- VERSION and `__version__` of $name/__init__.py differ;
- $rule.
Else it succeeds, and leaves dist/$name-VERSION.$archive (VERSION as the file says) with all .py files of $name/ as \
$name/..., nothing else, and dist/MANIFEST: $manifest. What was in dist/ before does not matter.""")


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A product, sound or broken, as changes to the workspace."""

    name: str
    files: Mapping[str, bytes | None]
    succeeds: bool


class DevopsSource(CategorySource):
    name = "devops"
    version = 1
    category = "devops"

    def kins(self) -> Sequence[str]:
        return kins(*PYTHON)

    def draft(self, kin: str, rng: random.Random) -> Draft:
        package = package_of(kin)
        plan = Plan(
            package.name,
            rule=rng.choice(list(RULES)),
            archive=rng.choice(("tar.gz", "zip")),
            manifest=rng.choice(list(MANIFESTS)),
        )
        version = f"{rng.randint(0, 3)}.{rng.randint(0, 20)}.{rng.randint(0, 9)}"
        base = {**versioned(package.files, package.name, version), **package.tests}
        write, command, where = rng.choice(_KINDS)
        products = [_row(drawn, base, plan) for drawn in _products(package, base, plan, rng)]
        return Draft(
            instruction=_INSTRUCTION.substitute(
                where=where,
                command=" ".join(command),
                name=package.name,
                rule=RULES[plan.rule].asked,
                archive=plan.archive,
                manifest=MANIFESTS[plan.manifest].asked,
            ),
            kind=f"{command[0]}-{plan.rule}",
            verifier={"type": "script", "command": command, "writes": ["build.sh", "Makefile", "ci/*"], "seconds": 20},
            before=base,
            solved={**base, **write(plan)},
            other={**base, **two_files(plan, command)},
            hidden={FILE: json.dumps(products, indent=1).encode()},
            seconds=300.0,
        )


_KINDS = (
    (shell_script, ["sh", "build.sh"], "build.sh"),
    (makefile, ["make", "dist"], "a Makefile"),
)


def versioned(files: Mapping[str, bytes], name: str, version: str) -> dict[str, bytes]:
    init = files[f"{name}/__init__.py"] + f'\n__version__ = "{version}"\n'.encode()
    return {**files, f"{name}/__init__.py": init, "VERSION": f"{version}\n".encode()}


def _products(package: Package, base: Mapping[str, bytes], plan: Plan, rng: random.Random) -> list[_Drawn]:
    name = package.name
    init, extra, suite = f"{name}/__init__.py", f"{name}/notes.py", f"tests/test_{name}.py"
    other = f"9.{rng.randint(0, 40)}.{rng.randint(1, 40)}"
    bumped = versioned(package.files, name, other)
    rewritten = {path: data for path, data in written_otherwise(package, rng).items() if path != init}
    damage, second = rng.sample(package.damages, 2)
    test = rng.choice(package.ids).rpartition(".")[2]
    return [
        _Drawn("as it is", {}, True),
        _Drawn("a newer version", {init: bumped[init], "VERSION": bumped["VERSION"]}, True),
        _Drawn("written otherwise", rewritten, True),
        _Drawn("one more module", {extra: b'"""Notes."""\n\nLIMIT = 12\n'}, True),
        _Drawn("a bug", altered(package.files, [damage.alteration]) | {init: base[init]}, False),
        _Drawn("another bug", altered(package.files, [second.alteration]) | {init: base[init]}, False),
        _Drawn("no tests", {suite: None}, False),
        _Drawn("a failing test", {suite: base[suite].replace(f"def {test}(self):\n".encode(), _failing(test))}, False),
        _Drawn("no Python", {extra: b"def limit(:\n    return 12\n"}, False),
        _Drawn("two versions", {"VERSION": f"{other}\n".encode()}, False),
        _Drawn("against the rule", {extra: RULES[plan.rule].broken.encode()}, False),
    ]


def _failing(test: str) -> bytes:
    return f"def {test}(self):\n        self.fail('for now')\n".encode()


def _row(drawn: _Drawn, base: Mapping[str, bytes], plan: Plan) -> dict[str, object]:
    files = {path: data for path, data in drawn.files.items() if base.get(path) != data}
    row: dict[str, object] = {
        "name": drawn.name,
        "succeeds": drawn.succeeds,
        "files": {path: None if data is None else data.decode() for path, data in files.items()},
    }
    if drawn.succeeds:
        there = {path: data for path, data in {**base, **files}.items() if data is not None}
        row["artifacts"] = plan.artifacts(there)
    return row
