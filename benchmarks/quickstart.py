"""The quick start as a newcomer runs it: the whole of recipes/tiny.toml, resumed if it was interrupted.

There is no peer that trains such a line; what is read is the time and what every stage changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from _report import finish

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "runs" / "tiny"


def main() -> None:
    command = [sys.executable, "-m", "etude.cli.main", "run", str(ROOT / "recipes" / "tiny.toml")]
    subprocess.run([*command, "--runs", str(RUN.parent), "--name", RUN.name], check=True, stdout=sys.stderr)
    summary = json.loads((RUN / "summary.json").read_text(encoding="utf-8"))
    rl = summary["rl"]
    finish(
        "quickstart",
        {
            "minutes": sum(summary["seconds"].values()) / 60,
            "pretrain_loss": [round(summary["pretrain"][key], 3) for key in ("loss_before", "loss_after")],
            "late_loss": [round(summary["long"][key], 3) for key in ("late_loss_before", "late_loss_after")],
            "mtp_accepted": summary["mtp"]["accepted_per_draft"],
            "valid_calls": summary["sft"]["valid_calls"],
            "tasks": rl["tasks"],
            "k": rl["k"],
            "pass1": [round(rl[key], 3) for key in ("pass1_before", "pass1_after")],
            "passk": [round(rl[key], 3) for key in ("passk_before", "passk_after")],
            "rl_steps": rl["steps"],
            "masked": rl["masked"],
        },
    )


if __name__ == "__main__":
    main()
