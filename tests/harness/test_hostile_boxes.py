"""Whatever an agent does to its box, its workspace goes on: a rollout is neither stopped nor excused by it."""

from __future__ import annotations

import pytest
from tests.contract.sandbox.support import in_loop
from tests.needs import second_user

from etude.harness.workspaces.box_runner import lazy_workspace
from etude.sandbox import BoxSpec, Limits, Sandboxes

FILES = {"a.py": b"x = 1\n", "sub/b.py": b"y = 1\n"}
DEEP = "python3 -c \"import os\nfor _ in range(600):\n    os.mkdir('d'); os.chdir('d')\""
LATIN = "python3 -c \"open(b'caf\\xe9.py', 'w').write('x')\""
FULL = "python3 -c \"open('full', 'wb').write(bytes(40 << 20))\"; true"


@pytest.mark.parametrize(
    ("command", "edited", "answer", "diff"),
    [
        ("chmod 0 a.py; rm sub/b.py", "new.py", "", "sub/b.py"),
        pytest.param("chmod 0 a.py", "a.py", "cannot be written where commands run", "a.py", marks=second_user),
        ("mkdir shut; echo > shut/x; chmod 0 shut", "new.py", "", "new.py"),
        pytest.param("chmod 0 .", "new.py", "cannot be written where commands run", "new.py", marks=second_user),
        (LATIN, "new.py", "", "new.py"),
        (DEEP, "new.py", "can no longer be read", "new.py"),
        ("mkfifo pipe; ln -s / root; ln -s nowhere dangling", "new.py", "", "new.py"),
        ("rm a.py; ln -s /etc/passwd a.py", "new.py", "", "a.py"),
        ("rm -r sub; ln -s /etc sub", "sub/c.py", "cannot be written where commands run", "sub/c.py"),
        ("rm a.py; mkdir a.py; mkfifo a.py/pipe", "a.py", "cannot be written where commands run", "a.py"),
        (FULL, "new.py", "cannot be written where commands run", "new.py"),
    ],
)
@in_loop
async def test_a_workspace_outlives_what_its_agent_does(
    sandboxes: Sandboxes, command: str, edited: str, answer: str, diff: str
) -> None:
    image = await sandboxes.add_image(dict(FILES))
    limits = Limits(disk_mb=8, file_mb=64)
    workspace = lazy_workspace(image, FILES, lambda: sandboxes.create(BoxSpec(image, limits=limits)))
    await workspace.exec(command, timeout=60)
    await workspace.write(edited, b"z = 1\n" * 2000)
    said = await workspace.exec("ls", timeout=60)
    assert answer in said.stderr.decode()
    assert answer or said.code == 0
    assert f"/{diff}\n" in await workspace.diff()
