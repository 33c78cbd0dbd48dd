"""The modes in which the benchmark `attacks` tries everything: who runs it, below what, and on which kernel.

Each mode is a process of its own, which opens its backend, runs all attacks and prints the outcomes as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import _pytest.outcomes
from tests.sandbox.as_nobody import run_as_nobody
from tests.sandbox.oci_engine import Docker, OwnEngine, Podman, own_engine
from tests.sandbox.uml import SYSTEMD_SCOPE, needs_uml, run_in_uml

from etude.sandbox import EmbeddedSandboxes, OciSandboxes, Sandboxes, SandboxUnavailable, temporary_store
from etude.sandbox.attacks import ATTACKS, Outcome, run_attacks
from etude.sandbox.modes import MODES as FOLDER_MODES
from etude.sandbox.modes import open_mode

SOURCE = Path(__file__).resolve().parent.parent
_SECONDS = 3600.0
_FIND = "import sys, tests; sys.path.append(f'{list(tests.__path__)[0]}/../benchmarks')"
"""Lets Python import what lies beside this file, wherever the repository is shown to an ordinary user."""
_NO_CGROUPS = 'umount --recursive --lazy /sys/fs/cgroup; exec "$@"'


class NotHere(Exception):
    """This host or user cannot have the mode; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    opens: Callable[[Path], contextlib.AbstractContextManager[Sandboxes]]
    """Opens the backend, in the mode's own process."""
    starts: Callable[[list[str]], str]
    """Runs this file with these arguments as the mode's user; returns what it printed."""
    slow: bool = False
    """Boxes or system calls take ten times as long, so cheats are tried in one environment alone."""


# -- backends


@contextlib.contextmanager
def _embedded(folder: Path) -> Iterator[Sandboxes]:
    yield EmbeddedSandboxes(folder)


def _folders(name: str) -> Callable[[Path], contextlib.AbstractContextManager[Sandboxes]]:
    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Sandboxes]:
        yield open_mode(name, folder)

    return opened


def _engine(kind: type[OwnEngine], runtime: str = "") -> Callable[[Path], contextlib.AbstractContextManager[Sandboxes]]:
    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Sandboxes]:
        if missing := kind.missing():
            raise NotHere(f"{kind.kind} needs {missing}")
        with own_engine(kind) as engine:
            yield OciSandboxes(folder, endpoint=engine.endpoint, runtime=runtime)

    return opened


@contextlib.contextmanager
def _fleet(folder: Path) -> Iterator[Sandboxes]:
    from tests.sandbox.fleet.test_contract import OwnFleet

    yield OwnFleet(folder)


# -- users and kernels


def _command(words: list[str]) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), *words]


def _environment() -> dict[str, str]:
    paths = [str(SOURCE / "src"), str(SOURCE)]
    return {**os.environ, "PYTHONPATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1"}


def _run(command: list[str]) -> str:
    done = subprocess.run(command, env=_environment(), stdout=subprocess.PIPE, text=True, check=False, timeout=_SECONDS)
    return done.stdout


def _require_root() -> None:
    if os.geteuid() != 0:
        raise NotHere("needs root")


def _as_root(words: list[str]) -> str:
    _require_root()
    return _run(_command(words))


def _without_cgroups(words: list[str]) -> str:
    _require_root()
    return _run(["unshare", "--mount", "--propagation", "private", "sh", "-c", _NO_CGROUPS, "sh", *_command(words)])


def _as_nobody(words: list[str], *, lend_ids: bool = False) -> str:
    if os.geteuid() != 0:
        return _run(_command(words))
    code = f"{_FIND}; from _attack_modes import main; main({words!r})"
    try:
        done = run_as_nobody(["-c", code], [], timeout=_SECONDS, lend_ids=lend_ids)
    except _pytest.outcomes.Skipped as reason:
        raise NotHere(str(reason)) from None
    if not done.stdout.strip():
        raise NotHere(done.stderr.strip()[-300:])
    return done.stdout


def _with_ids(words: list[str]) -> str:
    _require_root()
    return _as_nobody(words, lend_ids=True)


