"""A recipe survives its own file, and every mistake of a user is one line that names field, value and expectation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etude.recipe import Recipe, RecipeError, load_recipe, save_recipe
from etude.recipe.load import dump_recipe
from etude.recipe.section import Section
from etude.recipe.training import OptimizerRecipe

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.toml"))

text = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.one_of(st.integers(-3, 5_000), st.floats(-1, 100, allow_nan=False, allow_infinity=False))


def plain_values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type; whether they are in its range is for the recipe to say."""
    if get_origin(annotation) is Literal:
        return st.sampled_from(get_args(annotation))
    if get_origin(annotation) is list:
        return st.lists(plain_values(get_args(annotation)[0]), max_size=3)
    if get_origin(annotation) is tuple:
        return st.tuples(*[st.floats(0, 0.999) for _ in get_args(annotation)]).map(list)
    if annotation is bool:
        return st.booleans()
    if annotation is str:
        return text
    if annotation is int:
        return st.integers(0, 5_000)
    return numbers


def fields(section: type[Section], place: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for name, field in section.model_fields.items():
        annotation: Any = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            found += fields(annotation, (*place, name))
        elif name not in ("schema_version", "name"):
            found.append(((*place, name), annotation))
    return found


FIELDS = fields(Recipe)
changes = st.lists(
    st.sampled_from(FIELDS).flatmap(lambda f: st.tuples(st.just(f[0]), plain_values(f[1]))), min_size=1, max_size=6
)


def put(values: dict[str, Any], place: tuple[str, ...], value: Any) -> None:
    for parent in place[:-1]:
        values = values.setdefault(parent, {})
    values[place[-1]] = value


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=changes)
def test_any_recipe_survives_its_file_and_overrides_say_the_same(changes, tmp_path) -> None:
    values: dict[str, Any] = {"name": "any"}
    for place, value in changes:
        put(values, place, value)
    try:
        recipe = Recipe.model_validate(values)
    except ValueError:
        return
    file = tmp_path / "recipe.toml"
    save_recipe(recipe, file)
    assert load_recipe(file) == recipe
    assert dump_recipe(load_recipe(file)) == file.read_text(encoding="utf-8")
    overrides = [
        f"{'.'.join(place)}={json.dumps(value, ensure_ascii=True)}" for place, value in changes if value is not None
    ]
    base = tmp_path / "base.toml"
    base.write_text('name = "any"')
    if not any("\\ud" in o or "\x7f" in o for o in overrides):  # JSON's pairs beyond the first plane are not TOML
        assert load_recipe(base, overrides) == recipe


@pytest.mark.parametrize("file", RECIPES, ids=lambda f: f.name)
def test_the_recipes_of_the_house_load(file) -> None:
    recipe = load_recipe(file)
    assert Recipe.model_validate(recipe.model_dump(mode="json", by_alias=True)) == recipe


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("rl.stepz=1", ["rl.stepz", "did you mean steps"]),
        ("rl.steps=many", ["rl.steps", "integer", "'many'"]),
        ('rl.steps="5"', ["rl.steps", "integer", "'5'"]),
        ("rl.steps=true", ["rl.steps", "integer", "True"]),
        ("rl.temperature=nan", ["rl.temperature", "finite", "nan"]),
        ("rl.steps=-1", ["rl.steps", "greater than or equal to 0", "-1"]),
        ("rl=3", ["rl", "section", "3"]),
        ("rl.steps.many=3", ["rl.steps", "integer", "found a section"]),
        ("rl.steps", ["'rl.steps'", "dotted.field=value"]),
        ("=3", ["'=3'", "dotted.field=value"]),
        ("seed=1\nname='x'", ["one line"]),
        ("schema=7", ["schema 7", "up to 1", "update"]),
        ("name=A b", ["name", "'A b'", "pattern"]),
        ("corpus.sources=['web']", ["corpus.sources.0", "'stdlib' or 'generated'", "'web'"]),
        ("corpus.code.a={path='x', licence=['mit']}", ["corpus.code.a.licence", "did you mean licences"]),
        ("corpus.code.stdlib={path='x'}", ["corpus.code", "'stdlib' is taken"]),
        ("rl.optimizer.betas=[0.9]", ["rl.optimizer.betas", "missing"]),
        ("model.num_experts_per_tok=9", ["num_experts_per_tok = 9", "n_routed_experts = 8"]),
        ("long.length=99999", ["long.length = 99999", "pretrain.length = 256", "long.factor = 4"]),
    ],
)
def test_a_bad_field_is_one_line(override, names, tmp_path) -> None:
    file = tmp_path / "r.toml"
    file.write_text('name = "r"\n')
    with pytest.raises(RecipeError) as caught:
        load_recipe(file, [override])
    message = str(caught.value)
    assert "\n" not in message
    for name in names:
        assert name in message


