"""Processes that run a stage until it ends or they are killed. They are forked from one that has loaded torch, which
takes longer than what they do."""

import asyncio
import multiprocessing
import os
import signal
from multiprocessing.process import BaseProcess

from etude.pretrain import StageService

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["etude.pretrain.service", "etude.pretrain.stage"])
_NEVER = 1_000


def begin(stage, run, data, dies_at=_NEVER) -> BaseProcess:
    """It kills itself as soon as it has told of the step `dies_at`."""
    life = _FORKS.Process(target=_live, args=(stage, str(run), data, dies_at))
    life.start()
    return life


def end(life: BaseProcess, seconds: float) -> int | None:
    """Its exit code; None if it goes on."""
    life.join(seconds)
    return life.exitcode


def _live(stage, run, data, dies_at):
    async def train():
        async for progress in StageService(stage, run, data).run():
            if progress["step"] >= dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(train())
