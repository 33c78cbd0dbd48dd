"""The model that a recipe names (`model.from`): checked before anything starts, then taken over by the stage `base`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from etude.harness import format_of
from etude.journal import RunPaths
from etude.lineage.context import RunContext
from etude.lineage.state import LineageError, finished_stage
from etude.model import (
    ModelConfig,
    Survey,
    Transformer,
    UnsupportedCheckpoint,
    config_from_recipe,
    load_hf,
    save_hf,
    survey,
)
from etude.model.checkpoints.folder import file_in
from etude.model.checkpoints.writing import TRAVELLING
from etude.recipe import Recipe
from etude.recipe.precision import PrecisionRecipe
from etude.recipe.training import PretrainRecipe
from etude.text import Tokenizer, TokenizerError, open_tokenizer
from etude.text.finding import FoundFormat, find_format
from etude.text.pretrained import PretrainedTokenizer

_OF_EXPERTS = ("experts", "also", "kernels", "reciprocal_bits")
"""Settings of [precision] that mean nothing without experts; attention is rounded as experts are."""


@dataclass(frozen=True, slots=True)
class Base:
    folder: Path
    survey: Survey
    format: FoundFormat | None
    """The chat format, if the recipe leaves it to the folder's chat template."""

    def __str__(self) -> str:
        network, found = self.survey.config, self.survey
        size = f", {found.bytes / 1e9:.1f} GB in {str(found.dtype).removeprefix('torch.')}" if found.weights else ""
        return (
            f"{self.folder}: {network.family}, {found.parameters.total:,} parameters, {network.num_hidden_layers} "
            f"layers, {network.vocab_size:,} tokens{size}"
        )


def find_base(recipe: Recipe, *, shape_only: bool = False) -> Base:
    """Look at the model that the recipe names, without reading its weights. With `shape_only`, a folder that has no
    more than a config.json will do.

    Raises LineageError, in one line, if a run cannot begin with it."""
    folder = named_folder(recipe)
    alone = folder.is_dir() and [file.name for file in folder.iterdir()] == ["config.json"]
    if alone and not (shape_only or recipe.own_tokenizer):
        raise LineageError(
            f"model.from: {folder} has only a config.json, enough for --dry-run: name a folder with weights and "
            'tokenizer, or set model.weights = "random"'
        )
    try:
        brought = [name for name in TRAVELLING if file_in(folder, name) is not None]
        read_tokenizer = not recipe.own_tokenizer and ("tokenizer.json" in brought or not shape_only)
        tokenizer = open_tokenizer(folder) if read_tokenizer else None
        vocabulary = tokenizer.vocab_size if tokenizer else None
        found = survey(folder, mtp_heads=recipe.model.mtp_heads, vocabulary=vocabulary)
        form = _form(recipe, folder, tokenizer) if tokenizer else None
    except (UnsupportedCheckpoint, TokenizerError) as error:
        raise LineageError(f"model.from: {error}") from error
    if recipe.model.weights == "stored" and (found.weights or not shape_only):
        problems = found.problems if found.weights else (*found.problems, "has no .safetensors file")
        if problems:
            raise LineageError(f"model.from: {folder} {'; '.join(problems)}")
    _require_fit(recipe, found.config)
    return Base(folder, found, form)


def named_folder(recipe: Recipe) -> Path:
    """Return the folder of the checkpoint that model.from names, directly or by a run."""
    place = Path(recipe.model.from_).expanduser()
    return (finished_stage(place).model if (place / "recipe.toml").is_file() else place).resolve()


def _form(recipe: Recipe, folder: Path, tokenizer: Tokenizer | PretrainedTokenizer) -> FoundFormat | None:
    """Check that the chat format fits the tokenizer; return it if the folder's template decides about it."""
    if recipe.harness.format == "auto" and not isinstance(tokenizer, Tokenizer):
        return find_format(folder, tokenizer)
    if recipe.harness.format == "compact" and not isinstance(tokenizer, Tokenizer):
        raise LineageError(
            'harness.format = "compact" needs a tokenizer that Étude trained, and model.from brings its own: set '
            'harness.format = "auto"'
        )
    format_of(recipe.harness, folder / "tokenizer.json")
    return None


