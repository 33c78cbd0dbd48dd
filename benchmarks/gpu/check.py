"""The model room on a GPU: checked against its CPU reference, then measured. Prints raw JSON lines, the last a summary.

Checks: forward (plain, packed, replayed), gradients, `extend` against `forward`, all in fp32, and bf16 near fp32.
Measures: tokens per second of forward and backward, and of decoding, at a mid-size configuration in bf16. A check that
does not hold is printed and ends with exit code 1; measurements are still made. `--device cpu --small` tries the script
where there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from typing import Any

NEEDED = ("torch", "numpy", "safetensors")


def main() -> int:
    options = argparse.ArgumentParser(description="checks and measures the model room on a GPU")
    options.add_argument("--device", default="cuda")
    options.add_argument("--small", action="store_true", help="tiny shapes, to try the script itself")
    options.add_argument("--seconds", type=float, default=20.0, help="for each measurement")
    chosen = options.parse_args()
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"gpu: this Python lacks {', '.join(missing)}: install them into it", file=sys.stderr)
        return 2
    import torch

    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < (2, 11):
        print(f"gpu: torch 2.11 or newer is needed, {torch.__version__} found", file=sys.stderr)
        return 2
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("gpu: no CUDA device", file=sys.stderr)
        return 2

    from checks import CHECKS
    from measure import MEASURES

    torch.backends.cuda.matmul.allow_tf32 = False
    name = torch.cuda.get_device_name() if chosen.device == "cuda" else "cpu"
    print(json.dumps({"device": name, "torch": torch.__version__, "cuda": torch.version.cuda}))
    failed, figures = [], {}
    for check in CHECKS:
        line = _checked(check, chosen.device)
        failed += [] if line["ok"] else [line["check"]]
        print(json.dumps(line), flush=True)
    for measure in MEASURES:
        for line in measure(chosen.device, chosen.small, chosen.seconds):
            print(json.dumps(line), flush=True)
            figures[line["measure"]] = line["tokens_per_second"]
    print(json.dumps({"gpu": name, "failed": failed, "checks": len(CHECKS), "tokens_per_second": figures}))
    return 1 if failed else 0


def _checked(check: Callable[[str], str], device: str) -> dict[str, Any]:
    """Any failure of one check is its result: the others are still of interest on a lent machine."""
    begun = time.perf_counter()
    try:
        found, ok = check(device), True
    except (AssertionError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        found, ok = f"{type(error).__name__}: {str(error).strip()[:300]}", False
    name = check.__name__
    return {"check": name, "ok": ok, "found": found, "seconds": round(time.perf_counter() - begun, 2)}


if __name__ == "__main__":
    sys.path.insert(0, str(__import__("pathlib").Path(__file__).resolve().parent))
    sys.exit(main())
