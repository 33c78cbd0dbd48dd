"""The quick start as a newcomer runs it: all of recipes/tiny.toml, resumed if it was interrupted.

No peer trains such a line of stages. Reported are the time, what each stage changed, and each stage's planned time
divided by its actual time; stages where the plan is off by more than 30 % are named. If some stage was made by other
code than the current one, this is printed and nothing is recorded, since a row must name the code that made it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from _report import finish

from etude.journal import code_digest, write_atomically
from etude.lineage.plan import plan_run
from etude.lineage.state import LineageState
from etude.recipe import load_recipe

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "runs" / "tiny"
PLAN = RUN.with_name("tiny-plan.json")
NEAR = 1.3
"""Largest factor between a stage's planned and actual time that counts as a good plan."""


def main() -> None:
    recipe = ROOT / "recipes" / "tiny.toml"
    said = plan_of(recipe)
    command = [sys.executable, "-m", "etude.cli.main", "run", str(recipe)]
    subprocess.run([*command, "--runs", str(RUN.parent), "--name", RUN.name], check=True, stdout=sys.stderr)
    summary = json.loads((RUN / "summary.json").read_text(encoding="utf-8"))
    rl = summary["rl"]
    planned = {name: said[name] / seconds for name, seconds in summary["seconds"].items() if name in said}
    if beyond := far_from(planned):
        shares = ", ".join(f"{name} ({planned[name]:.2f})" for name in beyond)
        print(f"the plan is off by more than {NEAR - 1:.0%} (planned / actual): {shares}", file=sys.stderr)
    others = [n for n, s in LineageState.load(RUN / "lineage.json").stages.items() if s.code_digest != code_digest()]
    if others and os.environ.pop("RECORD", "0") not in ("", "0"):
        print(f"not recorded: other code made {', '.join(others)}; remove {RUN} and run again", file=sys.stderr)
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
            "planned": {name: round(share, 2) for name, share in planned.items()},
            "beyond": beyond,
        },
    )


def plan_of(recipe: Path) -> dict[str, float]:
    """Planned seconds by stage. The plan is made before the run first starts and kept, so that a resumed run is
    compared with the original plan. Empty if the run was started without a plan."""
    if not RUN.exists():
        PLAN.parent.mkdir(parents=True, exist_ok=True)
        stages = plan_run(load_recipe(recipe)).stages
        write_atomically(PLAN, json.dumps({stage: seconds for stage, _, seconds in stages}).encode())
    return json.loads(PLAN.read_bytes()) if PLAN.exists() else {}


def far_from(planned: dict[str, float]) -> list[str]:
    """Stages whose planned time is off by more than the factor NEAR. `planned`: planned / actual time by stage."""
    return [name for name, share in planned.items() if not 1 / NEAR <= share <= NEAR]


if __name__ == "__main__":
    main()
