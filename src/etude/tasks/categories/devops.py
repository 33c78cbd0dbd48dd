"""DevOps tasks: the agent writes a build script for a package. The build must leave the right artifacts for sound
variants of the package and fail for broken ones."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from string import Template

from etude.tasks.categories.base import CategorySource, Draft
from etude.tasks.categories.packages import PYTHON, kins, package_of
from etude.tasks.categories.products import Drawn, draw_products, versioned
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


class DevopsSource(CategorySource):
    name = "devops"
    version = 2
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
        products = [_row(drawn, base, plan) for drawn in draw_products(package, base, plan.rule, rng)]
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


def _row(drawn: Drawn, base: Mapping[str, bytes], plan: Plan) -> dict[str, object]:
    artifacts = {"artifacts": plan.artifacts(drawn.over(base))} if drawn.succeeds else {}
    return {**drawn.row(base), **artifacts}
