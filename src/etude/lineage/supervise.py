"""Runs a stage's work as a service in its own process, which is restarted and resumes if it dies."""

from __future__ import annotations

from typing import Any

from etude.cluster import DeadlineExceeded, ServiceDied, start_supervised
from etude.lineage.context import RunContext


async def run_service_stage(context: RunContext, stage: str, service: str, *args: Any) -> dict[str, Any]:
    """Show the updates of the service's stream `run()` until it ends, then return its result. A service that dies or
    hangs is restarted, as often as the recipe allows."""
    limits, journal = context.recipe.cluster, context.journal
    supervised = await start_supervised(await context.cluster(), limits, journal, stage, service, *args, cpus=1.0)
    deadline = limits.call_seconds
    try:
        while True:
            incarnation = supervised.incarnation
            try:
                async for update in supervised.remote.stream("run", deadline=deadline):
                    context.screen.update(stage, update)
                result: dict[str, Any] = await supervised.remote.call("result", deadline=deadline)
                return result
            except (ServiceDied, DeadlineExceeded) as error:
                context.screen.note(f"{error}; starting it again where it was")
                await supervised.heal(incarnation, str(error))
    finally:
        await supervised.remote.kill()
