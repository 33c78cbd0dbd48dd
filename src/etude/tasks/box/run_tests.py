"""Runs a test suite in a box and reports each test's outcome on a descriptor of its own.

Standard input: 8 digits, the length of a JSON job, and the job. It is read and closed before any code of the workspace
runs. Rows go to the original standard output, one line each, after the job's nonce; from then on standard output is
redirected to standard error, which the grader keeps as a log. At the end the test runner's own summary of the run is
written to a file.

All this runs in one process with the code under test, which can forge every bit of it; the reader of the rows must not
trust them. Needs Python 3.7 and, for pytest, pytest 6.
"""

from __future__ import annotations

import builtins
import json
import os
import random
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than all the rest
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

BROKEN = 3
"""Exit code if the box cannot run such tests at all. No code of the workspace has been run then."""
MOST_TOLD = 1000
"""Maximum number of values that a test reports per comparison. Further ones are dropped."""
LONGEST_VALUE = 1 << 16
WORST = ["error", "failed", "xpassed", "skipped", "xfailed", "passed"]
"""Outcomes from worst to best. A test has several phases; its outcome is the worst of theirs."""


def read_exactly(count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            break
        data += piece
    return data


def worst(one: str, other: str) -> str:
    return min(one, other, key=WORST.index)


class Rows:
    """The report on the original standard output: one line per row, after the nonce."""

    def __init__(self, descriptor: int, nonce: str) -> None:
        self.descriptor, self.nonce = descriptor, nonce
        self.told: dict[str, int] = {}
        """How many values the running test has reported, by key of the comparison."""

    def say(self, **row: Any) -> None:
        line = ("%s %s\n" % (self.nonce, json.dumps(row))).encode()  # noqa: UP031
        while line:
            line = line[os.write(self.descriptor, line) :]
        if "test" in row:
            self.told.clear()


class Keeper:
    """The builtin to which altered tests report values. The grader compares them outside of the box. It returns each
    value, so that a test may go on with it."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __call__(self, key: str, value: object) -> object:
        # A loop may report more than the grader needs.
        count = self.rows.told[key] = self.rows.told.get(key, 0) + 1
        if count > MOST_TOLD:
            return value
        try:
            text = repr(plain(value))
        except (TypeError, ValueError, RecursionError):
            text = ""
        self.rows.say(value=key, **{"is": text if len(text) < LONGEST_VALUE else ""})
        return value


def plain(value: Any) -> Any:
    """Return the value as its nearest plain type. Raise TypeError if it has none."""
    if value is None or isinstance(value, bool):
        return value
    # For a subclass of a plain type, take the plain value below it: an object whose __eq__ accepts everything has none.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, bytes):
        return b"".join([value])
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            items = [plain(item) for item in kind.__iter__(value)]  # type: ignore[arg-type]
            return set(items) if kind is frozenset else kind(items)
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in dict.items(value)}
    raise TypeError("not plain")


def line_in(traceback: Any, function: str) -> int:
    """The line at which a test's function was left, counted from its start; -1 where it was not running."""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_name == function:
            return int(traceback.tb_lineno - code.co_firstlineno)
        traceback = traceback.tb_next
    return -1


# -- pytest


class Plugin:
    """Keeps the tests that the job names, and says how each ended."""

    def __init__(self, job: dict[str, Any], rows: Rows) -> None:
        self.wanted, self.order, self.rows = set(job["ids"]), job["order"], rows
        self.outcomes: dict[str, tuple[str, float]] = {}
        self.lines: dict[str, int] = {}
        self.terminal: Any = None

    def pytest_sessionstart(self, session: Any) -> None:
        self.terminal = session.config.pluginmanager.get_plugin("terminalreporter")

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        # An id without parameters selects every parametrised case of the function.
        named = [not self.wanted.isdisjoint((item.nodeid, item.nodeid.partition("[")[0])) for item in items]
        dropped = [item for item, kept in zip(items, named) if not kept]  # noqa: B905
        items[:] = [item for item, kept in zip(items, named) if kept]  # noqa: B905
        if dropped:
            config.hook.pytest_deselected(items=dropped)
        if self.order is not None:
            random.Random(self.order).shuffle(items)

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        if call.excinfo is not None:
            self.lines[item.nodeid] = line_in(call.excinfo.tb, item.name.partition("[")[0])

    def pytest_runtest_logreport(self, report: Any) -> None:
        before, seconds = self.outcomes.get(report.nodeid, ("passed", 0.0))
        self.outcomes[report.nodeid] = worst(before, outcome_of(report)), seconds + report.duration

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        outcome, seconds = self.outcomes.get(nodeid, ("error", 0.0))
        self.rows.say(test=nodeid, outcome=outcome, seconds=round(seconds, 6), line=self.lines.get(nodeid))

    def account(self) -> dict[str, str]:
        """What pytest itself counted, by its own categories."""
        found: dict[str, str] = {}
        for category in WORST:
            for report in self.terminal.stats.get(category, []) if self.terminal else []:
                found[report.nodeid] = worst(found.get(report.nodeid, "passed"), category)
        return found


def outcome_of(report: Any) -> str:
    if hasattr(report, "context") and not report.failed:
        return "passed"  # A subtest: only its failure counts for the test.
    expected = hasattr(report, "wasxfail")
    if report.failed:
        return "failed" if report.when == "call" else "error"
    if report.skipped:
        return "xfailed" if expected else "skipped"
    return "xpassed" if expected and report.when == "call" else "passed"


def run_pytest(job: dict[str, Any], rows: Rows, pytest: ModuleType) -> tuple[int, dict[str, str]]:
    # No decorator, since this file is also run where pytest is not installed.
    pytest.hookimpl(trylast=True)(Plugin.pytest_collection_modifyitems)
    plugin = Plugin(job, rows)
    files = list(dict.fromkeys(name.split("::")[0] for name in job["ids"]))
    fixed = ["--rootdir=" + job["workdir"], "-p", "no:cacheprovider", "--tb=short"]
    # Run all tests whatever the project's own options say (such as -x): some tests are meant to fail.
    code = pytest.main(fixed + job["arguments"] + ["--maxfail=0"] + files, plugins=[plugin])
    return int(code), plugin.account()


# -- unittest


def each_of(suite: Any) -> Iterator[Any]:
    for test in suite:
        if hasattr(test, "__iter__"):
            yield from each_of(test)
        else:
            yield test


def run_unittest(job: dict[str, Any], rows: Rows, unittest: ModuleType) -> tuple[int, dict[str, str]]:
    import time

    class Result(unittest.TextTestResult):  # type: ignore[name-defined]
        def startTest(self, test: Any) -> None:
            super().startTest(test)
            self.began, self.outcome = time.perf_counter(), ""
            self.line: int | None = None
            ran.append(test.id())

        def stopTest(self, test: Any) -> None:
            super().stopTest(test)
            seconds = round(time.perf_counter() - self.began, 6)
            rows.say(test=test.id(), outcome=self.outcome or "error", seconds=seconds, line=self.line)

        def note(self, outcome: str, test: Any = None, err: Any = None) -> None:
            self.outcome = worst(self.outcome, outcome) if getattr(self, "outcome", "") else outcome
            if err is not None:
                self.line = line_in(err[2], getattr(test, "_testMethodName", ""))

        def addSuccess(self, test: Any) -> None:
            super().addSuccess(test)
            self.note("passed")

        def addError(self, test: Any, err: Any) -> None:
            super().addError(test, err)
            self.note("error", test, err)

        def addFailure(self, test: Any, err: Any) -> None:
            super().addFailure(test, err)
            self.note("failed", test, err)

        def addSkip(self, test: Any, reason: str) -> None:
            super().addSkip(test, reason)
            self.note("skipped")

        def addExpectedFailure(self, test: Any, err: Any) -> None:
            super().addExpectedFailure(test, err)
            self.note("xfailed")

        def addUnexpectedSuccess(self, test: Any) -> None:
            super().addUnexpectedSuccess(test)
            self.note("xpassed")

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            super().addSubTest(test, subtest, err)
            if err is not None:
                self.note("failed" if issubclass(err[0], test.failureException) else "error")

    ran: list[str] = []
    ids = list(job["ids"])
    if job["order"] is not None:
        random.Random(job["order"]).shuffle(ids)
    loaded = unittest.defaultTestLoader.loadTestsFromNames(ids)
    # A module that cannot be imported is listed once for each of its tests.
    suite = unittest.TestSuite({test.id(): test for test in each_of(loaded)}.values())
    result = unittest.TextTestRunner(stream=sys.stderr, resultclass=Result, verbosity=1).run(suite)
    # Taken from the result's own lists, independently of the rows reported above.
    account = dict.fromkeys(ran, "passed")
    lists = [
        ("error", result.errors),
        ("failed", result.failures),
        ("skipped", result.skipped),
        ("xfailed", result.expectedFailures),
    ]
    for outcome, pairs in [*lists, ("xpassed", [(test, "") for test in result.unexpectedSuccesses])]:
        for test, _ in pairs:
            name = getattr(test, "test_case", test).id()
            if name in account:
                account[name] = worst(account[name], outcome)
    return (0 if result.wasSuccessful() else 1), account


# -- both

RUNNERS = {"pytest": run_pytest, "unittest": run_unittest}


def settle(job: dict[str, Any], descriptor: int) -> None:
    """Streams and folders of the tests' own."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    for folder in job["folders"]:
        os.makedirs(folder, 0o755, exist_ok=True)  # noqa: PTH103
    sys.argv[:] = [job["runner"]]
    sys.dont_write_bytecode = True


def import_runner(job: dict[str, Any]) -> ModuleType:
    """Of the image, or what the job brings: before the workspace is where Python looks."""
    import importlib

    inside = os.path.join(job["workdir"], "")  # noqa: PTH118
    before = [place for place in sys.path if place]
    sys.path[:] = [place for place in before if not os.path.join(place, "").startswith(inside)]  # noqa: PTH118
    sys.path += job["packages"]
    module = importlib.import_module(job["runner"])
    own = [os.path.join(job["workdir"], place) for place in job["path"]]  # noqa: PTH118
    sys.path[:] = own + before + job["packages"]
    return module


def main() -> int:
    job = json.loads(read_exactly(int(read_exactly(8))))
    descriptor = os.dup(1)  # Not inherited by programs that the tests start.
    rows = Rows(descriptor, job.pop("nonce"))
    settle(job, descriptor)
    try:
        runner = import_runner(job)
    except ImportError as error:
        rows.say(broken="%s: %s" % (type(error).__name__, error))  # noqa: UP031
        return BROKEN
    rows.say(ready=getattr(runner, "__version__", ""))
    if job["keeper"]:
        setattr(builtins, job["keeper"], Keeper(rows))
    os.chdir(job["workdir"])
    code, account = RUNNERS[job["runner"]](job, rows, runner)
    with open(job["report"], "w") as file:  # noqa: PTH123
        json.dump({"nonce": rows.nonce, "exit": code, "tests": account}, file)
    import resource

    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    rows.say(end=code, memory=1024 * max(peaks))
    return code


if __name__ == "__main__":
    ended = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip the exit handlers that the code under test has registered.
    os._exit(ended)