def _require_fit(recipe: Recipe, network: ModelConfig) -> None:
    if recipe.own_tokenizer and recipe.tokenizer.vocab_size > network.vocab_size:
        raise LineageError(
            f"tokenizer.vocab_size = {recipe.tokenizer.vocab_size}: the network of model.from has {network.vocab_size} "
            "tokens; lower it"
        )
    if recipe.engine.context > network.max_position_embeddings:
        raise LineageError(
            f"engine.context = {recipe.engine.context}: the network of model.from has "
            f"{network.max_position_embeddings} positions; lower it"
        )
    if not network.num_nextn_predict_layers:
        if "mtp" in recipe.stages:
            raise LineageError("stages: the network of model.from has no MTP heads to train; leave out mtp")
        if recipe.engine.speculate == "always":
            raise LineageError('engine.speculate = "always": the network of model.from has no MTP heads; leave it out')
    _require_experts(recipe, network)
    widths = [network.hidden_size, *([network.mixture.width] if network.mixture else [])]
    if recipe.precision.experts not in ("bf16", "fp8_block") and any(width % 32 for width in widths):
        raise LineageError(f"precision.experts rounds blocks of 32 numbers, the network of model.from is {widths} wide")


def _require_experts(recipe: Recipe, network: ModelConfig) -> None:
    """Raise LineageError for settings that are about experts, or about their routers' biases, if there are none."""
    if network.mixture is None:
        asked = {f"precision.{name}": value for name, value in recipe.precision if name in _OF_EXPERTS}
        usual = {f"precision.{name}": value for name, value in PrecisionRecipe() if name in _OF_EXPERTS}
        if recipe.rl.replay.mode == "on":
            asked["rl.replay.mode"] = "on"
        if changed := [name for name, value in asked.items() if value != usual.get(name)]:
            said = f"{changed[0]} = {json.dumps(asked[changed[0]])}"
            raise LineageError(f"{said}: the network of model.from has no experts; leave it out")
    biases = network.mixture is not None and network.mixture.selection_bias
    if not biases and recipe.pretrain.balance_rate != PretrainRecipe().balance_rate:
        said = f"pretrain.balance_rate = {recipe.pretrain.balance_rate}"
        raise LineageError(f"{said}: no router of the network of model.from has biases to balance; leave it out")
    if "shared" in recipe.precision.also and not (network.mixture and network.mixture.shared_width):
        raise LineageError('precision.also names "shared": the network of model.from has no shared experts')


def network_of(recipe: Recipe, paths: RunPaths | None = None) -> ModelConfig:
    """Return the network that a recipe's run trains."""
    if not recipe.model.from_:
        return config_from_recipe(recipe.model, recipe.tokenizer.vocab_size)
    if paths is not None and paths.model("base").exists():
        return survey(paths.model("base")).config
    return survey(named_folder(recipe), mtp_heads=recipe.model.mtp_heads).config


async def adopt_base(context: RunContext) -> dict[str, Any]:
    """Put the named model into the run's folder, as the model of the stage `base`. Its files are linked where the file
    system can, unless the run leaves out some of its MTP heads. Tokenizer and chat template are also copied to the
    place where every stage looks for them."""
    asked = context.recipe.model
    base = await asyncio.to_thread(find_base, context.recipe)
    await asyncio.to_thread(_adopt, context, base)
    return {
        "named": asked.from_,
        "weights": asked.weights,
        "folder": str(base.folder),
        "family": base.survey.config.family,
        "parameters": base.survey.parameters.total,
        **({"format": asdict(base.format)} if base.format else {}),
    }


def _adopt(context: RunContext, base: Base) -> None:
    recipe, paths = context.recipe, context.paths
    folder = paths.model("base")
    aside = folder.with_name("model.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    if recipe.model.weights == "random":
        save_hf(Transformer(base.survey.config).initialise(recipe.seed), aside)
    else:
        whole = recipe.model.mtp_heads is None
        if not whole:
            save_hf(load_hf(base.folder, mtp_heads=recipe.model.mtp_heads), aside)
        weights = sorted(path.name for path in base.folder.glob("*.safetensors*"))
        for name in (*TRAVELLING, *(["config.json", *weights] if whole else [])):
            if (file := file_in(base.folder, name)) is not None:
                _link(file.resolve(), aside / name)
                if name in TRAVELLING:
                    shutil.copyfile(file, paths.root / name)
    shutil.rmtree(folder, ignore_errors=True)
    aside.replace(folder)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)
