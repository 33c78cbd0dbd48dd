"""From the recipe to a format: every name there is, one way to each, and what cannot be done is said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError
from tests.harness.parts import compact_format
from tests.text.formats.tiny import merged_file

import etude
from etude.harness import format_of
from etude.lineage.prepare import require_own_format
from etude.lineage.state import LineageError, recipe_digest
from etude.recipe import Recipe
from etude.recipe.acting import HarnessRecipe
from etude.text import CompactFormat, TokenizerError
from etude.text.formats import FORMATS

SOURCES = Path(etude.__file__).parent


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    (folder / "tokenizer.json").write_text(json.dumps(merged_file()))
    return folder


def test_a_recipe_can_name_every_format_and_no_other() -> None:
    assert set(get_args(HarnessRecipe.model_fields["format"].annotation)) == {"compact", "auto", *FORMATS}
    with pytest.raises(ValidationError, match=r"harness\.format|format"):
        HarnessRecipe.model_validate({"format": "qwen4"})


def test_compact_is_the_runs_own(tmp_path: Path) -> None:
    compact_format().tokenizer.save(tmp_path / "tokenizer.json")
    form = format_of(HarnessRecipe(), tmp_path / "tokenizer.json")
    assert isinstance(form, CompactFormat)
    assert form.count("edit calc.py") == compact_format().count("edit calc.py")


@pytest.mark.parametrize("name", FORMATS)
def test_a_published_format_has_its_tokenizer(name: str, published: Path, tmp_path: Path) -> None:
    recipe = HarnessRecipe.model_validate({"profile": "full", "format": name, "tokenizer": str(published)})
    form = format_of(recipe, tmp_path / "not there")
    assert type(form) is FORMATS[name]
    ids = form.opening("You mend code.", "mend it")
    # Without a place of its own it is the run's.
    here = format_of(recipe.model_copy(update={"tokenizer": ""}), published / "tokenizer.json")
    assert here.opening("You mend code.", "mend it") == ids


def test_a_tokenizer_of_another_format_is_refused_in_one_line(published: Path, tmp_path: Path) -> None:
    compact_format().tokenizer.save(tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError, match="of a Hugging Face model"):
        format_of(HarnessRecipe(format="qwen3"), tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError, match="cannot read"):
        format_of(HarnessRecipe(format="qwen3", tokenizer=str(tmp_path / "nowhere")), tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError):
        format_of(HarnessRecipe(), published / "tokenizer.json")


def test_a_line_that_trains_its_own_tokenizer_refuses_a_published_format() -> None:
    class Context:
        recipe = Recipe.model_validate({"name": "x", "harness": {"format": "kimi-k2"}})

    with pytest.raises(LineageError, match=r"harness\.format = 'kimi-k2': a run trains its own tokenizer"):
        require_own_format(Context())  # type: ignore[arg-type]
    for own in ("compact", "auto"):
        Context.recipe = Recipe.model_validate({"name": "x", "harness": {"format": own}})
        require_own_format(Context())  # type: ignore[arg-type]


def test_every_token_policy_gets_its_format_in_one_place() -> None:
    made = re.compile(r"\b(?:CompactFormat|Tokenizer\.load|FORMATS\[|PretrainedTokenizer\.load)\b")
    users = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if made.search(path.read_text())}
    outside = {path for path in users if not path.startswith("text/")}
    assert outside == set()


def test_fields_that_came_later_change_no_digest_at_their_defaults() -> None:
    plain = Recipe.model_validate({"name": "x"})
    said = Recipe.model_validate({"name": "x", "harness": {"format": "compact", "max_money": 0.0}})
    other = Recipe.model_validate({"name": "x", "harness": {"max_tool_seconds": 5.0}})
    assert recipe_digest(plain, ["harness"]) == recipe_digest(said, ["harness"])
    assert recipe_digest(plain, ["harness"]) != recipe_digest(other, ["harness"])
    fields = set(HarnessRecipe.model_fields)
    assert fields >= HarnessRecipe.LATER
