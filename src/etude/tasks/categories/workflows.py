"""Workflow tasks: the agent writes a CI workflow for a package. It must pass for sound variants of the package, and
fail for variants that are broken in any mode."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from string import Template
from textwrap import indent

from etude.tasks.categories.base import CategorySource, Draft
from etude.tasks.categories.packages import PYTHON, kins, package_of
from etude.tasks.categories.products import Drawn, draw_products, versioned
from etude.tasks.categories.scripts import RULES, SHELL_TESTS, checks, run_tests
from etude.tasks.verifiers.script import FILE

WORKFLOW = ".github/workflows/ci.yml"
_INSTRUCTION = Template(f"""Write {WORKFLOW}, a CI workflow for $name. It must fail, for whatever state the workspace \
is in, if
- a test below tests/ fails with $variable set to $modes, or there is no test (they are unittest's);
- a .py file of $name/, also one that no test imports, is no valid Python;
- VERSION and `__version__` of $name/__init__.py differ;
- $rule.
Else it must pass. There is python3 with the usual programs, and no network. Each job starts with the workspace as it \
is; of the workflow language there are jobs with needs, env, strategy.matrix (lists) and steps with run, env, \
working-directory and shell (sh or bash), and $${{{{ matrix.KEY }}}} in them; `uses: actions/checkout` does nothing. \
Scripts of your own may lie in ci/.""")
_VARIABLES = ("APP_MODE", "BACKEND", "PROFILE", "FLAVOUR")
_MODES = ("strict", "fast", "legacy", "plain", "wide", "local")


class WorkflowsSource(CategorySource):
    name = "workflows"
    version = 1
    category = "devops"

    def kins(self) -> Sequence[str]:
        return kins(*PYTHON)

    def draft(self, kin: str, rng: random.Random) -> Draft:
        package = package_of(kin)
        rule, variable, modes = rng.choice(list(RULES)), rng.choice(_VARIABLES), rng.sample(_MODES, 2)
        version = f"{rng.randint(0, 3)}.{rng.randint(0, 20)}.{rng.randint(0, 9)}"
        base = {**versioned(package.files, package.name, version), **package.tests}
        drawn = [*draw_products(package, base, rule, rng), *_in_modes(variable, modes)]
        return Draft(
            instruction=_INSTRUCTION.substitute(
                name=package.name, variable=variable, modes=" or to ".join(modes), rule=RULES[rule].asked
            ),
            kind=f"workflow-{rule}",
            verifier={"type": "workflow", "workflow": WORKFLOW, "writes": [WORKFLOW, "ci/*"], "seconds": 20},
            before=base,
            solved={**base, WORKFLOW: _matrix(package.name, rule, variable, modes).encode()},
            other={**base, **_one_job(package.name, rule, variable, modes)},
            hidden={FILE: json.dumps([one.row(base) for one in drawn], indent=1).encode()},
            seconds=300.0,
        )


def _in_modes(variable: str, modes: Sequence[str]) -> list[Drawn]:
    """Return one package variant whose tests pass in exactly these modes, and for each mode one whose tests fail in
    that mode only. A mode is a value of the environment variable `variable`."""

    def drawn(name: str, allowed: Sequence[str], succeeds: bool) -> Drawn:
        text = (
            "import os\nimport unittest\n\n\nclass ModesTest(unittest.TestCase):\n    def test_mode(self):\n"
            f'        self.assertIn(os.environ.get("{variable}"), {allowed!r})\n'
        )
        return Drawn(name, {"tests/test_modes.py": text.encode()}, succeeds)

    broken = [drawn(f"broken when {mode}", [one for one in modes if one != mode], False) for mode in modes]
    return [drawn("sound in these modes", modes, True), *broken]


def _matrix(name: str, rule: str, variable: str, modes: Sequence[str]) -> str:
    return f"""name: ci
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    strategy:
      matrix:
        mode: [{", ".join(modes)}]
    env:
      {variable}: ${{{{ matrix.mode }}}}
    steps:
      - uses: actions/checkout@v4
      - name: tests
        run: |
{indent(SHELL_TESTS, " " * 10)}
  check:
    runs-on: ubuntu-latest
    needs: test
    steps:
      - uses: actions/checkout@v4
      - name: rules
        run: |
          python3 -B - <<'END'
{indent(checks(name, rule), " " * 10)}          END
"""


def _one_job(name: str, rule: str, variable: str, modes: Sequence[str]) -> Mapping[str, bytes]:
    """Return the files of a second correct solution: a workflow with a single job and no matrix, which runs Python
    programs from ci/."""
    steps = "".join(
        f"      - run: python3 -B ci/tests.py\n        env: {{{variable}: {mode}}}\n" for mode in reversed(modes)
    )
    text = f"jobs:\n  all:\n    steps:\n      - run: python3 -B rules.py\n        working-directory: ci\n{steps}"
    rules = f'import os\n\nos.chdir("..")\n{checks(name, rule)}'
    return {WORKFLOW: text.encode(), "ci/rules.py": rules.encode(), "ci/tests.py": run_tests().encode()}
