"""Pid 1 of a box makes the box's user namespace with rights, and has none outside of it afterwards."""

from __future__ import annotations

import subprocess
import sys

from tests.sandbox.as_nobody import for_root

MAKE = """
import ctypes, os
from etude.sandbox.inside import kernel, kernel_shares
kernel_shares.become_creator(2_000_000_000, 64)
print(os.getresuid(), kernel.effective_capabilities() > 0)
kernel.unshare(kernel.CLONE_NEWUSER, "user namespace of a box")
get_securebits = 27
print(ctypes.CDLL(None).prctl(get_securebits))
for act in (lambda: open("/etc/shadow"), lambda: kernel.mount("x", "/tmp", "tmpfs", 0, None, "mount")):
    try:
        act()
    except (PermissionError, kernel.StepFailed) as error:
        print(type(error).__name__)
"""


@for_root
def test_the_creator_of_a_box_has_rights_until_the_box_has_a_namespace() -> None:
    """Hosts may forbid users without rights to make user namespaces (kernel.unprivileged_userns_clone, AppArmor)."""
    made = subprocess.run([sys.executable, "-c", MAKE], capture_output=True, text=True, check=True)
    ids = (2_000_000_000,) * 3
    assert made.stdout.splitlines() == [f"{ids} True", "0", "PermissionError", "StepFailed"]
