"""One recipe opens the same engine in this process and as a service."""

import asyncio

import numpy as np
import pytest
from tests.engine.tiny import Versions

from etude.cluster import open_cluster
from etude.engine.open import engine_service, open_engine
from etude.engine.protocol import EngineError, GenerateRequest, Sampling, StreamingEngine
from etude.engine.remote import RemoteEngine
from etude.recipe.acting import EngineRecipe
from etude.recipe.compute import ClusterRecipe
from etude.recipe.precision import PrecisionRecipe

RECIPE = EngineRecipe(slots=2, context=96, cache_slots=2)


def test_here_and_as_a_service_it_is_the_same_engine(tmp_path):
    versions = Versions(tmp_path)
    latest = versions.publish()
    common = {"dtype": "float32", "threads": 1, "precision": PrecisionRecipe()}
    request = GenerateRequest("r", np.arange(9, dtype=np.int32), Sampling(20, ()), "a")

    async def whole():
        here = open_engine(versions.folder, RECIPE, **common)
        assert isinstance(here, StreamingEngine)
        one = await here.generate(request)
        await here.shutdown()
        cluster = await open_cluster("inline", run_folder=tmp_path, cpus=1)
        answers = []
        for options in ({}, {"store": str(versions.location)}, {"lockstep": True}):
            service, arguments = engine_service(versions.folder, RECIPE, **common, **options)
            remote = await cluster.start(f"engine{len(answers)}", service, *arguments)
            engine = RemoteEngine(remote, ClusterRecipe(), lockstep="lockstep" in options)
            if "lockstep" in options:
                with pytest.raises(EngineError, match="not open"):
                    await engine.generate(request)
                await engine.open(["a"])
            answers.append(await engine.generate(request))
        await cluster.close()
        return one, *answers

    one, same, newest, locked = asyncio.run(whole())
    assert one.tokens.tolist() == same.tokens.tolist() == locked.tokens.tolist()
    assert [set(answer.versions.tolist()) for answer in (one, same, newest)] == [{0}, {0}, {latest}]
