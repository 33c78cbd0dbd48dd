"""`make gpu` itself, tried on the CPU: its checks hold, and it needs nothing but torch, numpy and safetensors."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu" / "check.py"
BARE = """
import runpy, sys
absent = "pydantic typer rich httpx pyarrow zstandard xxhash ray transformers numba pytest"
for name in absent.split():
    sys.modules[name] = None
sys.path[:0] = [{source!r}, {folder!r}]
sys.argv = [{script!r}, "--device", "cpu", "--small", "--seconds", "0"]
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.slow
def test_the_checks_hold_with_torch_alone() -> None:
    code = BARE.format(source=str(ROOT / "src"), folder=str(SCRIPT.parent), script=str(SCRIPT))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:] + found.stdout[-3000:]
    last = json.loads(found.stdout.splitlines()[-1])
    assert last["failed"] == []
    assert last["checks"] >= 9
    assert all(pace > 0 for pace in last["tokens_per_second"].values())


@pytest.mark.slow
def test_every_row_of_the_line_can_be_tried_on_a_cpu() -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "ignore", "-P", str(SCRIPT), "--device", "cpu", "--small", "--only", "line"]
    found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    rows = json.loads(found.stdout.splitlines()[-1])["rows"]
    assert {row["row"] for row in rows} == {"train", "engine", "rl circle"}
    assert not [row for row in rows if "not_measured" in row]
    assert all(row["tokens_s"] > 0 for row in rows if row["row"] != "rl circle")
    (circle,) = [row for row in rows if row["row"] == "rl circle"]
    assert circle["finite"]
    assert circle["mismatch_mean"] < 1e-3


@pytest.mark.soak
def test_without_a_gpu_it_says_so_in_one_line_and_interprets_the_kernels() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    pytest.importorskip("triton")
    command = ["sh", str(SCRIPT.parent / "run.sh")]
    env = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-3000:]
    assert found.stderr == "gpu: no GPU found: kernels are checked under Triton's interpreter, nothing is measured\n"
    last = json.loads(found.stdout.splitlines()[-1])
    assert last["gpu"] is None
    assert last["checks"] >= 9
    assert last["rows"] == []
    assert last["not_measured"] != []


def test_without_torch_or_triton_it_says_so_in_one_line(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    there = tmp_path / "benchmarks" / "gpu" / "run.sh"
    there.parent.mkdir(parents=True)
    there.write_text((SCRIPT.parent / "run.sh").read_text(encoding="utf-8"))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    found = subprocess.run(["/bin/sh", str(there)], env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stdout == ""
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.soak
def test_the_rows_of_the_kernels_can_be_tried_without_a_gpu() -> None:
    pytest.importorskip("triton")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-P", str(SCRIPT), "--interpreted", "--small"]
    found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    rows = json.loads(found.stdout.splitlines()[-1])["rows"]
    assert len(rows) >= 30
    for row in rows:
        reason = row.get("not_measured", "")
        if "torch_scaled" in row["kernel"]:
            assert "torch implements it for GPUs only" in reason
        else:
            assert reason in ("", "time was up"), row
            if row["kernel"] == "layer bf16 torch":
                assert row.get("max_error") is None, "the other layers are held against it"
            else:
                assert row.get("max_error", 0) < 0.12, row


def printed(gpu: str | None) -> str:
    first = {"device": gpu or "cpu", "torch": "2.11.0", "cuda": "12.8", "date": "2026-01-02", "code": "ab" * 8}
    rows = [{"kernel": "quantise mxfp8", "shape": "4x32", "gb_s": 7, "ratio_peak": 0.5, "max_error": 0.0}]
    rows += [{"kernel": "forward fp8_block triton", "shape": "up", "not_measured": "time was up"}]
    last = {"gpu": gpu, "failed": [], "checks": 3, "tokens_per_second": {"decode": 9}, "rows": rows}
    return "".join(json.dumps(line) + "\n" for line in (first, {"check": "one", "ok": True}, last))


@pytest.fixture(scope="module")
def record() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record", SCRIPT.with_name("record.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))  # the script adds a folder for good
        spec.loader.exec_module(module)
    return module


def recorded(record: ModuleType, folder: Path, text: str) -> tuple[int, str]:
    """Exit code, and the results with a row of before."""
    file, results = folder / "gpu.jsonl", folder / "rows.jsonl"
    file.write_text(text)
    results.write_text("{}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["record.py", str(file), "--results", str(results)])
        return record.main(), results.read_text()


def test_what_it_printed_elsewhere_is_kept_row_by_row(record: ModuleType, tmp_path: Path) -> None:
    code, results = recorded(record, tmp_path, printed("NVIDIA H100"))
    assert code == 0
    rows = [json.loads(line) for line in results.splitlines()[1:]]
    assert [row.pop("result") for row in rows] == [
        {"checks": 3, "failed": [], "tokens_per_second": {"decode": 9}},
        {"kernel": "quantise mxfp8", "shape": "4x32", "gb_s": 7, "ratio_peak": 0.5, "max_error": 0.0},
        {"kernel": "forward fp8_block triton", "shape": "up", "not_measured": "time was up"},
    ]
    machine = "NVIDIA H100, torch 2.11.0, CUDA 12.8"
    whole = {"date": "2026-01-02", "command": "make gpu", "machine": machine, "code": "abababababab"}
    assert rows == [whole] * 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a first line with the device"),
        ("kernels\n", "no JSON"),
        ("[]\n", "no JSON object"),
        (printed(None), "nothing was measured on a GPU"),
        (printed("NVIDIA H100").rpartition('{"gpu"')[0], "a last line with rows"),
    ],
    ids=["empty", "no JSON", "no object", "no GPU", "cut short"],
)
def test_what_is_not_its_output_is_refused_in_one_line(
    record: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    assert recorded(record, tmp_path, text) == (2, "{}\n")
    shown = capsys.readouterr()
    assert (shown.out, len(shown.err.splitlines())) == ("", 1)
    assert said in shown.err
