"""`make smoke`: runs all stages in minutes, kills the run once in the middle, and checks the results.

It runs `etude run recipes/tiny.toml` with the overrides below in a temporary folder, kills the driver with SIGKILL
during RL, checks that no process or mount of the run survives, runs the same command again and checks summary.json.
The settings force events that are rare in such a short run to happen: a self-summary, a swap of weights within a
rollout, an expert that the replay filter refuses. The checks fail if one of them did not.

Then the circle: the trained model is exported, loaded and saved by `transformers`, and a second run begins with what
came back (`model.from`). Its weights must be those of the first run, and so must what they do: at temperature 0 the
model acts on the test tasks before RL as it did after RL in the first run.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
RECIPE = "recipes/tiny.toml"
STEPS, PROMPTS, GROUP = 5, 4, 4
OVERRIDES = [
    "name=smoke",
    # Small enough to be quick, large enough for every loss to fall.
    "tasks.train=48",
    "tasks.dev=4",
    "tasks.test=4",
    "tasks.gate_runs=1",
    "corpus.generated_documents=1500",
    "corpus.sources=['generated']",
    "corpus.folders=['src/etude/model', 'src/etude/harness']",  # real code with files long enough for the long stage
    "corpus.held_out_share=0.05",
    "pretrain.steps=60",
    "pretrain.batch=4",
    "long.steps=12",
    "long.batch=1",
    "mtp.steps=30",
    "mtp.batch=4",
    "sft.steps=90",
    "sft.batch=4",
    "sft.demonstrations=200",
    f"rl.steps={STEPS}",
    f"rl.prompts_per_step={PROMPTS}",
    f"rl.group={GROUP}",
    "rl.evaluate_every=4",  # evaluates at the start, during RL and at the end
    "rl.probe_every=2",
    "evaluation.samples=2",
    # Few rollouts at a time and several versions of slack: weights are swapped while rollouts are under way.
    "rl.rollouts_per_worker=6",
    "rl.max_staleness=4",
    "engine.speculate='always'",  # not faster with this many rows, but the code path must run
    # After so little SFT the agent solves almost nothing; its failures must change the weights all the same.
    "rl.min_spread=0.0",
    "rl.drop_unsolved=false",
    # Large steps and a strict filter: trainer and engine then disagree on experts within five steps.
    "rl.optimizer.lr=8e-4",
    "rl.optimizer.warmup_steps=0",
    "rl.replay.threshold=0.95",
    # A conversation of two or three turns already asks for a self-summary.
    "harness.summary_trigger=90",
    "harness.max_turns=9",
    "harness.max_tokens=240",
    "harness.max_turn_tokens=56",
    "harness.max_summary_tokens=24",
]
CIRCLE = [
    "name=circle",
    "stages=['rl']",
    "model.embedding_scale=1.0",  # describes a new network
    "model.mtp_heads=0",  # transformers drops them
    "engine.speculate='never'",
    f"rl.steps={(CIRCLE_STEPS := 2)}",
    "rl.evaluate_every=0",
]
"""What the run that begins with the first one's model changes in its recipe, besides model.from."""
KILL_AFTER_STEPS = 2
GONE_WITHIN, GONE_AFTER_THE_END = 30.0, 5.0
"""Seconds until all of a run must be gone: after the driver was killed, and after it ended by itself."""
DEADLINE = 1500.0
"""Seconds for a whole session; an idle machine needs about a tenth of it."""
MARK = "ETUDE_SMOKE"
"""Environment variable that every process of the run inherits, by which they are found after the driver's death."""


class SmokeFailed(Exception):
    """A check failed; the message says what was expected and what was found."""


def main() -> int:
    runs = Path(tempfile.mkdtemp(prefix="etude-smoke-"))
    begun = time.monotonic()
    try:
        result = smoke(runs)
    except (SmokeFailed, KeyboardInterrupt) as error:
        print(f"smoke: {error or 'interrupted'}; the run is kept in {runs}", file=sys.stderr)
        return 1
    shutil.rmtree(runs)
    print(json.dumps({"smoke": "passed", "seconds": round(time.monotonic() - begun), **result}))
    return 0


