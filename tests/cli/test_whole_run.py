"""One whole run of the command, shrunk to a minute: interrupted, resumed, and looked at from every side."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from etude.journal import read_metrics
from etude.recipe import load_recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PATIENCE = 1500.0
"""With one command, in seconds; it ends what hangs."""
ETUDE = str(Path(sys.executable).with_name("etude"))
OVERRIDES = """
cluster.backend=inline
compute.threads=1
model.hidden_size=64 model.num_hidden_layers=2 model.intermediate_size=128 model.moe_intermediate_size=32
tasks.train=8 tasks.dev=3 tasks.test=4
corpus.generated_documents=400 corpus.max_file_bytes=20_000
pretrain.steps=4
long.steps=2
mtp.steps=1 mtp.joint_steps=1
sft.steps=3 sft.demonstrations=12
rl.steps=2 rl.prompts_per_step=2 rl.group=2
harness.max_tokens=192 harness.max_turn_tokens=48
evaluation.samples=1 evaluation.one_edit=1
"""

PROMISED = """
pretrain loss_before loss_after
long late_loss_before late_loss_after
mtp accepted_per_draft
sft valid_calls
rl tasks k pass1_before pass1_after passk_before passk_after steps infra_errors masked
rl staleness_mean multi_version_share summary_share
replay overridden refused p99_off p99_on p99_filter
weights published delta_share_mean
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> SimpleNamespace:
    """Interrupted while it writes the corpus, then the same command to its end, then once more."""
    runs = tmp_path_factory.mktemp("runs")
    root = runs / "small"
    recipe = Path(shutil.copy("recipes/tiny.toml", runs))
    command = [ETUDE, "run", str(recipe), "--runs", str(runs), "--name", "small", *OVERRIDES.split()]
    # What runs in a shell's background has Ctrl-C ignored, and hands that on.
    heeding = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeding)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and first.poll() is None:
        if (root / "lineage.json").exists() and '"corpus"' in (root / "lineage.json").read_text():
            break
        time.sleep(0.05)
    time.sleep(0.5)
    first.send_signal(signal.SIGINT)
    first_out, first_err = first.communicate(timeout=PATIENCE)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    return SimpleNamespace(
        root=root, interrupted=(first.returncode, first_out, first_err), done=done, again=again, command=command
    )


def test_ctrl_c_says_what_to_do(run) -> None:
    code, _, err = run.interrupted
    assert code == 130, err
    assert err.splitlines()[-1] == "etude: interrupted: run the same command again to resume"
    assert "Traceback" not in err


def test_the_same_command_goes_on_and_says_so(run) -> None:
    assert run.done.returncode == 0, run.done.stderr
    assert "going on with" in run.done.stderr
    assert "was interrupted: going on where it was" in run.done.stderr
    assert run.again.returncode == 0
    assert run.again.stderr.count("done before") == 9
    assert run.again.stdout.splitlines()[0] == run.done.stdout.splitlines()[0]


def test_the_last_lines_say_where_to_look(run) -> None:
    assert "test tasks solved, pass@1" in run.done.stdout
    for line in ("report", "plots", "next    etude chat"):
        assert any(shown.startswith(line) for shown in run.done.stdout.splitlines())


def test_summary_holds_what_is_promised(run) -> None:
    summary = json.loads((run.root / "summary.json").read_text())
    for section, *names in map(str.split, PROMISED.strip().splitlines()):
        assert summary[section].keys() >= set(names), section
    assert list(summary["seconds"]) == list(json.loads((run.root / "lineage.json").read_text())["stages"])
    assert summary["waits"]["driver"]["trainer"] > 0
    assert summary["weights"]["published"] == summary["rl"]["steps"] == 2
    assert summary["rl"]["test_evaluations"] == 4, "before and after, each with one edit too"
    assert summary["rl"].keys() >= {"first_edit_after", "one_edit_before", "one_edit_after", "one_edit_greedy_after"}
    assert sum(cell["tasks"] for cell in summary["cells"].values()) == summary["rl"]["tasks"]
    assert all(0 <= cell["pass1_after"] <= 1 for cell in summary["cells"].values())


