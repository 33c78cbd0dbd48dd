"""The grader: applies only the agent's diff to a pristine copy, in a fresh box, and runs cases the agent never saw.

It trusts nothing that the agent could touch. The box learns the calls but not the expectations: what the calls came to
is compared out here. A pass needs the runner's exit code, one report with this grading's nonce, and the expected
outcome of every single case; a missing one is never a pass. A fault of the infrastructure is an error, never a fail;
but a diff that cannot be applied, or code that ends or outlasts its verifier, is the agent's doing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from etude.sandbox.contract import BoxSpec, ExecResult, Feature, Limits, SandboxError, Sandboxes, SandboxUnavailable
from etude.sandbox.overload import host_overloaded
from etude.tasks.cases import Case, CasesError, load_cases
from etude.tasks.diff import Bounds, DiffError, apply_diff, parse_diff
from etude.tasks.directory import WORKDIR, read_files, task_digest
from etude.tasks.surface import is_protected
from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Evidence, Judgement, Verdict

RUNNER = (resources.files("etude.tasks.box") / "run_cases.py").read_text(encoding="utf-8")
READY = "etude-runner 1"
REPORT = "etude-report "
CPU_SECONDS = 2
"""Declared limit of the agent's code in the verifier: CPU time, so a busy host does not use it up."""


@dataclass(slots=True)
class GraderStats:
    graded: int = 0
    """Gradings that ran in a box."""
    remembered: int = 0
    """Answered from an equal grading: the same task, tests and resulting tree."""
    errors: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Pristine:
    digest: str
    files: dict[str, str]
    """Files that are not text cannot be touched by a diff; they are part of the image only."""
    image: str
    cases: tuple[Case, ...]


async def workspace_image(task: Task, sandboxes: Sandboxes) -> str:
    """The agent's view of the repository, as an image: the workspace alone, without tests or solution."""
    return await sandboxes.add_image(read_files(task.directory), workdir=WORKDIR)


class Grader:
    def __init__(self, sandboxes: Sandboxes, *, bounds: Bounds | None = None, memo: int = 50_000) -> None:
        if Feature.ISOLATED not in sandboxes.features:
            raise SandboxUnavailable(
                "nothing keeps code in the boxes of this sandbox.mode, so nothing is graded in them: set it to auto, "
                "and see `etude sandbox doctor`"
            )
        self.sandboxes = sandboxes
        self.bounds = bounds or Bounds()
        self.stats = GraderStats()
        self._memo_size = memo
        self._memo: dict[tuple[str, str], Verdict] = {}
        self._running: dict[tuple[str, str], asyncio.Future[Verdict]] = {}
        self._pristine: dict[str, _Pristine] = {}

    async def grade(self, task: Task, diff: str, *, fresh: bool = False) -> Verdict:
        """The verdict on a diff. `fresh` runs the tests even if an equal tree was graded before, as the gate wants."""
        try:
            pristine = await self._load(task)
        except (TaskError, CasesError) as error:
            return self._error(f"the task cannot be graded: {error}")
        except (SandboxError, OSError) as error:
            return self._error(f"no image: {error}")
        try:
            tree = apply_diff(pristine.files, diff, self.bounds)
            touched = tuple(sorted(filter(is_protected, _paths(diff, self.bounds))))
        except DiffError as error:
            return Verdict(Judgement.FAIL, f"the diff is refused: {error}")
        tree = {path: text for path, text in tree.items() if not is_protected(path)}
        tree |= {path: text for path, text in pristine.files.items() if is_protected(path)}
        key = (pristine.digest, _tree_digest(tree, touched))
        if fresh:
            return await self._run(task, pristine, tree, touched)
        if (known := self._memo.get(key)) is not None:
            self.stats.remembered += 1
            return known
        if (running := self._running.get(key)) is not None:
            self.stats.remembered += 1
            return await asyncio.shield(running)
        future = asyncio.ensure_future(self._run(task, pristine, tree, touched))
        self._running[key] = future
        try:
            verdict = await asyncio.shield(future)
        finally:
            if future.done():
                del self._running[key]
            else:
                # The caller gave up; the grading goes on for whoever else waits for it.
                future.add_done_callback(lambda _: self._running.pop(key, None))
        if verdict.judgement is not Judgement.ERROR:
            while len(self._memo) >= self._memo_size:
                del self._memo[next(iter(self._memo))]
            self._memo[key] = verdict
        return verdict

    async def _load(self, task: Task) -> _Pristine:
        place = str(task.directory)
        if place not in self._pristine:
            files: dict[str, str] = {}
            for path, data in read_files(task.directory).items():
                try:
                    files[path] = data.decode()
                except UnicodeDecodeError:
                    continue
            cases_file = task.directory / "tests" / "cases.json"
            if not cases_file.is_file():
                raise TaskError(f"{cases_file}: expected a file, there is none")
            cases = load_cases(cases_file.read_bytes())
            self._pristine[place] = _Pristine(
                task_digest(task), files, await workspace_image(task, self.sandboxes), cases
            )
        return self._pristine[place]

    async def _run(self, task: Task, pristine: _Pristine, tree: Mapping[str, str], touched: tuple[str, ...]) -> Verdict:
        started = time.monotonic()
        nonce = secrets.token_hex(16)
        calls = [
            {"id": c.id, "module": c.module, "function": c.function, "arguments": list(c.arguments)}
            for c in pristine.cases
        ]
        wall = task.limits.verifier_seconds
        job = {"workdir": WORKDIR, "cpu_seconds": CPU_SECONDS, "wall_seconds": wall, "cases": calls}
        try:
            result = await self._exec(pristine, tree, json.dumps(job).encode(), nonce, wall + 2)
        except (SandboxError, OSError) as error:
            return self._error(f"the box failed: {type(error).__name__}: {error}")
        seconds = time.monotonic() - started
        self.stats.graded += 1
        self.stats.seconds += seconds
        verdict = judge(result, pristine.cases, nonce, touched=touched, seconds=seconds, overloaded=host_overloaded())
        if verdict.judgement is Judgement.ERROR:
            self.stats.errors += 1
        return verdict

    async def _exec(
        self, pristine: _Pristine, tree: Mapping[str, str], job: bytes, nonce: str, timeout: float
    ) -> ExecResult:
        changed = {path: text for path, text in tree.items() if pristine.files.get(path) != text}
        image = pristine.image
        if pristine.files.keys() - tree.keys():
            # Something was deleted: such a tree gets an image of its own.
            image = await self.sandboxes.add_image({p: _encode(t) for p, t in tree.items()}, workdir=WORKDIR)
            changed = {}
        limits = Limits(memory_mb=256, processes=16, cpu_seconds=10, file_mb=4, disk_mb=16, output_bytes=2_000_000)
        box = await self.sandboxes.create(BoxSpec(image, workdir=WORKDIR, limits=limits, name="grader"))
        try:
            for path, text in changed.items():
                await box.write_file(path, _encode(text))
            return await box.exec(
                ["python3", "-I", "-S", "-B", "-c", RUNNER],
                timeout=timeout,
                cwd="/",
                stdin=b"%08d" % len(job) + job + nonce.encode(),
                user="grader" if Feature.SECOND_USER in self.sandboxes.features else "agent",
            )
        finally:
            await box.destroy()

    def _error(self, reason: str) -> Verdict:
        self.stats.errors += 1
        return Verdict(Judgement.ERROR, reason)