def test_positions_are_checked_where_the_long_stage_runs() -> None:
    Recipe.model_validate({"name": "r", "stages": ["pretrain", "rl"], "long": {"length": 99999}})
    with pytest.raises(ValueError, match=r"long\.length must not exceed"):
        Recipe.model_validate({"name": "r", "stages": ["pretrain", "long"], "long": {"length": 99999}})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("folder", "Is a directory"),
        (b"name = ", "is not TOML"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"seed = 1", "name: is missing"),
        (b'schema = 2\nname = "x"', "schema 2"),
    ],
)
def test_a_bad_file_is_one_line(content, says, tmp_path) -> None:
    file = tmp_path / "r.toml"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        file.mkdir()
    with pytest.raises(RecipeError, match=says) as caught:
        load_recipe(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_what_a_table_leaves_out_has_the_default_of_its_place(tmp_path) -> None:
    file = tmp_path / "r.toml"
    file.write_text('schema = 1\nname = "r"\n[rl]\noptimizer = { lr = 1e-5 }\n[rl.reward.length]\nscale = 0.5\n')
    house = Recipe(name="r").rl
    for recipe in (load_recipe(file), load_recipe(file, ["rl.optimizer.lr=1e-5", "rl.reward.length.scale=0.5"])):
        assert recipe.rl.optimizer == house.optimizer.model_copy(update={"lr": 1e-5})
        assert recipe.rl.optimizer.warmup_steps == 4 != OptimizerRecipe().warmup_steps
        assert recipe.rl.reward.length == house.reward.length.model_copy(update={"scale": 0.5})
        assert recipe.rl.reward.truncated == house.reward.truncated


def test_a_recipe_may_stand_on_another(tmp_path: Path) -> None:
    (tmp_path / "below.toml").write_text('name = "below"\nseed = 4\n[rl]\nsteps = 7\noptimizer = { lr = 1e-3 }\n')
    (tmp_path / "arms").mkdir()
    arm = tmp_path / "arms" / "arm.toml"
    arm.write_text('base = "../below.toml"\n[rl]\nreward.kl = 0.5\noptimizer = { name = "muon" }\n')
    top = tmp_path / "top.toml"
    top.write_text('base = "arms/arm.toml"\nname = "top"\n[sft]\nkinds = ["op"]\n')
    found = load_recipe(top, ["rl.steps=8"])
    assert (found.name, found.seed, found.rl.steps, found.rl.reward.kl) == ("top", 4, 8, 0.5)
    assert (found.rl.optimizer.name, found.rl.optimizer.lr, found.sft.kinds) == ("muon", 1e-3, ["op"])
    save_recipe(found, tmp_path / "saved.toml")
    assert load_recipe(tmp_path / "saved.toml") == found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('base = "gone.toml"', "cannot read recipe .*gone.toml"),
        ('base = "it.toml"', "builds on itself"),
        ("base = 3", "base should be the path of a recipe, found 3"),
        ('base = "wrong.toml"', "wrong.toml is not TOML"),
    ],
)
def test_a_base_that_is_none(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("=")
    recipe = tmp_path / "it.toml"
    recipe.write_text(f'name = "it"\n{text}\n')
    with pytest.raises(RecipeError, match=told):
        load_recipe(recipe)


def test_runs_made_before_there_were_trust_regions_by_difference_have_the_same_recipe() -> None:
    later = {"trust_by", "trust_difference"}
    assert not later & Recipe(name="x").rl.made_from().keys()
    chosen = Recipe.model_validate({"name": "x", "rl": {"trust_by": "difference", "trust_difference": [0.1, 0.3]}})
    assert later <= chosen.rl.made_from().keys()


def test_sections_with_names_of_their_own_leave_later_fields_out_too() -> None:
    class Source(Section):
        LATER: ClassVar[frozenset[str]] = frozenset({"added"})
        path: str
        added: int = 0

    class Sources(Section):
        code: dict[str, Source] = {}

    made = Sources(code={"a": Source(path="x"), "b": Source(path="y", added=1)}).made_from()
    assert made == {"code": {"a": {"path": "x"}, "b": {"path": "y", "added": 1}}}
