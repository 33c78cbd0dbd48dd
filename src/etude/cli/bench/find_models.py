"""Finds the models that a user names, and checks without reading weights that they can take part."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from etude.bench import BenchError, EncodingTokenizer, prompt_ids
from etude.harness import format_of
from etude.lineage.state import Finished, finished_stage
from etude.recipe.acting import HarnessRecipe
from etude.recipe.precision import PrecisionRecipe
from etude.text import Format, TokenizerError, open_tokenizer
from etude.text.finding import find_format
from etude.text.formats import FORMATS
from etude.text.pretrained import PretrainedTokenizer
from etude.text.rendering import read_template
from etude.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from etude.model import Survey

_CHAT_STAGES = ("sft", "continued", "rl")
"""Stages whose models were trained on conversations."""
_DEFAULT_KEY = "ETUDE_API_KEY"
DTYPES = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    form: str | None
    keys: tuple[str, ...]
    """Names of environment variables: one for all endpoints, or one for each."""
    thinking: int
    at_once: int
    dtype: str
    threads: int
    seed: int


@dataclass(frozen=True)
class LocalModel:
    name: str
    folder: Path
    survey: Survey
    tokenizer: EncodingTokenizer
    form: Format | None
    """The chat format; None for a model that continues plain text."""
    form_name: str
    precision: PrecisionRecipe

    @property
    def plain(self) -> bool:
        return self.form is None

    @cached_property
    def digest(self) -> str:
        """Digest of the names, sizes and times of the model's files: their bytes would take minutes."""
        whole = hashlib.sha256()
        for file in sorted(self.folder.iterdir()):
            about = file.lstat()
            whole.update(f"{file.name}\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
        return whole.hexdigest()[:16]

    @property
    def end(self) -> int | None:
        """The token that ends a document."""
        try:
            return next(iter(self.tokenizer.documents([""])))[-1]
        except TokenizerError:
            return None

    def identity(self, dtype: str) -> dict[str, object]:
        return {
            "folder": str(self.folder), "files": self.digest, "dtype": dtype, "format": self.form_name,
            "precision": self.precision.model_dump(),
        }  # fmt: skip

    def count_prompt(self, system: str, user: str, plain: str) -> int:
        return len(prompt_ids(self.tokenizer, plain) if self.form is None else self.form.opening(system, user))


@dataclass(frozen=True)
class EndpointModel:
    name: str
    url: str
    model: str
    key: str
    """Name of the environment variable that holds the key; empty for none."""
    seed: int
    plain = False

    def identity(self) -> dict[str, object]:
        return {"url": self.url, "model": self.model, "seed": self.seed}


Model = LocalModel | EndpointModel


def find_models(words: Sequence[str], options: ModelOptions) -> list[Model]:
    """Return the models in the order of the words. Raises BenchError, in one line, for one that cannot take part."""
    if options.dtype not in DTYPES:
        raise BenchError(f"--dtype {options.dtype}: expected {', '.join(DTYPES)}")
    if twice := next((word for place, word in enumerate(words) if word in words[:place]), None):
        raise BenchError(f"{twice} is named twice")
    urls = [word for word in words if "://" in word]
    keys = dict(zip(urls, _keys(urls, options.keys), strict=True))
    names = _short_names(words)
    return [
        _endpoint(word, keys[word], options.seed) if word in keys else _local(word, name, options.form)
        for word, name in zip(words, names, strict=True)
    ]


def _keys(urls: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Return the name of each endpoint's key. A key is never sent to a host that it was not named for."""
    if len(keys) == len(urls) and keys:
        return list(keys)
    hosts = {urlsplit(url.rpartition("@")[2] if "@" in url.partition("://")[0] else url).netloc for url in urls}
    if len(keys) > 1 or (len(hosts) > 1 and (keys or _DEFAULT_KEY in os.environ)):
        raise BenchError(
            f"--key: expected one for each of the {len(urls)} endpoints, in their order, found {len(keys)}; name a "
            "variable that is not set for an endpoint without a key"
        )
    return [keys[0] if keys else _DEFAULT_KEY] * len(urls)


def _endpoint(word: str, key: str, seed: int) -> EndpointModel:
    name, at, url = word.partition("@")
    if not at or "://" in name:
        name, url = "default", word
    split = urlsplit(url)
    if split.scheme not in ("http", "https") or not split.hostname:
        raise BenchError(f"{word}: expected an endpoint as NAME@http://HOST/v1")
    shown = f"{name}@{split.hostname}" + (f":{split.port}" if split.port else "")
    return EndpointModel(shown, url, name, key, seed)


def _short_names(words: Sequence[str]) -> list[str]:
    """Return the last part of each path, or as many as tell it from the others."""
    paths = [Path(word).expanduser().absolute().parts for word in words]
    names = []
    for parts in paths:
        length = 1
        while length < len(parts) and sum(other[-length:] == parts[-length:] for other in paths) > 1:
            length += 1
        if parts[-2:-1] == ("stages",):
            length = max(3, length)
        names.append("/".join(parts[-length:]).replace("/stages/", "/"))
    return names


def _local(word: str, name: str, form: str | None) -> LocalModel:
    place = Path(word).expanduser().resolve()
    if not place.is_dir():
        raise BenchError(f"{word}: there is no such folder; expected a model's folder, a run, or an endpoint NAME@URL")
    of_stage = place.parent.name == "stages" and (place.parents[1] / "recipe.toml").is_file()
    if of_stage or (place / "recipe.toml").is_file():
        found = finished_stage(place.parents[1], place.name) if of_stage else finished_stage(place)
        shown = name if of_stage else f"{name}/{found.stage}"
        precision = found.recipe.precision.model_copy(update={"invariant": True})
        tokenizer = _tokenizer(found.paths.root)
        chosen = _form_of_run(found, tokenizer, form)
        return _checked(shown, found.model, tokenizer, chosen, precision)
    tokenizer = _tokenizer(place)
    return _checked(name, place, tokenizer, _form_of_folder(place, tokenizer, form), PrecisionRecipe(invariant=True))


def _checked(
    name: str,
    folder: Path,
    tokenizer: Tokenizer | PretrainedTokenizer,
    form: tuple[str, Format | None],
    precision: PrecisionRecipe,
) -> LocalModel:
    from etude.model import ModelError, survey  # late: endpoints alone need no torch

    try:
        found = survey(folder, vocabulary=tokenizer.vocab_size)
    except ModelError as error:
        raise BenchError(str(error)) from error
    problems = found.problems if found.weights else (*found.problems, "has no .safetensors file")
    if problems:
        raise BenchError(f"{folder} {'; '.join(problems)}")
    return LocalModel(name, folder, found, tokenizer, form[1], form[0], precision)


def _tokenizer(folder: Path) -> Tokenizer | PretrainedTokenizer:
    try:
        return open_tokenizer(folder)
    except TokenizerError as error:
        raise BenchError(str(error)) from error


def _form_of_run(
    found: Finished, tokenizer: Tokenizer | PretrainedTokenizer, form: str | None
) -> tuple[str, Format | None]:
    if form is None and found.stage in _CHAT_STAGES:
        return found.recipe.harness.format, format_of(found.recipe.harness, found.paths.tokenizer)
    if form is None and found.stage != "base":
        return "plain", None
    return _form_of_folder(found.paths.root, tokenizer, form)


def _form_of_folder(
    folder: Path, tokenizer: Tokenizer | PretrainedTokenizer, form: str | None
) -> tuple[str, Format | None]:
    if form == "plain":
        return "plain", None
    try:
        if form is None:
            if isinstance(tokenizer, Tokenizer) or read_template(folder) is None:
                return "plain", None
            form = find_format(folder, tokenizer).name
        if form not in ("compact", *FORMATS):
            raise BenchError(f"--format {form}: expected plain or one of {', '.join(('compact', *FORMATS))}")
        return form, format_of(HarnessRecipe.model_validate({"format": form}), folder / "tokenizer.json")
    except TokenizerError as error:
        raise BenchError(f"{error} (--format of this command)") from error
