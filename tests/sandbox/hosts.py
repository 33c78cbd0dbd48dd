"""What runs on a host that seems to be short of time (the fixture `short_of_time`), however busy this one is."""

from __future__ import annotations

TAKES_ITS_SHARE = "python3 -c 'import time; all(iter(lambda: time.process_time() < 0.1, False))'; sleep 20"
"""More than it is given there, and too little to have had enough: for clocks of a second."""
