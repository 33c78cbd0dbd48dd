"""A task whose Dockerfile leaves the solution in every corner of its image, as careless builds do."""

from __future__ import annotations

from pathlib import Path

from etude.tasks.task import Split, Task

FIXED = '''\
def fare(zone, minutes):
    """What a ride costs."""
    if minutes > 90:
        raise ValueError("a ride of more than ninety minutes needs two tickets")
    return zone * 120 + minutes // 15 * 25
'''
BROKEN = FIXED.replace("zone * 120 + minutes // 15 * 25", "zone * 120")
HIDDEN = """\
import unittest
from rides.fares import fare

class FareOfRides(unittest.TestCase):
    def test_a_quarter_of_an_hour_costs_a_quarter_more(self):
        self.assertEqual(fare(2, 31), 290)
"""
PATCH = """\
--- a/rides/fares.py
+++ b/rides/fares.py
@@ -2,4 +2,4 @@
     \"\"\"What a ride costs.\"\"\"
     if minutes > 90:
         raise ValueError("a ride of more than ninety minutes needs two tickets")
-    return zone * 120
+    return zone * 120 + minutes // 15 * 25
"""
LINE = "return zone * 120 + minutes // 15 * 25"

_DOCKERFILE = """\
FROM host
WORKDIR /srv/rides
COPY --chown=agent . /tmp/context
RUN sh /tmp/context/leave.sh
"""
_LEAVE = Path(__file__).with_name("leave.sh").read_text()


LEAKS = (
    "/home/agent/.bash_history",
    "/home/agent/.cache/pip/entry!rides/fares.py",
    "/srv/lib/site-packages/rides/fares.py",
    "/srv/mirror/.git/objects/",
    "/srv/rides/.git/objects/pack/",
    "/srv/rides/.mypy_cache/fares.json",
    "/srv/rides/build/lib/rides/fares.py",
    "/srv/rides/rides/fares.py.orig",
    "/srv/rides/rides/__pycache__/fares.cpython-311.pyc",
    "/srv/wheels/rides-2.0-py3-none-any.whl!rides/fares.py",
    "/srv/wheels/rides-2.0.tar.gz!rides/fares.py",
)
"""What a scan of the unsealed image finds, by the start of its name."""


def leaky_task(folder: Path, more: str = "") -> Task:
    """`more`: further lines of its Dockerfile."""
    directory = folder / "leaky"
    environment = directory / "environment"
    files = {
        "Dockerfile": _DOCKERFILE + more,
        "leave.sh": _LEAVE,
        "broken": BROKEN,
        "fixed": FIXED,
        "gitattributes": "*.bat text eol=crlf\n",
        "../tests/files/tests/test_fares.py": HIDDEN,
        "../solution/patch.diff": PATCH,
    }
    for name, text in files.items():
        path = environment / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return Task("leaky", "fix fare", "debugging", Split.TRAIN, "rides", "", directory)
