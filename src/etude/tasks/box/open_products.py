"""Grades a build-script task without Étude: tests/test.sh runs it, and it writes the reward file that Harbor reads.

Each case ("product") names changes to the workspace's files and the files that the build must then make. It is built in
a copy of the workspace. Case and expectation lie in the same box as the code under test, which could read them; Étude's
own grader keeps them outside of the box and does not use this script.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than all the rest
    from typing import Any

HERE = pathlib.Path(__file__).resolve().parent


def members(path: pathlib.Path) -> dict[str, bytes]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}
    with tarfile.open(path) as tar:
        files = {info.name: tar.extractfile(info) for info in tar if info.isfile()}
        return {name: file.read() for name, file in files.items() if file}


def same(path: pathlib.Path, artifact: dict[str, Any]) -> bool:
    if artifact.get("text") is not None:
        return path.read_bytes().rstrip() == str(artifact["text"]).encode().rstrip()
    found = {name[2:] if name.startswith("./") else name: data for name, data in members(path).items()}
    return found == {name: text.encode() for name, text in artifact["members"].items()}


def right(product: dict[str, Any], folder: pathlib.Path, command: list[str], seconds: float) -> bool:
    for name, text in product["files"].items():
        path = folder / name
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=seconds, check=False)
        if not product["succeeds"] or done.returncode:
            return bool(product["succeeds"]) == (done.returncode == 0)
        return all(same(folder / path, artifact) for path, artifact in product.get("artifacts", {}).items())
    except (OSError, subprocess.TimeoutExpired, tarfile.TarError, zipfile.BadZipFile):
        return False


def main(workdir: str, reward_file: str) -> int:
    job = json.loads((HERE / "open.json").read_text())
    wrong, products = [], json.loads((HERE / "products.json").read_text())
    for product in products:
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place, "copy")
            shutil.copytree(workdir, folder, symlinks=True)
            if not right(product, folder, job["command"], job["seconds"]):
                wrong.append(product["name"])
    reward = pathlib.Path(reward_file)
    reward.parent.mkdir(parents=True, exist_ok=True)
    reward.write_text("0\n" if wrong else "1\n")
    sys.stdout.write("".join(f"wrong about: {name}\n" for name in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(os.environ.get("WORKDIR", "/work"), os.environ.get("REWARD_FILE", "/logs/verifier/reward.txt")))
