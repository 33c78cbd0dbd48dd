"""Runs a library's own tests on its mutants, on this machine, while a task is being made.

Only Étude's own libraries and their mutants are run, each in its own process with a limit on CPU time.
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
    """Run the library's tests on several versions of its module, such as mutants, given as source text. Return one exit
    code per version: 0 if the tests pass, 1 if they fail, and a negative number if the run was killed at its limit."""
    job = {"module": library.module, "tests": library.tests, "sources": list(sources)}
    done = subprocess.run(
        [sys.executable, "-I", "-c", _SCRIPT], input=json.dumps(job).encode(), stdout=subprocess.PIPE, check=True
    )
    codes: list[int] = json.loads(done.stdout)
    return codes
