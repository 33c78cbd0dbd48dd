"""Container image tasks: the agent writes a Dockerfile for a package. The build must fail for broken variants of the
package, and the image of a sound one must hold the requested files."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from string import Template

from etude.tasks.categories.base import CategorySource, Draft
from etude.tasks.categories.packages import PYTHON, kins, package_of
from etude.tasks.categories.products import Drawn, draw_products, versioned
from etude.tasks.categories.scripts import RULES, checks, run_tests
from etude.tasks.verifiers.script import FILE

_INSTRUCTION = Template("""Write a Dockerfile for $name, built from the workspace without a network. `FROM host` is \
an image with python3 and the usual programs, whose user may write in folders that WORKDIR made. The build must \
fail if
- a test below tests/ fails, or there is none (they are unittest's);
- a .py file of $name/, also one that no test imports, is no valid Python;
- VERSION and `__version__` of $name/__init__.py differ;
- $rule.
Else the image's $folder holds all .py files of $name/ as $name/..., and a file RELEASE with one line, $line, in which \
VERSION is what the file says and CHANNEL a build argument, "$channel" if it is not given; and nothing else. Commands \
start in $folder, and find the channel in the variable APP_CHANNEL. Scripts of your own may lie in ci/.""")
_LINES = ("$name VERSION CHANNEL", "VERSION-CHANNEL", "CHANNEL: $name VERSION")
_FOLDERS = ("/srv/app", "/app", "/opt/$name")
_CHANNELS = ("stable", "beta", "nightly", "preview", "edge", "trial")


class ImagesSource(CategorySource):
    name = "images"
    category = "devops"

    def kins(self) -> Sequence[str]:
        return kins(*PYTHON)

    def draft(self, kin: str, rng: random.Random) -> Draft:
        package = package_of(kin)
        name, rule, channels = package.name, rng.choice(list(RULES)), rng.sample(_CHANNELS, 3)
        line, folder = (rng.choice(texts).replace("$name", name) for texts in (_LINES, _FOLDERS))
        version = f"{rng.randint(0, 3)}.{rng.randint(0, 20)}.{rng.randint(0, 9)}"
        base = {**versioned(package.files, name, version), **package.tests}
        plan = _Plan(name, rule, folder, line, channels[0])
        rows = []
        for number, drawn in enumerate(draw_products(package, base, rule, rng)):
            row = drawn.row(base)
            if drawn.succeeds:
                row |= plan.wanted(drawn, base, channels[number] if 0 < number < len(channels) else "")
            rows.append(row)
        return Draft(
            instruction=_INSTRUCTION.substitute(
                name=name, folder=folder, line=f"`{line}`", channel=channels[0], rule=RULES[rule].asked
            ),
            kind=f"image-{rule}",
            verifier={"type": "dockerfile", "writes": ["Dockerfile", ".dockerignore", "ci/*"], "seconds": 40},
            before=base,
            solved={**base, "Dockerfile": plan.two_stages().encode()},
            other={**base, **plan.one_stage()},
            hidden={FILE: json.dumps(rows, indent=1).encode()},
            seconds=600.0,
        )


class _Plan:
    def __init__(self, name: str, rule: str, folder: str, line: str, channel: str) -> None:
        self._name, self._rule, self._folder, self._line, self._channel = name, rule, folder, line, channel

    def wanted(self, drawn: Drawn, base: Mapping[str, bytes], given: str) -> dict[str, object]:
        """Return what the image of a sound variant of the package must contain, and what commands in it must print.
        `given` is the value of the build argument CHANNEL; if empty, the argument is not passed."""
        there = drawn.over(base)
        version, channel = there["VERSION"].decode().strip(), given or self._channel
        inside = {
            path: data.decode()
            for path, data in there.items()
            if path.startswith(f"{self._name}/") and path.endswith(".py")
        }
        release = self._line.replace("VERSION", version).replace("CHANNEL", channel)
        return {
            "arguments": {"CHANNEL": given} if given else {},
            "folders": {self._folder: {**inside, "RELEASE": release}},
            "answers": [
                {"command": ["sh", "-c", 'pwd; echo "$APP_CHANNEL"'], "prints": f"{self._folder}\n{channel}"},
                {"command": ["python3", "-c", f"import {self._name} as it; print(it.__version__)"], "prints": version},
            ],
        }

    def two_stages(self) -> str:
        release = self._line.replace("VERSION", "$(cat VERSION)").replace("CHANNEL", "$CHANNEL")
        return f"""FROM host AS checked
WORKDIR /build
COPY . .
RUN <<END
set -e
python3 -B - <<'TESTS'
{run_tests()}TESTS
python3 -B - <<'RULES'
{checks(self._name, self._rule)}RULES
END
ARG CHANNEL={self._channel}
RUN mkdir out && echo "{release}" > out/RELEASE && cp --parents $(find {self._name} -name '*.py') out

FROM host
ARG CHANNEL={self._channel}
ENV APP_CHANNEL=$CHANNEL
WORKDIR {self._folder}
COPY --from=checked /build/out/ .
"""

    def one_stage(self) -> dict[str, bytes]:
        """Return the files of a correct solution of another form than `two_stages`: a Dockerfile with a single stage,
        and a program that it runs. The program checks the package's sources, and writes the files that the task
        requires to the required folder of the image."""
        line = self._line.replace("VERSION", '" + version + "').replace("CHANNEL", '" + os.environ["CHANNEL"] + "')
        program = (
            f"{run_tests()}\n{checks(self._name, self._rule)}"
            "for path in paths:\n"
            f'    target = os.path.join("{self._folder}", path)\n'
            "    os.makedirs(os.path.dirname(target), exist_ok=True)\n"
            '    with open(target, "w", encoding="utf-8") as file:\n'
            '        file.write(open(path, encoding="utf-8").read())\n'
            f'with open("{self._folder}/RELEASE", "w") as file:\n    print("{line}", file=file)\n'
        )
        text = (
            f"ARG CHANNEL={self._channel}\nFROM host\nARG CHANNEL\nENV APP_CHANNEL=${{CHANNEL}}\n"
            f"WORKDIR {self._folder}\nWORKDIR /tmp/source\nCOPY . ./\nRUN python3 -B ci/image.py\n"
            f"WORKDIR {self._folder}\n"
        )
        return {"Dockerfile": text.encode(), "ci/image.py": program.encode()}
