"""`etude serve`: serves a model to clients of OpenAI's and Anthropic's protocols."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from etude.harness import format_of
from etude.lineage import dtype_of, finished_stage
from etude.recipe.acting import EngineRecipe
from etude.recipe.compute import ComputeRecipe
from etude.recipe.precision import PrecisionRecipe
from etude.serve.app import App
from etude.serve.limits import Keys, Limits, ServeError
from etude.serve.open import Source, opened
from etude.serve.server import base_url, is_private, listen, serve
from etude.text import open_tokenizer
from etude.text.opening import open_format

_STAGES = ("rl", "continued", "sft", "base", "mtp", "long", "pretrain")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    model: Path
    stage: str | None
    form: str
    names: list[str]
    host: str
    port: int
    keys: Path | None
    queue: int
    per_key: int
    slots: int
    context: int | None
    max_tokens: int | None
    dtype: str
    threads: int
    device: str
    drain: float


def serve_command(options: ServeOptions) -> int:
    if options.keys is None and not is_private(options.host):
        raise ServeError(
            f"--host {options.host}: whoever reaches this address could use the model; name a file of keys with --keys"
        )
    keys = Keys({}) if options.keys is None else Keys.read(options.keys)
    asyncio.run(_serve(options, keys))
    return 0


async def _serve(options: ServeOptions, keys: Keys) -> None:
    source = _source(options)
    listening = listen(options.host, options.port)
    url = base_url(listening)
    with listening, tempfile.TemporaryDirectory(prefix="etude-serve-") as folder:
        _say(f"opening {source.folder}")
        async with opened(source, Path(folder), _restarted) as found:
            limits = Limits(in_flight=options.slots + options.queue, per_key=options.per_key or sys.maxsize)
            app = App(found.gateway, keys=keys, limits=limits)

            def ready() -> None:
                _say(f"{source.names[0]}: {found.told}")
                print(_ready(url, source.names[0], locked=not keys.open), flush=True)

            await serve(app, listening, drain=options.drain, ready=ready, told=_say)


def _restarted(reason: str) -> None:
    _say(f"the engine was restarted: {reason}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _ready(url: str, name: str, *, locked: bool) -> str:
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "hello"}]})
    key = " -H 'authorization: Bearer KEY'" if locked else ""
    return (
        f"ready: {url}/v1 (OpenAI), {url} (Anthropic)\n"
        f"try: curl {url}/v1/chat/completions{key} -H 'content-type: application/json' -d '{body}'"
    )


def _source(options: ServeOptions) -> Source:
    place = options.model.expanduser().resolve()
    if "://" in str(options.model) or not place.is_dir():
        raise ServeError(f"{options.model}: there is no such folder; expected a model's folder, or a run's")
    of_stage = place.parent.name == "stages" and (place.parents[1] / "recipe.toml").is_file()
    threads = options.threads or max(1, len(os.sched_getaffinity(0)) - 1)
    if of_stage or (place / "recipe.toml").is_file():
        run, stage = (place.parents[1], options.stage or place.name) if of_stage else (place, options.stage)
        found = finished_stage(run, stage, _STAGES)
        recipe = found.recipe
        if options.form == "auto":
            form_name: str = recipe.harness.format
            form = format_of(recipe.harness, found.paths.tokenizer)
            named = Path(recipe.harness.tokenizer or found.paths.tokenizer).expanduser()
            tokenizer = open_tokenizer(named)
        else:
            form_name, form, tokenizer = open_format(found.paths.tokenizer.parent, options.form)
        dtype = dtype_of(found.paths) if options.dtype == "auto" else options.dtype
        return Source(
            found.model,
            tokenizer,
            form,
            form_name,
            tuple(options.names or (run.name,)),
            recipe.engine.model_copy(update=_slots(options)),
            _compute(dtype, threads, options.device),
            recipe.precision,
            options.context or recipe.engine.context,
            options.max_tokens,
        )
    if options.stage is not None:
        raise ServeError(f"--stage {options.stage}: {options.model} is not a run folder")
    form_name, form, tokenizer = open_format(place, options.form)
    return Source(
        place,
        tokenizer,
        form,
        form_name,
        tuple(options.names or (place.name,)),
        EngineRecipe.model_validate(_slots(options)),
        _compute(options.dtype, threads, options.device),
        PrecisionRecipe(),
        options.context,
        options.max_tokens,
    )


def _slots(options: ServeOptions) -> dict[str, int]:
    return {"slots": options.slots, "cache_slots": options.slots}


def _compute(dtype: str, threads: int, device: str) -> ComputeRecipe:
    try:
        return ComputeRecipe.model_validate({"dtype": dtype, "threads": threads, "device": device})
    except ValueError as error:
        raise ServeError(
            f"--dtype {dtype}, --device {device}: expected auto, float32 or bfloat16, and cpu or cuda"
        ) from error
