"""Checks the model and its kernels on a GPU against the CPU, then measures them. Prints JSON lines; the last one is a
summary.

Checks: forward (plain, packed, replayed), gradients and `extend` against `forward`, all in fp32, and bf16 close to
fp32; the low-precision references bit for bit against themselves on the CPU, and emulated low precision; the kernels
against the references, most of them bit for bit.

Measurements: tokens per second of forward with backward, and of decoding, at a mid-size configuration in bf16; the
line's rows (`line_rows.py`) and the kernels' (`kernel_rows.py`). A failed check is printed and makes the exit code 1;
measurements still run. `--only` runs one part, where ten minutes are to be split.

`--interpreted` checks the kernels without a GPU, under Triton's interpreter, and says what was not measured. `--small`
tests this script: with `--interpreted` it makes only the kernels' rows, with `--device cpu` everything else.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

NEEDED = ("torch", "numpy", "safetensors")
SECONDS, LINE_SECONDS = 540.0, 430.0
"""Seconds after which no row is started, and none of the line's; `make gpu` stops the script at 590."""
PARTS = ("checks", "tests", "measures", "line", "kernels")
TEST_SECONDS = 100
TESTS = ("tests/model", "tests/training", "tests/engine", "tests/rl", "tests/pretrain")
"""Folders with tests marked `gpu`."""


def main() -> int:
    options = argparse.ArgumentParser(description="Check the model and its kernels on a GPU, then measure them.")
    options.add_argument("--device", default="cuda", help="torch device to check and measure (default cuda)")
    options.add_argument("--small", action="store_true", help="use tiny shapes, to test this script itself")
    options.add_argument("--seconds", type=float, default=5.0, help="seconds per model measurement (default 5)")
    options.add_argument(
        "--interpreted", action="store_true", help="without a GPU: check the kernels alone, under Triton's interpreter"
    )
    options.add_argument("--only", choices=PARTS, action="append", help="run this part alone; may be repeated")
    chosen = options.parse_args()
    parts = chosen.only or PARTS
    begun = time.monotonic()
    if chosen.interpreted:
        chosen.device, os.environ["TRITON_INTERPRET"] = "cpu", "1"
    needed = (*NEEDED, "triton") if chosen.interpreted else NEEDED
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        print(f"gpu: this Python lacks {', '.join(missing)}; install with its pip, or set PYTHON", file=sys.stderr)
        return 2
    import torch

    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < (2, 11):
        print(f"gpu: expected torch 2.11 or newer, found {torch.__version__}; upgrade it", file=sys.stderr)
        return 2
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("gpu: torch finds no CUDA device; use --interpreted or --device cpu --small", file=sys.stderr)
        return 2

    from checks import CHECKS
    from emulation_checks import EMULATION_CHECKS
    from kernel_checks import KERNEL_CHECKS
    from kernel_rows import kernel_rows
    from line_rows import line_rows
    from measure import MEASURES

    from bench import K2, TINY
    from etude.journal import code_digest
    from etude.model.precision.kernels import overview

    torch.backends.cuda.matmul.allow_tf32 = False
    on_gpu = chosen.device == "cuda"
    name = torch.cuda.get_device_name() if on_gpu else "cpu"
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    print(
        json.dumps(
            {"device": name, **versions, "date": time.strftime("%Y-%m-%d", time.gmtime()), "code": code_digest()}
        )
    )
    print(json.dumps({"kernels": overview(chosen.device).splitlines()}), flush=True)
    measured = on_gpu or (chosen.interpreted and chosen.small)
    checks = () if chosen.interpreted else (*CHECKS, *EMULATION_CHECKS)
    checks += KERNEL_CHECKS if on_gpu or (chosen.interpreted and not chosen.small) else ()
    failed, figures, rows = [], {}, []
    for check in checks if "checks" in parts else ():
        line = _checked(check, chosen.device)
        failed += [] if line["ok"] else [line["check"]]
        print(json.dumps(line), flush=True)
    if on_gpu and "tests" in parts:
        line = tested()
        failed += ["tests"] if line.get("failed") else []
        print(json.dumps(line), flush=True)
        rows.append(line)
    for measure in () if chosen.interpreted or "measures" not in parts else MEASURES:
        for line in measure(chosen.device, chosen.small, chosen.seconds):
            print(json.dumps(line), flush=True)
            figures[line["measure"]] = line["tokens_per_second"]
    with_line = "line" in parts and not chosen.interpreted
    for row in line_rows(chosen.device, chosen.small, begun + LINE_SECONDS) if with_line else ():
        print(json.dumps(row), flush=True)
        rows.append(row)
    sizes, measured = TINY if chosen.small else K2, measured and "kernels" in parts
    for row in kernel_rows(chosen.device, sizes, begun + SECONDS - time.monotonic()) if measured else ():
        print(json.dumps(row), flush=True)
        rows.append(row)
    summary = {"gpu": name if on_gpu else None, "failed": failed, "checks": len(checks), "tokens_per_second": figures}
    not_measured = [row.get("kernel") or row["row"] for row in rows if "not_measured" in row]
    not_measured += (
        [] if measured else ["quantisers, permutation, grouped matmuls, a layer of experts: there is no GPU"]
    )
    print(json.dumps({**summary, "rows": rows, "not_measured": not_measured}))
    return 1 if failed else 0


def tested() -> dict[str, Any]:
    """Run the tests that are marked `gpu`, if pytest is there, and return what it says at the end."""
    if missing := [name for name in ("pytest", "hypothesis") if importlib.util.find_spec(name) is None]:
        return {"row": "tests", "not_measured": f"this Python lacks {', '.join(missing)}"}
    plugins = ["-p", "no:cacheprovider", "-p", "no:randomly", "-o", "addopts=--import-mode=importlib"]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *plugins, *TESTS]
    begun, env = time.monotonic(), {**os.environ, "PYTHONPATH": "src:."}
    try:
        run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TEST_SECONDS, check=False)
        said, code = run.stdout.splitlines(), run.returncode
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        said, code = (printed.decode() if isinstance(printed, bytes) else printed).splitlines(), 1
    broken = [line[:200] for line in said if line.startswith(("FAILED", "ERROR"))]
    ended = {"failed": code != 0, "broken": broken[:40], "said": said[-1][:200] if said else ""}
    return {"row": "tests", **ended, "seconds": round(time.monotonic() - begun, 1)}


def _checked(check: Callable[[str], str], device: str) -> dict[str, Any]:
    """Run one check. Any failure becomes its result, so that the other checks still run."""
    begun = time.perf_counter()
    try:
        found, ok = check(device), True
    except Exception as error:  # noqa: BLE001 - compilers and drivers raise of their own
        found, ok = f"{type(error).__name__}: {str(error).strip()[:300]}", False
    name = check.__name__
    return {"check": name, "ok": ok, "found": found, "seconds": round(time.perf_counter() - begun, 2)}


if __name__ == "__main__":
    sys.path.insert(0, str(__import__("pathlib").Path(__file__).resolve().parent))
    sys.exit(main())