def judge(
    result: ExecResult,
    cases: tuple[Case, ...],
    nonce: str,
    *,
    touched: tuple[str, ...] = (),
    seconds: float = 0.0,
    overloaded: bool = False,
) -> Verdict:
    """From what came out of the box to a verdict; pure, so that every way of lying can be tested."""
    lines = result.stdout.decode("utf-8", "replace").split("\n")
    reports = [line[len(REPORT) :] for line in lines if line.startswith(REPORT)]
    log = (result.stderr[-2000:]).decode("utf-8", "replace")

    def verdict(judgement: Judgement, reason: str, failed: tuple[str, ...] = (), passed: int = 0) -> Verdict:
        digest = hashlib.sha256(result.stdout.replace(nonce.encode(), b"")).hexdigest()[:16]
        evidence = Evidence(result.code, len(cases), passed, failed, touched, digest, seconds, log)
        return Verdict(judgement, reason, evidence)

    if lines[0] != READY:
        return verdict(Judgement.ERROR, f"the verifier did not start (exit code {result.code})")
    if result.timed_out:
        if overloaded:
            return verdict(Judgement.ERROR, "the verifier's wall clock expired on an overloaded host")
        return verdict(Judgement.FAIL, "the code outlasted the verifier's time limit")
    if not reports:
        return verdict(Judgement.FAIL, f"the code ended its verifier (exit code {result.code})")
    try:
        report = json.loads(reports[0])
        rows = [(identity, outcome) for identity, outcome in report["rows"]]
        named = {identity: outcome.get("value") for identity, outcome in rows}
        status, said = report["status"], report["nonce"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return verdict(Judgement.SUSPECT, "the report is not one that the runner writes")
    if len(reports) > 1 or said != nonce or len(named) != len(rows) or named.keys() - {c.id for c in cases}:
        return verdict(Judgement.SUSPECT, "the report was tampered with")
    failed = tuple(case.id for case in cases if named.get(case.id) != case.expected)
    passed = len(cases) - len(failed)
    if failed:
        slow = status is not None and status < 0
        reason = f"{len(failed)} of {len(cases)} cases failed" + (
            f", the code was ended by signal {-status}" if slow else ""
        )
        return verdict(Judgement.FAIL, reason, failed, passed)
    if result.code != 0 or status != 0:
        return verdict(Judgement.FAIL, f"every case passed, but the run ended with {status}", failed, passed)
    return verdict(Judgement.PASS, f"all {len(cases)} cases passed", failed, passed)


def _paths(diff: str, bounds: Bounds) -> set[str]:
    return {path for patch in parse_diff(diff, bounds) for path in (patch.before, patch.after) if path is not None}


def _tree_digest(tree: Mapping[str, str], touched: tuple[str, ...]) -> str:
    digest = hashlib.sha256(repr(touched).encode())
    for path in sorted(tree):
        data = _encode(tree[path])
        digest.update(f"{path} {len(data)}\n".encode("utf-8", "surrogatepass") + data)
    return digest.hexdigest()


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
