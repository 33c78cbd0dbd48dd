"""etude export: writes a stage's model as a checkpoint outside the run, or the adapters that it trained alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from etude.lineage.state import Finished, LineageError, finished_stage

if TYPE_CHECKING:
    from etude.model import Transformer


def export_command(run: Path, folder: Path, stage: str | None, experts: str | None, adapter: bool = False) -> int:
    found = finished_stage(run, stage)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LineageError(f"{folder} is there already: name a folder that is new or empty")
    if adapter and experts:
        raise LineageError("--experts quantises a whole checkpoint, and --adapter writes none: leave out one")
    from etude.model import AdapterFolder, load_hf, merge_adapters, save_adapter, save_hf

    if adapter and AdapterFolder.open(found.model) is None:
        raise LineageError(f"stage {found.stage} of {run} has no adapters (lora.rank): leave out --adapter")
    folder = folder.resolve()
    aside = folder.with_name(f".{folder.name}.partial")  # an interrupted export starts from the beginning
    shutil.rmtree(aside, ignore_errors=True)
    model = load_hf(found.model)
    if adapter:
        base, root = found.paths.model("base"), found.paths.root
        save_adapter(model, aside, base, root, named=str(_base_of(found)), mtp_heads=False)
        notes = list(_limits(model, aside))
    else:
        save_hf(merge_adapters(model), aside, found.paths.root, experts=experts)
        notes = []
    aside.replace(folder)
    before, after = (sum(file.stat().st_size for file in where.iterdir()) for where in (found.model, folder))
    what = f"adapters of {found.stage}" if adapter else found.stage
    said = f", its experts in {experts}: {after / 1e6:.1f} MB of {before / 1e6:.1f}" if experts else ""
    print("\n".join([f"{folder}: {what} of {run}{said}", *notes]))
    return 0


def _base_of(found: Finished) -> Path:
    """Return the folder that the run began with, if it is a whole checkpoint and still there; else the run's copy."""
    named = Path(found.recipe.model.from_).expanduser().resolve()
    whole = (named / "config.json").is_file() and not (named / "adapter_config.json").exists()
    return named if whole else found.paths.model("base").resolve()


def _limits(model: Transformer, written: Path) -> Iterator[str]:
    """Yield one line for everything of the model that another tool will not find in the written folder."""
    from etude.model import adapters_of

    names = list(adapters_of(model))
    if heads := sum(name.startswith("mtp.") for name in names):
        yield f"left out: {heads} adapters of MTP heads, which other tools do not know; a merged export has them"
    dense = [name for name in names if "mlp" in name and ".experts." not in name and not name.startswith("mtp.")]
    if dense and model.config.mixture is not None:
        yield (
            f"PEFT 0.21 does not load {len(dense)} of these adapters: with experts it takes every gate_proj, "
            f"up_proj and down_proj for an expert's, also {dense[0].removesuffix('.weight')}; export merged for it, or "
            "train without mlp and shared in lora.targets"
        )
    if (written / "config.json").exists():
        yield "the network's description has changed (a longer context): give the base this folder's config.json"
