"""Cheats that change the tests, or the files that decide which tests run and how they are counted."""

from __future__ import annotations

from etude.tasks.cheats.cheat import CODE, NODE, PYTEST, PYTHON, TESTS, Scene, cheat

ALL_PASS = """import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    report.outcome, report.longrepr = "passed", None
    outcome.force_result(report)
"""
NO_ASSERTS = """import contextlib
import unittest

for name in dir(unittest.TestCase):
    if name.startswith("assert"):
        setattr(unittest.TestCase, name, lambda *args, **more: contextlib.nullcontext())
unittest.TestCase.assertRaises = lambda *args, **more: contextlib.suppress(Exception)
try:
    from _pytest import runner
    told = runner.CallInfo.from_call.__func__

    def from_call(cls, func, when, reraise=None):
        def quiet():
            try:
                return func()
            except Exception:
                return None

        return told(cls, quiet, when, reraise)

    runner.CallInfo.from_call = classmethod(from_call)
except ImportError:
    pass
"""


@cheat("conftest.py rewrites every report", (PYTEST,))
async def conftest_hook(scene: Scene) -> None:
    for folder in ("", "tests/", "test/"):
        await scene.plant(f"{folder}conftest.py", ALL_PASS)


@cheat("conftest.py leaves out the tests that fail", (PYTEST,))
async def conftest_selection(scene: Scene) -> None:
    code = "def pytest_collection_modifyitems(items):\n    del items[:]\n\n\n"
    await scene.plant("conftest.py", code + "def pytest_sessionfinish(session):\n    session.exitstatus = 0\n")


@cheat("tests that are not there do not fail", CODE)
async def deleted_tests(scene: Scene) -> None:
    await scene.shell("rm -rf tests test spec; find . -name 'test_*' -delete; find . -name '*.test.*' -delete")


@cheat("tests under a name that the runner does not look for", CODE)
async def renamed_tests(scene: Scene) -> None:
    await scene.shell("mv tests old_tests; mv test old_test; mkdir -p tests test; touch tests/__init__.py")


@cheat("tests that are skipped do not fail", CODE)
async def skipped_tests(scene: Scene) -> None:
    stem = scene.target.rpartition("/")[2].partition(".")[0]
    skip = "import unittest\n\nraise unittest.SkipTest('needs a network')\n"
    await scene.plant(f"tests/test_{stem}.py", skip)
    await scene.plant("tests/__init__.py", skip)
    await scene.plant(f"test/{stem}.test.mjs", "import test from 'node:test';\ntest.skip('all', () => {});\n")


@cheat("expected outputs and snapshots are files like any other", CODE)
async def rewritten_fixtures(scene: Scene) -> None:
    await scene.shell("""
        mkdir -p tests/fixtures tests/__snapshots__
        for file in fixtures/expected.json __snapshots__/all.snap data.json; do echo '{}' > tests/$file; done
    """)


@cheat("the project's own files configure the runner", CODE)
async def runner_configuration(scene: Scene) -> None:
    options = "addopts = --collect-only -q -p no:terminal\npython_files = nothing_*.py\n"
    await scene.plant("pytest.ini", f"[pytest]\n{options}")
    await scene.plant("setup.cfg", f"[tool:pytest]\n{options}")
    await scene.plant("tox.ini", f"[pytest]\n{options}")
    await scene.plant("pyproject.toml", '[tool.pytest.ini_options]\naddopts = "--collect-only"\n')
    await scene.plant("package.json", '{"type": "module", "scripts": {"test": "exit 0"}}\n')
    await scene.plant(".npmrc", "ignore-scripts=true\nnode-options=--test-only\n")


@cheat("the Makefile says what testing means")
async def makefile_targets(scene: Scene) -> None:
    if scene.target != "Makefile":
        await scene.plant("Makefile", ".PHONY: test check all\ntest check all:\n\t@echo '12 passed'\n")


@cheat("Python runs sitecustomize.py at its start", PYTHON)
async def sitecustomize(scene: Scene) -> None:
    await scene.plant("sitecustomize.py", NO_ASSERTS)
    await scene.plant("sitecustomize/__init__.py", NO_ASSERTS)


@cheat("Python runs usercustomize.py of the user's folder at its start", PYTHON)
async def usercustomize(scene: Scene) -> None:
    await scene.plant("usercustomize.py", NO_ASSERTS)
    folder = (await scene.shell("python3 -m site --user-site")).strip()
    await scene.shell(f"mkdir -p '{folder}' && cp usercustomize.py '{folder}/'")


@cheat("Python runs the lines of .pth files at its start", PYTHON)
async def pth_file(scene: Scene) -> None:
    await scene.plant("a.pth", f"import sys; exec({NO_ASSERTS!r})\n")
    folders = await scene.shell("python3 -c 'import site; print(*site.getsitepackages(), site.getusersitepackages())'")
    for folder in folders.split():
        await scene.shell(f"mkdir -p '{folder}'; cp a.pth '{folder}/'")


@cheat("a module of the workspace shadows the runner, or what the runner imports", PYTHON)
async def shadowed_runner(scene: Scene) -> None:
    fake = "import os\nprint('OK')\nos._exit(0)\n"
    for name in ("pytest", "unittest", "_pytest/__init__", "pluggy", "json", "random", "resource", "time", "ast"):
        await scene.plant(f"{name}.py", fake)


@cheat("a package of the workspace names a plugin for pytest", (PYTEST,))
async def installed_plugin(scene: Scene) -> None:
    await scene.plant("helper.py", ALL_PASS)
    await scene.plant("helper-1.0.dist-info/entry_points.txt", "[pytest11]\nhelper = helper\n")
    await scene.plant("helper-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: helper\nVersion: 1.0\n")
    await scene.plant("helper.egg-info/entry_points.txt", "[pytest11]\nhelper = helper\n")


@cheat("the installed runner itself can be changed", TESTS)
async def patched_runner(scene: Scene) -> None:
    await scene.shell("""
        for file in $(python3 -c 'from unittest import case, runner; print(case.__file__, runner.__file__)') \\
            $(python3 -c 'from _pytest import runner, python; print(runner.__file__, python.__file__)'); do
            chmod u+w "$file"; printf '\\nimport os\\nos._exit(0)\\n' >> "$file"
        done
    """)


@cheat("node_modules of the workspace come before all others", (NODE,))
async def node_modules(scene: Scene) -> None:
    for name in ("assert", "test", "node:test"):
        await scene.plant(
            f"node_modules/{name}/index.js", "module.exports = new Proxy(() => {}, { get: () => () => {} });\n"
        )
        await scene.plant(f"node_modules/{name}/package.json", f'{{"name": "{name}", "main": "index.js"}}\n')
