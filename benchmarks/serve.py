"""What the server costs, beside the same requests as calls of the same engine: a random network at the shape of
recipes/tiny.toml, its engine on one core, server and client processes on the other.

`overhead` is the share of tokens per second that 64 streams over HTTP have less than 64 calls of `generate`, which
answer whole; medians of rounds in turns. `p99_added_ms` is by how much later the slowest hundredth of first tokens
comes than by the engine's own streams. `streams` clients at once are answered with `errors` errors. On a busy machine
look at `engine_cpu_overhead`: the share by which the engine's CPU seconds per token are more than with `generate`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _report import finish
from _served import Round

from etude.cluster import Remote, open_cluster
from etude.engine.open import engine_service
from etude.model import Transformer, config_from_recipe, save_hf
from etude.recipe import load_recipe
from etude.recipe.acting import EngineRecipe
from etude.recipe.precision import PrecisionRecipe
from etude.text import Tokenizer

AT_ONCE, TOKENS, ROUNDS = 64, 200, int(os.environ.get("ROUNDS", "3"))
STREAMS, FEW_TOKENS = 500, 64
CONTEXT = 256
_SECONDS = 600.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        finish("serve", asyncio.run(_measure(Path(folder))))


async def _measure(folder: Path) -> dict[str, Any]:
    model = folder / "model"
    tokenizer = Tokenizer.train([(Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")], 1024)
    recipe = load_recipe(Path(__file__).parent.parent / "recipes" / "tiny.toml").model
    save_hf(Transformer(config_from_recipe(recipe, tokenizer.vocab_size)).initialise(0), model)
    tokenizer.save(model / "tokenizer.json")
    cores = sorted(os.sched_getaffinity(0))
    engine_core, other_core = cores[0], cores[-1]
    cluster = await open_cluster("processes", run_folder=folder)
    try:
        settings = EngineRecipe(slots=AT_ONCE, cache_slots=AT_ONCE, context=CONTEXT, speculate="never")
        service, arguments = engine_service(model, settings, dtype="float32", threads=1, precision=PrecisionRecipe())
        engine = await cluster.start("engine", service, *arguments, deadline=_SECONDS)
        psutil.Process((await engine.health()).pid).cpu_affinity([engine_core])
        server = await cluster.start("server", "_served:Server", deadline=_SECONDS)
        client = await cluster.start("client", "_served:Client", deadline=_SECONDS)
        url = await server.call("start", engine, model, CONTEXT, 2 * STREAMS, other_core, deadline=_SECONDS)
        await client.call("prepare", engine, model, other_core, deadline=_SECONDS)

        async def ask(how: str, *words: Any) -> Round:
            found: Round = await client.call(how, *words, deadline=_SECONDS)
            return found

        rounds: dict[str, list[Round]] = {"by_calls": [], "by_streams": [], "by_http": []}
        spent: dict[str, list[float]] = {how: [] for how in rounds}
        of_server = 0.0
        for number in range(ROUNDS + 1):
            for how, kept in rounds.items():
                where = (url,) if how == "by_http" else ()
                before = await _cpu(engine), await _cpu(server)
                found = await ask(how, *where, AT_ONCE, TOKENS, 1000 * number)
                if number:
                    kept.append(found)
                    spent[how].append((await _cpu(engine) - before[0]) / found.tokens)
                    of_server += await _cpu(server) - before[1]
        many = await ask("by_http", url, STREAMS, FEW_TOKENS, 10_000)
    finally:
        await cluster.close()
    speeds = {how: statistics.median(one.tokens / one.seconds for one in kept) for how, kept in rounds.items()}
    first = {how: [s for one in kept for s in one.first] for how, kept in rounds.items()}
    late = {how: float(np.percentile(seconds, 99)) * 1e3 for how, seconds in first.items() if seconds}
    tokens = sum(one.tokens for one in rounds["by_http"])
    engine_cpu = {how: statistics.median(seconds) for how, seconds in spent.items()}
    return {
        "overhead": 1 - speeds["by_http"] / speeds["by_calls"],
        "streams": STREAMS,
        "p99_added_ms": late["by_http"] - late["by_streams"],
        "errors": many.errors + sum(one.errors for one in rounds["by_http"]),
        "tokens_per_s": speeds["by_http"],
        "calls_tokens_per_s": speeds["by_calls"],
        "streams_tokens_per_s": speeds["by_streams"],
        "p99_first_ms": late["by_http"],
        "engine_cpu_overhead": engine_cpu["by_http"] / engine_cpu["by_calls"] - 1,
        "streams_cpu_overhead": engine_cpu["by_streams"] / engine_cpu["by_calls"] - 1,
        "engine_cpu_us_per_token": engine_cpu["by_calls"] * 1e6,
        "server_cpu_us_per_token": of_server / tokens * 1e6,
        "many_tokens_per_s": many.tokens / many.seconds,
        "cores": f"engine {engine_core}, server and client {other_core}",
    }


async def _cpu(service: Remote) -> float:
    return sum(psutil.Process((await service.health()).pid).cpu_times()[:2])


if __name__ == "__main__":
    main()
