"""--help answers at once and teaches."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.cli.here import etude
from typer.core import TyperGroup
from typer.main import get_command

from etude.cli.main import app

ETUDE = str(Path(sys.executable).with_name("etude"))


def test_help_takes_less_than_a_third_of_a_second() -> None:
    """Of a processor's time: that of a clock depends on who else is at work."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([ETUDE, "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.3, f"the best of {[f'{t:.2f}' for t in times]} s"


def test_the_module_is_the_command_and_says_its_version() -> None:
    said = subprocess.run([sys.executable, "-m", "etude", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"etude {version('etude')}\n"


@pytest.mark.parametrize(
    ("args", "heavy"),
    [
        ("--help", "torch pydantic ray numpy rich"),
        ("run --help", "torch ray numpy"),
        ("tasks grade --help", "etude.tasks etude.sandbox"),
    ],
)
def test_help_loads_nothing_heavy(args, heavy) -> None:
    code = (
        f"import sys, etude.cli.main as m; sys.argv = ['etude', *{args.split()!r}]\n"
        "try: m.main()\nexcept SystemExit: pass\n"
        f"print('loaded', sorted(set({heavy.split()!r}) & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "loaded []"


def verbs(group: TyperGroup, *above: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield from verbs(command, *above, name) if isinstance(command, TyperGroup) else [(*above, name)]


@pytest.mark.parametrize("verb", list(verbs(get_command(app))), ids=" ".join)
def test_every_verb_shows_an_example(verb: tuple[str, ...]) -> None:
    shown = etude(*verb, "--help")
    assert shown.returncode == 0
    assert "Example" in shown.stdout
    assert f"  etude {' '.join(verb)}".removesuffix(" list") in shown.stdout
    assert verb[0] != "tasks" or all(len(line) <= 80 for line in shown.stdout.splitlines())


@pytest.mark.parametrize("args", [("run",), ("rum",), ("run", "--colour"), ("chat",)])
def test_a_wrong_command_is_code_2(args) -> None:
    shown = etude(*args)
    assert shown.returncode == 2
    assert "Traceback" not in shown.stderr


def test_threads_of_torch_hardly_spin() -> None:
    """OpenMP reads this once, when torch is loaded; services inherit it. Lost, a busy machine trains far slower."""
    code = (
        "import os, sys, etude.cli.main as m; os.environ.pop('GOMP_SPINCOUNT', None); sys.argv = ['etude', '--help']\n"
        "try: m.main()\nexcept SystemExit: print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "2000 False"
