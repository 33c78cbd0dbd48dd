from dataclasses import replace

import pytest
from tests.contract.engine import CacheAtSwapContract, Case, EngineContract
from tests.engine.tiny import Versions

from etude.cluster import open_cluster
from etude.engine.builtin.service import EngineService
from etude.engine.remote import RemoteEngine
from etude.recipe.compute import ClusterRecipe

SLOTS = 6


def settings(speculate):
    return {"slots": SLOTS, "context": 96, "cache_slots": 8, "speculate": speculate}


@pytest.fixture(scope="module")
def first_version(tmp_path_factory):
    return Versions(tmp_path_factory.mktemp("first"))


def case_of(versions, make):
    return Case(make, versions.reference, versions.publish, versions.publish_damaged, SLOTS)


@pytest.mark.parametrize("speculate", ["never", "always"], scope="class")
class TestBuiltin(EngineContract):
    @pytest.fixture
    def case(self, first_version, tmp_path, speculate):
        versions = first_version.copy(tmp_path / "copy")

        async def make():
            return EngineService(versions.folder, settings(speculate), "float32", 1, str(versions.location))

        return case_of(versions, make)


@pytest.mark.parametrize("policy", ["reset", "salt", "keep"])
class TestCacheAtSwap(CacheAtSwapContract):
    @pytest.fixture
    def case(self, first_version, tmp_path, policy):
        versions = first_version.copy(tmp_path / "copy")

        async def make():
            recipe = {**settings("always"), "cache_at_swap": policy}
            return EngineService(versions.folder, recipe, "float32", 1, str(versions.location))

        return replace(case_of(versions, make), policy=policy)


class TestOverTheCluster(EngineContract):
    @pytest.fixture
    def case(self, first_version, tmp_path):
        versions = first_version.copy(tmp_path / "copy")
        arguments = (str(versions.folder), settings("always"), "float32", 1, str(versions.location))

        async def make():
            cluster = await open_cluster("inline", run_folder=tmp_path, cpus=1)
            remote = await cluster.start("engine", "etude.engine.builtin.service:EngineService", *arguments)
            return RemoteEngine(remote, ClusterRecipe())

        return case_of(versions, make)