def test_the_folder_is_private_and_its_recipe_loads(run) -> None:
    assert run.root.stat().st_mode & 0o777 == 0o700
    assert load_recipe(run.root / "recipe.toml").tasks.train == 8
    stages = json.loads((run.root / "lineage.json").read_text())["stages"]
    assert all(record["done"] and len(record["output"]) == 16 for record in stages.values())
    assert stages["corpus"]["sessions"] == 2
    assert stages["rl"]["inputs"]["sft"] == stages["sft"]["output"]


def test_the_clock_of_rl_runs_on(run) -> None:
    clock = [row["elapsed"] for row in read_metrics(run.root / "stages/rl/metrics.jsonl")]
    assert len(clock) == 2
    assert 0 < clock[0] < clock[1]


def test_another_run_takes_over_what_would_come_out_the_same(run) -> None:
    runs = run.root.parent
    again = [name for name in run.command if name not in ("--name", "small")]
    part = [*again, "rl.steps=1", "--name", "part", "--reuse", str(runs), "--until", "rl"]
    shown = subprocess.run(part, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr.count("taken over from small") == 7
    assert "RL                made anew: small differs in rl, " in shown.stderr
    stages = json.loads((runs / "part/lineage.json").read_text())["stages"]
    assert list(stages) == ["tasks", "corpus", "pretrain", "long", "mtp", "demonstrations", "sft", "rl"]
    assert [record["taken_from"] for record in stages.values()] == ["../small"] * 7 + [""]
    assert not (runs / "part/eval/test-sft").exists(), "the test is not touched before its stage"
    whole = [*again, "--name", "whole", "--reuse", str(run.root)]
    shown = subprocess.run(whole, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert shown.stderr.count("taken over from small") == 9
    table = [line for line in run.again.stdout.splitlines() if line.startswith(("pretrain", "sft", "rl"))]
    assert [line for line in shown.stdout.splitlines() if line.startswith(("pretrain", "sft", "rl"))] == table
    assert "One task, before and after" in (runs / "whole/report.html").read_text()


def test_the_report_can_be_written_again(run) -> None:
    page = run.root / "report.html"
    page.unlink()
    subprocess.run([ETUDE, "report", str(run.root)], check=True, capture_output=True)
    told = page.read_text()
    story = ("million parameters", "CPUs (", "4 unseen test tasks")
    for part in (*story, "One task, before and after", "Where the cores were"):
        assert part in told, part


def test_a_changed_recipe_is_refused_and_the_old_one_kept(run) -> None:
    before = (run.root / "recipe.toml").read_text()
    shown = subprocess.run([*run.command, "rl.steps=3"], capture_output=True, text=True, check=False)
    assert shown.returncode == 2
    assert shown.stderr.count("\n") == 1
    assert "since stage rl was run" in shown.stderr
    assert (run.root / "recipe.toml").read_text() == before


def test_a_dry_run_prints_a_recipe_and_a_plan(run, tmp_path) -> None:
    shown = subprocess.run([*run.command, "--dry-run"], capture_output=True, text=True, check=True).stdout
    file = tmp_path / "printed.toml"
    file.write_text(shown)
    assert load_recipe(file).tasks.train == 8
    for word in ("# plan", "graded here", "parameters", "memory", "pretrain", "evaluate", "threads", "total"):
        assert word in shown


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk, which needs root")
def test_a_full_disk_is_one_line(run, tmp_path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=700m", "tmpfs", str(disk)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    try:
        command = [ETUDE, "run", "recipes/tiny.toml", "--runs", str(disk), "--name", "small", *OVERRIDES.split()]
        going = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not (disk / "small/lineage.json").exists() and going.poll() is None:
            time.sleep(0.02)
        fill(disk, but=2_000_000)
        err = going.communicate(timeout=PATIENCE)[1]
        assert going.returncode == 2, err
        assert err.splitlines()[-1].startswith("etude: the disk is full"), err
        assert "Traceback" not in err
        small = subprocess.run(command, capture_output=True, text=True, check=False)
        assert small.returncode == 2
        assert "has room for" in small.stderr
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def fill(disk: Path, *, but: int) -> None:
    """In pieces: a run that works there has its share of what is free meanwhile."""
    with (disk / "ballast").open("wb") as ballast, suppress(OSError):
        while (free := os.statvfs(disk).f_bavail * 4096) > but:
            held = os.fstat(ballast.fileno()).st_size
            os.posix_fallocate(ballast.fileno(), held, max((free - but) // 2, 4096))
