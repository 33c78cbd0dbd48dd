"""The modes in which the benchmark `attacks` tries everything: who runs it, below what, and on which kernel.

A process of a mode opens its backend, runs attacks and prints each outcome as a line of JSON. If it ends early, what it
did not come to is undecided: a mode that crashes is not one that this host cannot have.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _pytest.outcomes
from _attack_cheats import CLASSES as GRADERS
from _attack_cheats import try_all
from tests.sandbox.as_nobody import run_as_nobody
from tests.sandbox.oci_engine import Docker, OwnEngine, Podman, own_engine
from tests.sandbox.uml import SYSTEMD_SCOPE, needs_uml, run_in_uml

from etude.journal import code_digest, write_atomically
from etude.sandbox import EmbeddedSandboxes, OciSandboxes, Sandboxes, SandboxUnavailable, temporary_store
from etude.sandbox.attacks import ATTACKS, Outcome, cells, run_attacks
from etude.sandbox.modes import MODES as FOLDER_MODES
from etude.sandbox.modes import open_mode

SOURCE = Path(__file__).resolve().parent.parent
_SECONDS, _SECONDS_A_TRY, _SLOWER = 3600.0, 10.0, 6
"""A part may take that long, and for each try of a race; in slow modes, so many times as long."""
_BATCH = 50
"""Tries of a race in one part."""
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
    starts: Callable[[list[str], float], str]
    """Runs this file with these arguments as the mode's user, for at most so many seconds; returns what it printed."""
    slow: bool = False
    """Boxes or system calls take ten times as long, so cheats are tried in one environment alone."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one process of a mode does, so that a run of hours that was interrupted goes on at the next part."""

    name: str
    attacks: tuple[str, ...] = ()
    races: int = 0
    cheats: bool = False

    @property
    def classes(self) -> list[str]:
        graders = [each.name for each in GRADERS] if self.cheats else []
        return [*dict.fromkeys(ATTACKS[name].of.name for name in self.attacks), *graders]

    def undecided(self, why: str) -> list[Outcome]:
        return [Outcome("the mode itself", each, undecided=why) for each in self.classes]

    def seconds(self, mode: Mode) -> float:
        """Return how long the part may take in this mode."""
        tries = self.races * sum(ATTACKS[name].race for name in self.attacks)
        return (_SECONDS + tries * _SECONDS_A_TRY) * (_SLOWER if mode.slow else 1)


def parts(attacks: list[str], races: int, *, cheats: bool) -> list[Part]:
    """Return the parts of a mode: all attacks with the first tries of each race, the other tries, and the cheats."""
    found = [Part("attacks", tuple(attacks), min(races, _BATCH))]
    for name in attacks:
        begins = range(_BATCH, races, _BATCH) if ATTACKS[name].race else ()
        found += [Part(f"{name}-{begin}", (name,), min(_BATCH, races - begin)) for begin in begins]
    return [*found, *([Part("cheats", cheats=True)] if cheats else [])]


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


def _run(command: list[str], seconds: float) -> str:
    env = _environment()
    return _printed(
        lambda: subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False, timeout=seconds)
    )


def _printed(run: Callable[[], subprocess.CompletedProcess[str]]) -> str:
    """Return what a process printed, even if it took too long."""
    try:
        return run().stdout
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace")


def _require_root() -> None:
    if os.geteuid() != 0:
        raise NotHere("needs root")


def _as_root(words: list[str], seconds: float) -> str:
    _require_root()
    return _run(_command(words), seconds)


def _without_cgroups(words: list[str], seconds: float) -> str:
    _require_root()
    apart = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _NO_CGROUPS, "sh"]
    return _run([*apart, *_command(words)], seconds)


def _as_nobody(words: list[str], seconds: float, *, lend_ids: bool = False) -> str:
    if os.geteuid() != 0:
        return _run(_command(words), seconds)
    code = f"{_FIND}; from _attack_modes import main; main({words!r})"
    try:
        return _printed(lambda: run_as_nobody(["-c", code], [], timeout=seconds, lend_ids=lend_ids, stderr=None))
    except _pytest.outcomes.Skipped as reason:
        raise NotHere(str(reason)) from None


def _with_ids(words: list[str], seconds: float) -> str:
    _require_root()
    return _as_nobody(words, seconds, lend_ids=True)


def _in_uml(words: list[str], seconds: float) -> str:
    return _boot(_command(words), seconds)


def _in_uml_as_nobody(words: list[str], seconds: float) -> str:
    code = f"{_FIND}; from _attack_modes import print_as_nobody; print_as_nobody({words!r}, {seconds})"
    return _boot([sys.executable, "-c", code], seconds, before=SYSTEMD_SCOPE)


