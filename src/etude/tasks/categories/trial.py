"""Which mutants of a library its own tests tell from it: run here, when a task is made.

Only code of this package is run, and faults in it; each in a process of its own with a limit on its CPU time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from etude.tasks.categories.libraries import Library

_SCRIPT = """
import io, json, os, resource, signal, sys, types, unittest
job = json.load(sys.stdin)

def passes(source):
    module = types.ModuleType(job["module"])
    sys.modules[job["module"]] = module
    exec(compile(source, "library", "exec"), module.__dict__)
    suite = types.ModuleType("suite")
    exec(compile(job["tests"], "suite", "exec"), suite.__dict__)
    tests = unittest.defaultTestLoader.loadTestsFromModule(suite)
    return unittest.TextTestRunner(stream=io.StringIO()).run(tests).wasSuccessful()

def ends(source):
    process = os.fork()
    if process == 0:
        signal.setitimer(signal.ITIMER_PROF, 0.5)  # Of CPU time; the signal ends the process.
        resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
        code = 1
        try:
            code = 0 if passes(source) else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

json.dump([ends(source) for source in job["sources"]], sys.stdout)
"""


def exit_codes(library: Library, sources: Sequence[str]) -> list[int]:
    """0: the library's tests pass on this source. 1: they fail. Below 0: it ran until it was ended."""
    job = {"module": library.module, "tests": library.tests, "sources": list(sources)}
    done = subprocess.run(
        [sys.executable, "-I", "-c", _SCRIPT], input=json.dumps(job).encode(), stdout=subprocess.PIPE, check=True
    )
    codes: list[int] = json.loads(done.stdout)
    return codes
