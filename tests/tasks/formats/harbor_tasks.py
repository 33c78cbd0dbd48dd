"""Harbor task directories, hand-written: one of each schema version, small and real."""

from __future__ import annotations

from pathlib import Path

from etude.tasks import Split, Task, read_task

GREETS = """\
#!/bin/sh
if [ "$(cat greeting.txt)" = "$GREETING" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
SOLVES = "#!/bin/sh\nprintf '%s\\n' \"$GREETING\" > greeting.txt\n"
DOCKERFILE = "FROM host\nWORKDIR /app\nRUN echo none > greeting.txt\n"
VERSIONS = {
    "1.0": """\
version = "1.0"
[metadata]
difficulty = "easy"
[environment]
memory = "512M"
storage = "1G"
allow_internet = false
env = {GREETING = "hello"}
""",
    "1.1": """\
schema_version = "1.1"
[task]
name = "org/greet"
authors = [{name = "A. Author", email = "author@host.example"}]
[environment]
memory_mb = 512
[environment.env]
GREETING = "${GREETING:-hello}"
""",
    "1.2": """\
schema_version = "1.2"
source = "somewhere"
[agent]
timeout_sec = 60.0
user = "agent"
[verifier]
timeout_sec = 30
user = 0
env = {GREETING = "hello"}
[solution]
env = {GREETING = "hello"}
[environment]
cpus = 1
memory_mb = 512
""",
    "1.3": """\
schema_version = "1.3"
[environment]
memory_mb = 512
network_mode = "no-network"
env = {GREETING = "hello"}
[environment.healthcheck]
command = "test -f greeting.txt"
interval_sec = 0.1
""",
    "1.4": """\
schema_version = "1.4"
artifacts = ["greeting.txt", {source = "/var/log", exclude = ["*.gz"]}]
[environment]
workdir = "/app"
env = {GREETING = "hello"}
[[verifier.collect]]
command = "cp greeting.txt /logs/artifacts/"
timeout_sec = 5
""",
}


def write(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def greeting(directory: Path, toml: str = VERSIONS["1.0"], **files: str) -> Task:
    """The agent writes a greeting. Files come by their names, with __ for / and _sh for .sh."""
    named = {name.replace("__", "/").replace("_sh", ".sh"): text for name, text in files.items()}
    plain = {
        "task.toml": toml,
        "instruction.md": "Write hello to greeting.txt.\n",
        "environment/Dockerfile": DOCKERFILE,
        "tests/test.sh": GREETS,
        "solution/solve.sh": SOLVES,
    }
    return read_task(write(directory, plain | named), set(Split))


STEPS = """\
schema_version = "1.1"
multi_step_reward_strategy = "mean"
[task]
name = "org/two-steps"
[verifier]
timeout_sec = 30
[environment]
memory_mb = 512
workdir = "/app"
[[steps]]
name = "scaffold"
min_reward = 1.0
[[steps]]
name = "extend"
[steps.verifier]
env = {WANTED = "two"}
"""


def two_steps(directory: Path, toml: str = STEPS) -> Task:
    """The first step writes one.txt; the second moves it to two.txt, so that the first's tests fail from then on."""
    files = {
        "task.toml": toml,
        "environment/Dockerfile": "FROM host\nWORKDIR /app\nRUN touch empty\n",
        "tests/check.sh": '#!/bin/sh\n[ -f "$1.txt" ] && echo 1 || echo 0\n',
        "steps/scaffold/instruction.md": "Write anything to one.txt.\n",
        "steps/scaffold/tests/test.sh": "#!/bin/sh\n/tests/check.sh one > /logs/verifier/reward.txt\n",
        "steps/scaffold/solution/solve.sh": "#!/bin/sh\necho x > one.txt\n",
        "steps/extend/instruction.md": "Rename it to two.txt.\n",
        "steps/extend/tests/test.sh": '#!/bin/sh\n/tests/check.sh "$WANTED" > /logs/verifier/reward.json\n',
        "steps/extend/solution/solve.sh": "#!/bin/sh\nmv one.txt two.txt\n",
    }
    return read_task(write(directory, files), set(Split))
