"""etude corpus: builds a corpus outside of a run, and says what was dropped and why."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from etude.cli.visible import visible
from etude.cli.wording import table
from etude.corpus import Gathered, TaskTexts, gather, write_corpus, write_texts
from etude.journal import ProgressLine
from etude.recipe import Recipe, load_recipe, save_recipe

_TAKEN = ("stdlib", "folder", "generated")


def corpus_command(
    source: Path,
    folder: Path,
    overrides: Sequence[str],
    tasks: Path | None,
    tokenizer: Path | None,
    processes: int,
    as_json: bool,
) -> int:
    recipe = _recipe_of(source, folder, overrides)
    documents = None
    if "generated" in recipe.corpus.sources:
        from etude.tasks import write_documents

        documents = folder / "documents"
        write_documents(documents, recipe.corpus.generated_documents, recipe.seed)
    work = folder / "work"
    with ProgressLine("corpus", 0, unit="MB") as line:

        def progress(done: int, total: int) -> None:
            line.total = total / 1e6
            line.update(done / 1e6)

        gathered = gather(
            recipe.corpus, work, documents, contamination=_of_tasks(tasks), processes=processes, progress=progress
        )
    if tokenizer is None:
        write_texts(folder, gathered)
    else:
        from etude.text import open_tokenizer

        with ProgressLine("tokens", len(gathered), unit="documents") as line:
            write_corpus(
                folder,
                gathered,
                open_tokenizer(tokenizer),
                recipe.corpus,
                processes=processes,
                progress=lambda done, total: line.update(done),
            )
    shutil.rmtree(work)
    print(json.dumps(gathered.report.as_json(), indent=1) if as_json else _told(gathered, folder))
    return 0


def _recipe_of(source: Path, folder: Path, overrides: Sequence[str]) -> Recipe:
    """Load a recipe, or make one for a source of code. It is saved in the folder."""
    place = folder / "recipe.toml"
    folder.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".toml" and not source.is_dir():
        recipe = load_recipe(source, overrides)
    else:
        name = re.sub(r"[^a-z0-9_-]+", "-", source.absolute().name.partition(".")[0].lower()).strip("-_") or "code"
        name += "-code" if name in _TAKEN else ""
        section = f"corpus.code.{name}"
        place.write_text(
            f'name = "corpus"\n[corpus]\nsources = []\n[{section}]\npath = {json.dumps(str(source.absolute()))}\n',
            encoding="utf-8",
        )
        recipe = load_recipe(place, [o if o.startswith("corpus.") else f"{section}.{o}" for o in overrides])
    save_recipe(recipe, place)
    return recipe


def _of_tasks(folder: Path | None) -> TaskTexts | None:
    if folder is None:
        return None
    from etude.lineage.contamination import TaskCode
    from etude.lineage.state import LineageError
    from etude.tasks import Split, list_tasks

    tasks = {split: list_tasks(folder, split) for split in Split}
    every = [task for some in tasks.values() for task in some]
    if not every:
        raise LineageError(f"--tasks: {folder} has no tasks; name a run's folder `tasks`, or another folder of tasks")
    return TaskCode.of([task for task in every if task.split is not Split.TRAIN], every)


def _told(gathered: Gathered, folder: Path) -> str:
    report = gathered.report
    parts = [table(report.rows()), table(report.reasons())]
    if report.redacted:
        parts.append("redacted: " + ", ".join(f"{count} {kind}" for kind, count in sorted(report.redacted.items())))
    if report.unchecked:
        parts.append(
            f"syntax not checked, for want of a grammar: {', '.join(report.unchecked)} (pip install 'etude[search]')"
        )
    kept, held_out = gathered.count(), gathered.count(held_out=True)
    parts.append(f"{folder}: {kept} documents to train on, {held_out} held out; report.json says the same in full")
    return visible("\n\n".join(parts))