def smoke(runs: Path) -> dict[str, Any]:
    root = runs / "smoke"
    mark = uuid.uuid4().hex
    shared_before = set(Path("/dev/shm").iterdir())

    first = Session([RECIPE, *OVERRIDES, "--runs", runs], mark, runs / "first.log")
    first.until(lambda: trained_steps(root) >= KILL_AFTER_STEPS, "the second step of RL")
    consumed = events(root)
    family = first.family()
    first.kill()
    gone = until_nothing_is_left(mark, family, root, shared_before, GONE_WITHIN)
    print(f"driver killed after step {trained_steps(root)} of RL; everything gone after {gone:.1f} s; once more")

    second = Session([RECIPE, *OVERRIDES, "--runs", runs], mark, runs / "second.log")
    code = second.wait()
    expect(code == 0, "the second session to finish", f"exit code {code}, see {second.log}")
    expect(events(root)[: len(consumed)] == consumed, "the first session's log to be kept", "a different log")
    until_nothing_is_left(mark, {}, root, shared_before, GONE_AFTER_THE_END)

    summary = json.loads((root / "summary.json").read_text(encoding="utf-8"))
    begun = time.monotonic()
    rows = [*judge(root, summary), *circle(runs, root, mark)]
    circled = time.monotonic() - begun
    until_nothing_is_left(mark, {}, root, shared_before, GONE_AFTER_THE_END)
    width = max(len(name) for name, *_ in rows)
    for name, found, holds in rows:
        print(f"{'ok  ' if holds else 'FAIL'} {name:<{width}}  {found}")
    failed = [name for name, _, holds in rows if not holds]
    expect(not failed, "every check to hold", f"failed: {', '.join(failed)}")
    return {
        "checks": len(rows),
        "gone_after_kill": round(gone, 1),
        "stages": summary["seconds"],
        "circle": round(circled),
    }


