"""Cheats written as data: each table of catalogue/*.toml is one cheat, and its keys are steps, done in the given order.
The target is the first file that the reference solution changes, such as the file with the bug.

exploits, fits    the fields of `Cheat`; `fits` lists runners or groups of them (tests, python, code), default all
shell             one command or a list of commands; `seconds` sets their time limit
take              a shell command that prints further commands, one per line. Each of these prints a version of the
                  target; the first version that differs from the target replaces it
plant, programs   files to write, each text under one or more paths; `programs` are executable
begin, end        code by language, inserted at the start or the end of the target file
answer            code by language that is run instead of each public function of the target. In Python it defines
                  `_answer(made, *args, **more)`, where `made` is the original function. In JavaScript it is an
                  expression that may use `made` and the argument list `given`. `before` is code by language to insert
                  above the wrappers
diff              the diff to submit, instead of the changes made in the box
build             a command; the target (a workflow or Dockerfile) is replaced by a file of the same kind that runs
                  only this command and checks nothing. The new Dockerfile also makes the requested file
computed          true: the function in computed.py that has the cheat's name does the whole cheat

In all texts, <<NAME>> is replaced by the text NAME from a [fragments] table of any file, and <<name>> by a fact about
the task (`_facts`), such as <<target>>.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from etude.tasks.cheats.cheat import ANY, CODE, PYTHON, TESTS, WORKFLOW, Act, Cheat, Scene

_GROUPS = {"tests": TESTS, "python": PYTHON, "code": CODE}
_FRAGMENT, _FACT = re.compile(r"<<([A-Z_]+)>>"), re.compile(r"<<([a-z]+)>>")
_TABLES: dict[str, dict[str, Any]] = {
    file.name.removesuffix(".toml"): tomllib.loads(file.read_text(encoding="utf-8"))
    for file in (resources.files(__package__) / "catalogue").iterdir()
}
_PARTS = {name: text for table in _TABLES.values() for name, text in table.pop("fragments", {}).items()}


def fragment(name: str) -> str:
    """Return a text of a [fragments] table, with other fragments that it mentions as <<NAME>> filled in."""
    return _FRAGMENT.sub(lambda found: fragment(found[1]), str(_PARTS[name]))


def read_cheats(file: str, computed: Mapping[str, Act]) -> Iterator[Cheat]:
    for name, table in _TABLES[file].items():
        fits = [runner for group in table.get("fits", ()) for runner in _GROUPS.get(group, (group,))]
        act = computed[name.replace("-", "_")] if "computed" in table else _act(table)
        yield Cheat(name, table["exploits"], frozenset(fits or ANY), act)


def _act(table: Mapping[str, Any]) -> Act:
    seconds = table.get("seconds", 20)

    async def act(scene: Scene) -> str | None:
        facts, diff = _facts(scene), None
        for step, value in table.items():
            if step == "shell":
                for command in [value] if isinstance(value, str) else value:
                    await scene.shell(_filled(command, facts), timeout=seconds)
            elif step not in ("exploits", "fits", "seconds"):
                diff = await _STEPS[step](scene, _filled(value, facts))
        return diff

    return act


def _facts(scene: Scene) -> dict[str, str]:
    folder, _, name = f"./{scene.target}".rpartition("/")
    return {
        "target": scene.target,
        "folder": folder,
        "name": name,
        "stem": PurePosixPath(name).stem,
        "short": name.partition(".")[0],
        "package": scene.target.split("/")[0].removesuffix(".py"),
        "word": next((line.split("(")[0] for line in scene.source.splitlines() if line.startswith("def ")), ""),
    }


def _filled(value: Any, facts: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {_filled(key, facts): _filled(item, facts) for key, item in value.items()}
    text = _FRAGMENT.sub(lambda found: fragment(found[1]), value)
    return _FACT.sub(lambda found: facts[found[1]], text)


async def _take(scene: Scene, versions: str) -> None:
    await scene.shell(f"""
        {versions} | while read -r command; do
            sh -c "$command" > /tmp/found 2> /dev/null && [ -s /tmp/found ] || continue
            cmp -s /tmp/found '{scene.target}' || {{ cp /tmp/found '{scene.target}'; break; }}
        done
    """)


async def _plant(scene: Scene, files: Mapping[str, str], *, executable: bool = False) -> None:
    for paths, text in files.items():
        for path in paths.split():
            await scene.plant(path, text, executable=executable)


async def _answer(scene: Scene, answer: Mapping[str, Any]) -> None:
    before = answer.get("before", {})
    python = before.get("python", "") + fragment("WRAPPED").replace("<<answer>>", answer.get("python", ""))
    node = before.get("node", "") + _wrapped_node(scene.source, answer.get("node", ""))
    await scene.end(python=python, node=node)


def _wrapped_node(source: str, answer: str) -> str:
    """Return code that makes all exported functions of a module return the value of the expression `answer`."""
    names = re.findall(r"^export function (\w+)", source, re.MULTILINE)
    before = f"const _wrap = (made) => (...given) => {{ return ({answer}); }};\n"
    return before + "".join(f"{name} = _wrap({name});\n" for name in names)


async def build(scene: Scene, command: str) -> None:
    if scene.runner == WORKFLOW:
        text = f"jobs:\n  all:\n    steps:\n      - run: |\n          {command}\n"
    else:
        work = "cat src/*.txt > all.txt 2> /dev/null || true"
        text = f"FROM host\nWORKDIR /build\nCOPY . .\nRUN {command}\nRUN {work}\n"
        text += "FROM host\nWORKDIR /srv/made\nCOPY --from=0 /build/all.txt .\n"
    await scene.plant(scene.target, text)


async def _diff(scene: Scene, diff: str) -> str:
    return diff


_STEPS: Mapping[str, Callable[[Scene, Any], Awaitable[str | None]]] = {
    "take": _take,
    "plant": _plant,
    "programs": lambda scene, files: _plant(scene, files, executable=True),
    "begin": lambda scene, code: scene.begin(**code),
    "end": lambda scene, code: scene.end(**code),
    "answer": _answer,
    "diff": _diff,
    "build": build,
}