def print_as_nobody(words: list[str], seconds: float) -> None:
    try:
        print(_as_nobody(words, 0.9 * seconds))  # Before the kernel ends that it runs on.
    except NotHere as reason:
        print(json.dumps({"missing": str(reason)}))


def _boot(command: list[str], seconds: float, *, before: str = "") -> str:
    if needs_uml.args[0]:
        raise NotHere(needs_uml.kwargs["reason"])
    paths = f"PYTHONPATH={SOURCE / 'src'}:{SOURCE}"
    return run_in_uml(f"{before}\nexport {paths}\n{shlex.join(command)}", timeout=seconds).said


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


def measured(mode: str, part: Part, folder: Path) -> tuple[list[Outcome], float]:
    """Return the outcomes of a part and its seconds, from `folder` if the same sandbox and grader came to the end of it
    before."""
    key = hashlib.sha256(repr((code_digest("sandbox", "tasks"), part)).encode()).hexdigest()[:12]
    kept = folder / f"{mode}-{part.name}-{key}.json"
    if kept.is_file():
        found = json.loads(kept.read_bytes())
        return [_outcome(row) for row in found["outcomes"]], found["seconds"]
    begun = time.perf_counter()
    outcomes, seconds = outcomes_of(mode, part), time.perf_counter() - begun
    if not any(outcome.undecided for outcome in outcomes):
        rows = [dataclasses.asdict(outcome) for outcome in outcomes]
        write_atomically(kept, json.dumps({"seconds": seconds, "outcomes": rows}).encode())
    return outcomes, seconds


def outcomes_of(mode: str, part: Part) -> list[Outcome]:
    """Run a part of the mode in a process of its own. If it does not come to its end, each of its classes gets an
    undecided outcome more. Raise NotHere if this host cannot have the mode."""
    amount = ("one" if MODES[mode].slow else "all") if part.cheats else ""
    words, seconds = [mode, str(part.races), ",".join(part.attacks), amount], part.seconds(MODES[mode])
    lines = MODES[mode].starts(words, seconds).splitlines()
    rows = [json.loads(line) for line in lines if line.startswith('{"') and line.endswith("}")]
    found = [_outcome(row) for row in rows if "attack" in row]
    end = rows[-1] if rows and "attack" not in rows[-1] else {"broken": f"no end within {seconds:.0f} s"}
    if "missing" in end:
        raise NotHere(end["missing"])
    return [*found, *(part.undecided(end["broken"]) if "broken" in end else [])]


def _outcome(row: dict[str, Any]) -> Outcome:
    return Outcome(**{**row, "breaches": tuple(row["breaches"]), "lacks": tuple(row["lacks"])})


# -- a mode's own process


async def _try_all(sandboxes: Sandboxes, folder: Path, races: int, attacks: list[str], cheats: str) -> None:
    """`cheats`: "all" (an environment of each kind), "one", or none if empty."""
    try:
        with _while_opening():  # The fleet opens, and knows its features, at its first request.
            await sandboxes.add_image({"a": b""})
        await run_attacks(sandboxes, [ATTACKS[name] for name in attacks], races=races, progress=_tell)
        if cheats:
            await try_all(sandboxes, folder / "tasks", _tell, one=cheats == "one")
    finally:
        await sandboxes.close()


@contextlib.contextmanager
def _while_opening() -> Iterator[None]:
    """A backend that cannot be opened is one that this host cannot have. Later, the same error is a fault."""
    try:
        yield
    except SandboxUnavailable as reason:
        raise NotHere(str(reason)) from reason


def _tell(outcome: Outcome) -> None:
    print(json.dumps(dataclasses.asdict(outcome)), flush=True)
    print(f"  {outcome.of}: {outcome.attack}: {cells([outcome])[outcome.of]}", file=sys.stderr, flush=True)


def main(words: list[str]) -> None:
    name, races, attacks, cheats = words
    chosen = [each for each in attacks.split(",") if each]
    end: dict[str, object] = {"end": True}
    with temporary_store("etude-attacks-") as folder, contextlib.ExitStack() as stack:
        try:
            with _while_opening():
                sandboxes = stack.enter_context(MODES[name].opens(folder / "boxes"))
            asyncio.run(_try_all(sandboxes, folder, int(races), chosen, cheats))
        except NotHere as reason:
            end = {"missing": str(reason)}
        except BaseException as error:
            end = {"broken": f"{type(error).__name__}: {error}"[:500]}
            raise
        finally:
            print(json.dumps(end), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
