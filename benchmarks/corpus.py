"""A corpus of code through the whole chain, from JSON lines to unique clean documents, beside datatrove's.

    make bench NAME=corpus

The documents are the Python files of the installed packages, with planted exact and near copies. Both read the same
files, apply the same filters (size, generated, minified, tables, syntax) and redaction, our functions, and find
duplicates by MinHash of the same size (20 bands of 6, five words). Ours also compares whole texts, and computes the
similarity of candidates exactly. Speed is megabytes of input per second of CPU
time in one process, the median of alternating runs, without imports.

`near_kept` and `datatrove_near_kept` are the shares of planted near copies that were not found; `lost` and
`datatrove_lost` are the shares of all other documents that only the other one kept.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from _peer_python import peers_python
from _report import finish

from etude.corpus import gather
from etude.recipe.corpus import CorpusRecipe

PEER = "datatrove==0.10.1"
BESIDE = ("regex", "xxhash<4", "orjson", "tokenizers")
SOURCE = Path(__file__).resolve().parent.parent / "src"
MB, RUNS = 24, 3
COPIES, CHANGED_LINES = 0.05, 0.02
SETTINGS = {"max_bytes": 100_000, "min_bytes": 50, "bands": 20, "rows": 6, "shingle": 5}


def main() -> None:
    python = peers_python(PEER, *BESIDE)
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts"
        texts.mkdir()
        megabytes, near = write(texts)
        for run in range(RUNS):
            place = Path(folder) / str(run)
            ours.append(etude(texts, place / "ours"))
            theirs.append(datatrove(python, texts, place / "theirs"))
    speed, peer = (megabytes / statistics.median(run["seconds"] for run in runs) for runs in (ours, theirs))
    mine, other = set(ours[0]["kept"]), set(theirs[0]["kept"])
    finish(
        "corpus",
        {
            "mb_s_core": speed,
            "datatrove_mb_s_core": peer,
            "ratio": speed / peer,
            "mb": megabytes,
            "kept": len(mine),
            "near_kept": len(near & mine) / len(near),
            "datatrove_near_kept": len(near & other) / len(near),
            "lost": len(other - mine - near) / len(mine | other),
            "datatrove_lost": len(mine - other - near) / len(mine | other),
            "peer": PEER,
        },
    )


def write(folder: Path) -> tuple[float, set[str]]:
    """Write the documents, with the number of each. Return their megabytes, and the numbers of near copies."""
    rng = random.Random(1)
    paths = sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py"))
    rng.shuffle(paths)
    rows: list[str] = []
    near: set[str] = set()
    held = 0
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for path in paths:
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            for copy in (text, text if rng.random() < COPIES else "", changed(text, rng)):
                if copy:
                    if copy not in (text, ""):
                        near.add(str(len(rows)))
                    row = {"number": str(len(rows)), "path": f"{len(rows)}.py", "content": copy}
                    rows.append("")
                    held += file.write(json.dumps(row) + "\n")
            if held >= MB * 1e6:
                break
    return held / 1e6, near


def changed(text: str, rng: random.Random) -> str:
    """Return a near copy of one text in twenty, of those long enough that it is one for certain; else nothing."""
    lines = text.split("\n")
    if rng.random() >= COPIES or len(lines) < 200:
        return ""
    for place in rng.sample(range(len(lines)), int(CHANGED_LINES * len(lines))):
        lines[place] += f"  # {rng.random()}"
    return "\n".join(lines)


def etude(texts: Path, folder: Path) -> dict[str, Any]:
    code = {"all": {"path": str(texts), "languages": ["python"]}}
    recipe = CorpusRecipe.model_validate({"sources": [], "code": code, "held_out_share": 1e-9})
    begun = time.process_time()
    gathered = gather(recipe, folder, processes=1)
    seconds = time.process_time() - begun
    return {"seconds": seconds, "kept": [document.name.removesuffix(".py") for document in gathered.documents()]}


def datatrove(python: Path, texts: Path, folder: Path) -> dict[str, Any]:
    command = [python, Path(__file__).with_name("_datatrove.py"), texts, folder, SOURCE, json.dumps(SETTINGS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


if __name__ == "__main__":
    main()
