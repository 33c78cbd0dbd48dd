"""A driver to be killed: opens a cluster, starts services, says where it is, and waits."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from etude.cluster import open_cluster


async def main(folder: Path, backend: Any) -> None:
    cluster: Any = await open_cluster(backend, run_folder=folder, cpus=2)
    echo = await cluster.start("echo", "tests.contract.cluster_services:Echo", cpus=0.1, env={"ETUDE_MARK": "7"})
    facts = {
        "folder": str(cluster._folder),
        "pid": (await echo.health()).pid,
        "mark": await echo.call("variable", "ETUDE_MARK", deadline=60),
        "token": await echo.call("variable", "RAY_AUTH_TOKEN", deadline=60),
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    if "close" in sys.argv:
        await asyncio.to_thread(sys.stdin.readline)  # Until somebody has looked.
        await cluster.close()
        return
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