def judge(root: Path, summary: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Return for each check its name, what was found, and whether it holds."""
    rows: list[tuple[str, str, bool]] = []

    def falls(name: str, section: str, field: str) -> None:
        before, after = (summary[section][f"{field}_{when}"] for when in ("before", "after"))
        rows.append((name, f"{before:.3f} -> {after:.3f}", after < before))

    def above(name: str, value: float, least: float = 0.0, *, inclusive: bool = False) -> None:
        rows.append((name, f"{value:.4g}", value >= least if inclusive else value > least))

    falls("loss of pretraining falls", "pretrain", "loss")
    falls("loss beyond the base length falls", "long", "late_loss")
    falls("loss of SFT falls", "sft", "loss")
    rl, replay, weights, engine = (summary[name] for name in ("rl", "replay", "weights", "engine"))
    verdicts = [json.loads(line)["judgement"] for line in _whole_lines(root / "rl" / "rollouts.jsonl")]
    graded = sum(judgement in ("pass", "fail") for judgement in verdicts)
    above("rollouts graded pass or fail", graded, STEPS * PROMPTS * GROUP - rl["masked"], inclusive=True)
    rows.append(("steps of RL", f"{rl['steps']}", rl["steps"] == STEPS))
    rows.append(("newest version", f"{newest_version(root)}", newest_version(root) == STEPS))
    rows.append(("no prompt trained twice", *_each_once(root)))
    above("sessions of RL", summary["sessions"]["rl"], 2, inclusive=True)
    above("share of tokens from rollouts of several versions", rl["multi_version_share"])
    above("share of rollouts with a self-summary", rl["summary_share"], 0.15, inclusive=True)
    above("experts replayed against the trainer's choice", replay["overridden"])
    above("experts refused by the filter", replay["refused"])
    above("drafts accepted per step of the engine", engine["accepted_per_step"])
    above("MTP drafts accepted when first trained", summary["mtp"]["accepted_per_draft"])
    above("deltas published", weights["deltas"])
    above("deltas applied", weights["deltas_applied"])
    rows.append(("size of a delta", f"{weights['delta_share_mean']:.3f} of full", 0 < weights["delta_share_mean"] < 1))
    waits = [(f"{who} for {whom}", seconds) for who, on in summary["waits"].items() for whom, seconds in on.items()]
    longest = max(waits, key=lambda wait: wait[1], default=("nobody", 0.0))
    rows.append(("longest wait", f"{longest[0]}, {longest[1]:.1f} s", longest[1] > 0))
    above("seconds services waited for the engine", sum(on.get("engine", 0.0) for on in summary["waits"].values()))
    for whom in ("trainer", "engine", "rollouts"):
        above(f"seconds the driver waited for {whom}", summary["waits"].get("driver", {}).get(whom, 0.0))
    pictures = [file for file in (root / "plots").glob("*.png") if file.read_bytes()[:4] == b"\x89PNG"]
    above("plots", len(pictures))
    report = (root / "report.html").stat().st_size
    above("bytes of report.html", report, 1000)
    return rows


def circle(runs: Path, root: Path, mark: str) -> list[tuple[str, str, bool]]:
    """Begin a run with the model of a finished one, by way of `transformers`. Return the checks as `judge` does."""
    ours, theirs, other = runs / "exported", runs / "transformers", runs / "circle"
    etude = Path(sys.executable).parent / "etude"
    subprocess.run([etude, "export", root, ours], cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        unknown = process.submit(through_transformers, ours, theirs).result()
        shutil.copyfile(ours / "tokenizer.json", theirs / "tokenizer.json")
        arguments = [root / "recipe.toml", *CIRCLE, f"model.from={theirs}", "--runs", runs, "--reuse", root]
        third = Session(arguments, mark, runs / "circle.log")
        code = third.wait()
        expect(code == 0, "the run that begins with the exported model to finish", f"exit code {code}, see {third.log}")
        begun, left = other / "stages" / "base" / "model", root / "stages" / "rl" / "model"
        equal, tensors = process.submit(equal_tensors, begun, left).result()
    summary = json.loads((other / "summary.json").read_text(encoding="utf-8"))
    before, after = acted(other / "eval" / "test-base"), acted(root / "eval" / "test-rl")
    same = sum(before[task] == after[task] for task in before)
    compute = json.loads((other / "lineage.json").read_text(encoding="utf-8"))["compute"]["dtype_name"]
    # Drafts change the shapes of the first run's batches, and thereby the rounding; in bf16 that can turn an argmax.
    exact = same == len(after) or compute != "float32"
    report = (other / "report.html").stat().st_size
    return [
        (
            "tensors unknown to transformers",
            f"{len(unknown)}, of MTP heads",
            all(".layers.4." in name for name in unknown),
        ),
        ("tensors of the new run's base, bit for bit", f"{equal} of {tensors}", equal == tensors > 0),
        (
            "test tasks on which it acts as before",
            f"{same} of {len(after)} in {compute}",
            before.keys() == after.keys() and exact,
        ),
        (
            "steps of RL from there",
            f"{summary['rl']['steps']}",
            summary["rl"]["steps"] == CIRCLE_STEPS == newest_version(other),
        ),
        ("bytes of its report.html", f"{report}", report > 1000),
    ]


def through_transformers(ours: Path, theirs: Path) -> list[str]:
    """Load a checkpoint with `transformers` and save it there. Return the names of the tensors that it did not read;
    fail if it missed any."""
    from transformers import AutoModelForCausalLM, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model, told = AutoModelForCausalLM.from_pretrained(ours, dtype="auto", output_loading_info=True)
    expect(not told["missing_keys"], "all tensors of transformers in an export", f"without {told['missing_keys']}")
    model.save_pretrained(theirs)
    return sorted(told["unexpected_keys"])


def equal_tensors(one: Path, other: Path) -> tuple[int, int]:
    """Return how many tensors of a checkpoint have the same bits in another one, and how many there are."""
    import torch
    from safetensors.torch import load_file

    first, second = (load_file(folder / "model.safetensors") for folder in (one, other))
    return sum(name in second and torch.equal(value, second[name]) for name, value in first.items()), len(first)


def acted(evaluation: Path) -> dict[str, dict[str, Any]]:
    """Return what an evaluation found of each task at temperature 0, without times and names."""
    rows = [json.loads(line) for line in _whole_lines(evaluation / "results.jsonl")]
    named = ("id", "trace", "seconds")
    return {
        row["task"]: {name: value for name, value in row.items() if name not in named} for row in rows if row["greedy"]
    }


class Session:
    """One run of `etude run`, in its own session and process group."""

    def __init__(self, arguments: Sequence[str | Path], mark: str, log: Path) -> None:
        self.log = log
        etude = Path(sys.executable).parent / "etude"
        self._until = time.monotonic() + DEADLINE
        with log.open("wb") as out:
            self._driver = subprocess.Popen(
                [etude, "run", *arguments],
                cwd=REPOSITORY,
                env={**os.environ, MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def until(self, happened: Callable[[], bool], what: str) -> None:
        while not happened():
            if (code := self._driver.poll()) is not None:
                raise SmokeFailed(f"expected {what}, but the run ended with {code}, see {self.log}")
            self._in_time(what)
            time.sleep(0.1)

    def wait(self) -> int:
        while (code := self._driver.poll()) is None:
            self._in_time("the end of the run")
            time.sleep(0.2)
        return code

    def family(self) -> dict[int, str]:
        """Start time of the driver and of every process below it, by pid."""
        parents = {pid: parent for pid, parent, _ in processes()}
        below = {self._driver.pid}
        while more := {pid for pid, parent in parents.items() if parent in below} - below:
            below |= more
        return {pid: started for pid, _, started in processes() if pid in below}

    def kill(self) -> None:
        self._driver.send_signal(signal.SIGKILL)
        self._driver.wait()

    def _in_time(self, what: str) -> None:
        if time.monotonic() > self._until:
            self.kill()
            raise SmokeFailed(f"waited {DEADLINE:.0f} s for {what}, see {self.log}")


def processes() -> list[tuple[int, int, str]]:
    """(pid, parent's pid, start time) of every process that is not a zombie."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (stat := _read(entry / "stat")):
            fields = stat.decode(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                found.append((int(entry.name), int(fields[1]), fields[19]))
    return found


def until_nothing_is_left(
    mark: str, family: dict[int, str], root: Path, shared_before: set[Path], within: float
) -> float:
    """Wait until nothing of the run is left; return the seconds it took. Raise if something still is after `within`.

    Waiting also rules out short-lived files of other processes on this machine."""
    ended = time.monotonic()
    while left := leftovers(mark, family, root, shared_before):
        in_time = time.monotonic() - ended < within
        expect(in_time, f"nothing of the run {within:.0f} s after the driver's end", left)
        time.sleep(0.5)
    return time.monotonic() - ended


def leftovers(mark: str, family: dict[int, str], root: Path, shared_before: set[Path]) -> list[str]:
    """List what is left of the run: its processes (by ancestry or the mark in their environment), mounts and folders,
    and new shared memory that no process maps."""
    left = [f"{file}" for file in Path("/dev/shm").iterdir() if file not in shared_before and not held(file)]
    for pid, _, started in processes():
        environment = _read(Path(f"/proc/{pid}/environ"))
        if family.get(pid) == started or f"{MARK}={mark}".encode() in environment:
            command = _read(Path(f"/proc/{pid}/cmdline")).replace(b"\0", b" ").decode(errors="replace")
            left.append(f"process {pid} ({command[:80].strip()})")
    mounts = _read(Path("/proc/self/mountinfo")).decode(errors="replace").splitlines()
    left += [f"mount {line.split()[4]}" for line in mounts if str(root) in line]
    for owner in Path(tempfile.gettempdir()).glob("etude-run-*/owner"):
        pid, started = ([*_read(owner).decode().split(), "", ""])[:2]
        if pid.isdecimal() and family.get(int(pid)) == started:
            left.append(f"folder {owner.parent}")
    return left


def held(file: Path) -> bool:
    """Whether a living process maps this shared-memory file; it then belongs to another run."""
    return any(str(file).encode() in _read(Path(f"/proc/{pid}/maps")) for pid, _, _ in processes())


def events(root: Path) -> list[str]:
    return _whole_lines(root / "rl" / "events.jsonl")


def trained_steps(root: Path) -> int:
    return sum(json.loads(line)["event"] == "Trained" for line in events(root))


def newest_version(root: Path) -> int:
    return max((int(file.parent.name[1:]) for file in (root / "weights").glob("v*/manifest.json")), default=-1)


def _each_once(root: Path) -> tuple[str, bool]:
    started = {e["step"]: e["groups"] for e in map(json.loads, events(root)) if e["event"] == "TrainStarted"}
    groups = [group for step in started.values() for group in step]
    return f"{len(groups)} prompts", sorted(groups) == list(range(STEPS * PROMPTS))


def _whole_lines(file: Path) -> list[str]:
    lines = _read(file).decode().splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]


def _read(file: Path) -> bytes:
    """Read a file; empty if it, or the process it belongs to, does not exist."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def expect(holds: bool, expected: str, found: object) -> None:
    if not holds:
        raise SmokeFailed(f"expected {expected}, found {found}")


if __name__ == "__main__":
    sys.exit(main())
