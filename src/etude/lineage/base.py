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
from etude.journal.files import write_atomically
from etude.lineage.context import RunContext
from etude.lineage.state import LineageError, finished_stage
from etude.model import (
    AdapterFolder,
    ModelConfig,
    ModelError,
    Survey,
    Transformer,
    UnsupportedCheckpoint,
    config_from_recipe,
    load_hf,
    merge_adapters,
    save_hf,
    survey,
    without_matrices,
)
from etude.model.checkpoints.folder import file_in
from etude.model.checkpoints.slots import without_memory
from etude.model.checkpoints.writing import TRAVELLING, files_carried
from etude.pretrain.long import extended
from etude.recipe import Recipe
from etude.recipe.precision import PrecisionRecipe
from etude.recipe.training import PretrainRecipe
from etude.text import Tokenizer, TokenizerError, open_tokenizer
from etude.text.finding import FoundFormat, find_format
from etude.text.pretrained import PretrainedTokenizer, published_text
from etude.text.tiktoken_file import FILE

_OF_EXPERTS = ("experts", "also", "kernels", "reciprocal_bits")
"""Settings of [precision] that mean nothing without experts; attention is rounded as experts are."""


@dataclass(frozen=True, slots=True)
class Base:
    folder: Path
    tokenizer: Path
    """Folder of the tokenizer and the chat template: adapters may leave them to their base."""
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
        beside = _with_tokenizer(folder)
        brought = [name for name in TRAVELLING if file_in(beside, name) is not None]
        read_tokenizer = not recipe.own_tokenizer and (not shape_only or bool({"tokenizer.json", FILE} & {*brought}))
        tokenizer = open_tokenizer(beside) if read_tokenizer else None
        vocabulary = tokenizer.vocab_size if tokenizer else None
        found = survey(folder, mtp_heads=recipe.model.mtp_heads, vocabulary=vocabulary)
        form = _form(recipe, beside, tokenizer) if tokenizer else None
    except (UnsupportedCheckpoint, TokenizerError) as error:
        raise LineageError(f"model.from: {error}") from error
    if recipe.model.weights == "stored" and (found.weights or not shape_only):
        problems = found.problems if found.weights else (*found.problems, "has no .safetensors file")
        if problems:
            raise LineageError(f"model.from: {folder} {'; '.join(problems)}")
    _require_fit(recipe, found.config)
    return Base(folder, beside, found, form)


def named_folder(recipe: Recipe) -> Path:
    """Return the folder of the checkpoint that model.from names, directly or by a run."""
    place = Path(recipe.model.from_).expanduser()
    return (finished_stage(place).model if (place / "recipe.toml").is_file() else place).resolve()


def _with_tokenizer(folder: Path) -> Path:
    adapters = AdapterFolder.open(folder) if file_in(folder, "tokenizer.json") is None else None
    return adapters.base.path if adapters else folder


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
    _require_positions(recipe, network)
    if not network.num_nextn_predict_layers:
        if "mtp" in recipe.stages:
            raise LineageError("stages: the network of model.from has no MTP heads to train; set model.mtp_heads")
        if recipe.engine.speculate == "always":
            raise LineageError('engine.speculate = "always": the network of model.from has no MTP heads; leave it out')
    _require_experts(recipe, network)
    widths = [network.hidden_size, *([network.mixture.width] if network.mixture else [])]
    _require_targets(recipe, network)
    if recipe.precision.experts not in ("bf16", "fp8_block") and any(width % 32 for width in widths):
        raise LineageError(f"precision.experts rounds blocks of 32 numbers, the network of model.from is {widths} wide")


def _require_targets(recipe: Recipe, network: ModelConfig) -> None:
    """Raise LineageError if adapters are asked for, and the network lacks the matrices that would have them."""
    if not recipe.lora.rank:
        return
    if missing := without_matrices(without_memory(network), recipe.lora.targets):
        what = {"mlp": "dense feed-forwards", "experts": "experts", "shared": "shared experts"}[missing[0]]
        raise LineageError(f'lora.targets names "{missing[0]}": the network of model.from has no {what}; leave it out')


def _require_positions(recipe: Recipe, network: ModelConfig) -> None:
    """Raise LineageError if a phase of the stage long, or then the engine, uses more positions than there are."""
    positions, asked = network.max_position_embeddings, list[tuple[str, int, int]]()
    for phase in recipe.long.lengths if "long" in recipe.stages else []:
        try:
            positions = extended(recipe, network, phase).max_position_embeddings
        except ModelError as error:
            raise LineageError(f"long.factor = {phase.factor}: {error}; set it to 1") from error
        asked.append(("long.phases: length" if recipe.long.phases else "long.length", phase.length, positions))
    for field, length, room in [*asked, ("engine.context", recipe.engine.context, positions)]:
        if length > room:
            raise LineageError(f"{field} = {length}: the network of model.from has {room} positions; lower it")


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
    system can, unless adapters are merged or the number of MTP heads changes. Tokenizer and chat template are also
    copied to the place where every stage looks for them."""
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
    recipe, paths, found = context.recipe, context.paths, base.survey
    folder = paths.model("base")
    aside = folder.with_name("model.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    if recipe.model.weights == "random":
        save_hf(Transformer(found.config).initialise(recipe.seed), aside)
    else:
        heads = found.config.num_nextn_predict_layers
        with_adapters = AdapterFolder.open(base.folder) is not None
        if with_adapters or heads != found.stored_heads:
            model = load_hf(base.folder, mtp_heads=heads, seed=recipe.seed)
            save_hf(merge_adapters(model) if with_adapters else model, aside)
        else:
            weights = sorted(path.name for path in base.folder.glob("*.safetensors*"))
            carried = (file.name for file in files_carried(base.folder, found.config.family))
            for name in ("config.json", *weights, *carried):
                if (file := file_in(base.folder, name)) is not None:
                    _link(file.resolve(), aside / name)
        for name in TRAVELLING:
            if (file := file_in(base.tokenizer, name)) is not None:
                _link(file.resolve(), aside / name)
                shutil.copyfile(file, paths.root / name)
        if not (aside / "tokenizer.json").exists():
            for place in (aside, paths.root):
                write_atomically(place / "tokenizer.json", published_text(base.tokenizer / "tokenizer.json").encode())
    shutil.rmtree(folder, ignore_errors=True)
    aside.replace(folder)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)
