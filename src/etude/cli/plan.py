"""etude run --dry-run: prints the resolved recipe with the memory and time that a run would take."""

from __future__ import annotations

from etude.lineage.base import find_base, network_of
from etude.lineage.plan import plan_run
from etude.lineage.room import describe_needs, disk_needs
from etude.model.precision.kernels import implementation_for
from etude.recipe import Recipe
from etude.recipe.load import dump_recipe
from etude.training.memory import PROCESS, in_gb


def describe_plan(recipe: Recipe) -> str:
    plan = plan_run(recipe)
    lines = [dump_recipe(recipe), "# plan"]
    lines.append(f"# computing on    {plan.compute}")
    lines.append(f"# probed          {plan.pace}")
    made = "chosen where the device is"
    if plan.compute.is_here:
        made = implementation_for(recipe.precision, plan.compute.device, plan.compute.dtype).by
    lines.append(f"# experts         {made if network_of(recipe).mixture else 'none: nothing to replay or to balance'}")
    if recipe.precision.rounds:
        lines.append(f"# precision       {recipe.precision}")
    if recipe.model.from_:
        lines.append(f"# base            {find_base(recipe, shape_only=True)}")
    lines.append(f"# parameters      {plan.parameters:,} ({plan.active:,} active per token)")
    if recipe.lora.rank:
        lines.append(f"# trained         {plan.trained:,} of adapters")
    lines.append(
        f"# memory          {in_gb(plan.free)} free; each stage at its peak, with {in_gb(PROCESS)} per process:"
    )
    for need in plan.memory:
        lines.append(f"# {need.stage:<15} {need}")
        if need.advice:
            lines.append(f"# too much        {need.stage} does not fit: {need.advice}")
    lines.append(f"# disk            {describe_needs(disk_needs(recipe, network_of(recipe)))}")
    lines.append(f"# boxes           {describe_boxes(recipe)}")
    lines += [f"# {stage:<15} {tokens:>12,} tokens  about {seconds:,.0f} s" for stage, tokens, seconds in plan.stages]
    lines.append(f"# total           about {sum(s for *_, s in plan.stages) / 60:.0f} minutes")
    return "\n".join(lines)


def describe_boxes(recipe: Recipe) -> str:
    hosts = recipe.sandbox.hosts
    return f"on {hosts} of {recipe.cluster.nodes} nodes" if hosts else "beside the processes that use them"