def _in_uml(words: list[str], *, before: str = "") -> str:
    _require_uml()
    paths = f"PYTHONPATH={SOURCE / 'src'}:{SOURCE}"
    return run_in_uml(f"{before}\nexport {paths}\n{shlex.join(_command(words))}", timeout=_SECONDS).said


def _in_uml_as_nobody(words: list[str]) -> str:
    _require_uml()
    paths = f"PYTHONPATH={SOURCE / 'src'}:{SOURCE}"
    code = f"{_FIND}; from _attack_modes import _as_nobody; print(_as_nobody({words!r}))"
    command = shlex.join([sys.executable, "-c", code])
    return run_in_uml(f"{SYSTEMD_SCOPE}\nexport {paths}\n{command}", timeout=_SECONDS).said


def _require_uml() -> None:
    if needs_uml.args[0]:
        raise NotHere(needs_uml.kwargs["reason"])


MODES = {
    mode.name: mode
    for mode in (
        Mode("root", _embedded, _as_root),
        Mode("root-no-cgroups", _embedded, _without_cgroups),
        Mode("root-cgroup2", _embedded, _in_uml, slow=True),
        Mode("subuid", _embedded, _with_ids),
        Mode("user", _embedded, _as_nobody),
        Mode("user-cgroup2", _embedded, _in_uml_as_nobody, slow=True),
        *(Mode(name, _folders(name), _as_nobody) for name in FOLDER_MODES),
        Mode("podman", _engine(Podman), _as_root, slow=True),
        Mode("podman-rootless", _engine(Podman), _with_ids, slow=True),
        Mode("docker", _engine(Docker), _as_root, slow=True),
        Mode("fleet", _fleet, _as_root),
    )
}


def outcomes_of(mode: str, races: int, attacks: list[str], *, cheats: bool) -> list[Outcome]:
    """Run the mode in a process of its own. Raise NotHere if this host cannot have it."""
    amount = ("one" if MODES[mode].slow else "all") if cheats else ""
    words = [mode, str(races), ",".join(attacks), amount]
    said = MODES[mode].starts(words)
    lines = [line for line in said.splitlines() if line.startswith('{"')]
    if not lines:
        raise RuntimeError(f"mode {mode} printed no outcomes: {said[-3000:]}")
    found = json.loads(lines[-1])
    if "missing" in found:
        raise NotHere(found["missing"])
    return [
        Outcome(**{**each, "breaches": tuple(each["breaches"]), "lacks": tuple(each["lacks"])})
        for each in found["outcomes"]
    ]


# -- a mode's own process


async def _try_all(sandboxes: Sandboxes, folder: Path, races: int, attacks: list[str], cheats: str) -> list[Outcome]:
    """`cheats`: "all" (an environment of each kind), "one", or none if empty."""
    try:
        await sandboxes.add_image({"a": b""})  # The fleet opens, and knows its features, at its first request.
        chosen = [ATTACKS[name] for name in attacks] if attacks else list(ATTACKS.values())
        found = await run_attacks(sandboxes, chosen, races=races, progress=lambda made: _say(str(made)))
        if cheats:
            from _attack_cheats import try_all

            found += await try_all(sandboxes, folder / "tasks", _say, one=cheats == "one")
        return found
    finally:
        await sandboxes.close()


def _say(text: str) -> None:
    if os.environ.get("ATTACKS_SAY"):
        print(text[:600], file=sys.stderr, flush=True)


def main(words: list[str]) -> None:
    name, races, attacks, cheats = words
    chosen = [each for each in attacks.split(",") if each]
    with temporary_store("etude-attacks-") as folder:
        try:
            with MODES[name].opens(folder / "boxes") as sandboxes:
                found = asyncio.run(_try_all(sandboxes, folder, int(races), chosen, cheats))
        except (NotHere, SandboxUnavailable) as reason:
            print(json.dumps({"missing": str(reason)}))
            return
    print(json.dumps({"outcomes": [dataclasses.asdict(each) for each in found]}))


if __name__ == "__main__":
    main(sys.argv[1:])
