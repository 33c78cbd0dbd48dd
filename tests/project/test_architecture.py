"""The house keeps its rules: who imports whom, what every file and room must have, what no file may say."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "etude"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LIGHT = next(c for c in PROJECT["tool"]["importlinter"]["contracts"] if "light" in c["name"].lower())
MODULES = sorted(file for file in SOURCE.rglob("*.py") if "__pycache__" not in file.parts)
ROOMS = sorted(folder.name for folder in SOURCE.iterdir() if len(list(folder.glob("*.py"))) > 1)
"""Rooms with something in them; the others are to come."""
TEXT = {".py", ".toml", ".md", ".sh", ".txt", ".json", ".j2", ".yaml", ".html", ".ini", ".cfg", ""}
REGISTRY = re.compile(r"\b(?:pypi|pytorch)\.org\b|/simple/|extra-index-url|\+cpu\b")


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def test_import_contracts_hold() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    found = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-3000:]


def test_light_rooms_bring_nothing_heavy_at_run_time() -> None:
    places = {module: ROOT / "src" / module.replace(".", "/") for module in LIGHT["source_modules"]}
    there = [module for module, place in places.items() if place.is_dir() or place.with_suffix(".py").is_file()]
    heavy = (*LIGHT["forbidden_modules"], "matplotlib")
    check = f"""
import importlib, sys
for module in {there!r}:
    importlib.import_module(module)
    if loaded := set({heavy!r}) & set(sys.modules):
        sys.exit(f"{{module}} loads {{loaded}}")
"""
    found = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]


def test_every_module_begins_with_what_it_is_for() -> None:
    silent = [relative(f) for f in MODULES if not ast.get_docstring(ast.parse(f.read_text(encoding="utf-8")))]
    assert silent == []


def test_no_file_is_long() -> None:
    files = [
        *MODULES,
        *(file for place in ("benchmarks", "examples", "scripts") for file in (ROOT / place).rglob("*.py")),
    ]
    long = {relative(f): n for f in files if (n := len(f.read_text(encoding="utf-8").splitlines())) > 500}
    assert long == {}


def test_every_room_has_a_page_tests_and_a_place_in_the_layers() -> None:
    layers = {name.strip() for layer in _layers() for name in layer.split("|")}
    for room in ROOMS:
        assert f"etude.{room}" in layers, f"{room} is in no layer of pyproject.toml"
        assert (ROOT / "docs" / f"{room}.md").exists(), f"docs/{room}.md is missing"
        assert (ROOT / "tests" / room).is_dir(), f"tests/{room} is missing"


def _layers() -> list[str]:
    contract = next(c for c in PROJECT["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    layers: list[str] = contract["layers"]
    return layers


def test_commands_that_are_told_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    main = (SOURCE / "cli" / "main.py").read_text(encoding="utf-8")
    verbs = {*re.findall(r"^def ([a-z]+)\(", main, re.MULTILINE), *re.findall(r'add_typer\(\w+, name="([a-z]+)"', main)}
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"(?:^|`|[A-Z]=\S+ )make ([a-z-]+)(?=`|$| NAME| +#)", text, re.MULTILINE):
            assert target in targets, f"{relative(page)}: make {target}"
        for verb in re.findall(r"(?:^|`|/)etude ([a-z]+)\b", text, re.MULTILINE):
            assert verb in verbs, f"{relative(page)}: etude {verb}"
        for name in re.findall(r"make bench NAME=([a-z_]+(?:/[a-z_]+)?)", text):
            assert (ROOT / "benchmarks" / f"{name}.py").exists(), f"{relative(page)}: bench {name}"


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{relative(page)}: {link}"


def test_pins_are_versions_and_nothing_local() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line) for line in lines), lines
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    wanted = [*PROJECT["project"]["dependencies"]]
    for extra in PROJECT["project"]["optional-dependencies"].values():
        wanted += extra
    names = {re.split(r"[\[><=~; ]", name)[0].lower().replace("_", "-") for name in wanted} - {"etude"}
    assert names - pinned == set()


def test_no_file_names_this_machine_or_a_registry() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a checkout")
    places = (f"{ROOT}/", f"{sys.prefix}/", f"{ROOT.parent}/shared")
    said = []
    for name in listed.stdout.split():
        file = ROOT / name
        if file.suffix not in TEXT or not file.is_file() or name.startswith(".") or file == Path(__file__):
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if REGISTRY.search(line) or any(place in line for place in places):
                said.append(f"{name}:{number}: {line.strip()[:100]}")
    assert said == []
