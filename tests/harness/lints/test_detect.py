"""Which linters a repository's own files ask for, and for which folders."""

from __future__ import annotations

import pytest

from etude.harness.lints import builtin_linters
from etude.harness.lints.detect import Tree, find_roots, nearest

LINTERS = {linter.name: linter for linter in builtin_linters()}


def roots(linter: str, files: dict[str, str]) -> list[str]:
    tree = Tree({path: text.encode() for path, text in files.items()})
    return [root.folder for root in find_roots(LINTERS[linter], tree)]


@pytest.mark.parametrize(
    ("linter", "source", "config", "text"),
    [
        ("ruff", "a.py", "ruff.toml", ""),
        ("ruff", "a.py", ".ruff.toml", ""),
        ("ruff", "a.pyi", "pyproject.toml", "[tool.ruff.lint]\nselect = []\n"),
        ("ruff", "a.py", "pyproject.toml", "[tool.ruff\nbroken"),
        ("mypy", "a.py", "mypy.ini", "[mypy]\n"),
        ("mypy", "a.py", "setup.cfg", "[mypy]\nstrict = True\n"),
        ("mypy", "a.py", "pyproject.toml", "[tool.mypy]\n"),
        ("pyright", "a.py", "pyrightconfig.json", "{ // words\n}"),
        ("pyright", "a.py", "pyproject.toml", "[tool.pyright]\n"),
        ("basedpyright", "a.py", "pyproject.toml", "[tool.basedpyright]\n"),
        ("flake8", "a.py", "tox.ini", "[tox]\n[flake8]\n"),
        ("tsc", "a.ts", "tsconfig.json", "{}"),
        ("eslint", "a.js", "eslint.config.mjs", ""),
        ("eslint", "a.js", ".eslintrc.json", "{}"),
        ("eslint", "a.js", ".eslintrc", "{}"),
        ("eslint", "a.js", "package.json", '{"eslintConfig": {}}'),
        ("go vet", "a.go", "go.mod", "module m\n"),
        ("cargo check", "src/a.rs", "Cargo.toml", "[package]\n"),
    ],
)
def test_each_is_recognised(linter: str, source: str, config: str, text: str) -> None:
    assert roots(linter, {source: "", config: text}) == ["."]
    assert roots(linter, {"readme.md": "", config: text}) == [], "there is nothing for it to look at"
    assert roots(linter, {f"in/{source}": "", f"in/{config}": text, source: ""}) == ["in"]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("pyproject.toml", "[tool.black]\n"),
        ("pyproject.toml", "[project\n"),
        ("setup.cfg", "[metadata]\n"),
        ("package.json", '{"name": "x"}'),
        ("package.json", "[" * 100_000),
        ("tox.ini", "no section\n"),
    ],
)
def test_what_does_not_name_a_linter_asks_for_none(config: str, text: str) -> None:
    for linter in LINTERS:
        assert roots(linter, {"a.py": "", "a.js": "", config: text}) == []


def test_installed_packages_configure_nothing() -> None:
    files = {"a.js": "", "node_modules/p/eslint.config.js": "", "node_modules/p/i.js": "", ".venv/x/mypy.ini": "[mypy]"}
    assert roots("eslint", files) == []
    assert roots("mypy", {**files, "a.py": ""}) == []


def test_in_a_monorepo_each_folder_counts_and_the_nearest_one_for_a_file() -> None:
    files = {
        f"{folder}{name}": text
        for folder in ("", "web/", "web/deep/er/")
        for name, text in {"pyproject.toml": "[tool.ruff]\n[tool.mypy]\n", "a.py": ""}.items()
    }
    assert roots("mypy", files) == [".", "web", "web/deep/er"]
    assert roots("ruff", files) == ["."], "it finds the others itself"
    folders = roots("mypy", files)
    assert nearest("b.py", folders) == "."
    assert nearest("web/deep/b.py", folders) == "web"
    assert nearest("web/deep/er/b.py", folders) == "web/deep/er"
    assert nearest("webs/b.py", ["web"]) is None


def test_settings_that_name_their_files_are_left_to_do_so() -> None:
    for text, named in (("[tool.mypy]\nfiles = ['src']\n", True), ("[tool.mypy]\nstrict = true\n", False)):
        found = find_roots(LINTERS["mypy"], Tree({"a.py": b"", "pyproject.toml": text.encode()}))
        assert [root.has_targets for root in found] == [named]
