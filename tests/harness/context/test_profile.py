from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import etude.harness
from etude.harness import SchemaError, load_profile
from etude.harness.context.profile import parse_profile
from etude.harness.schema import parse_schema
from etude.harness.tools import BUILTIN

ROOM = Path(etude.harness.__path__[0])


def occasions(*files: Path, say: str = "say") -> set[str]:
    return set(re.findall(rf"""\b{say}\(\s*"(\w+)\"""", "".join(file.read_text() for file in files)))


def test_the_full_profile_words_every_occasion_and_no_other():
    files = list(ROOM.rglob("*.py"))
    assert set(load_profile("full").wording) == occasions(*files) | occasions(*files, say="say_if_known")


def test_the_compact_profile_words_the_occasions_of_its_tools_and_no_other():
    compact = load_profile("compact")
    everybody = [file for file in ROOM.rglob("*.py") if file.parent.name != "tools" or file.name == "context.py"]
    tools = [Path(inspect.getfile(BUILTIN[tool])) for tool in compact.tools]
    # A stale file is rare, and told as "refused".
    assert set(compact.wording) == occasions(*everybody, *tools) - {"stale"}


def test_a_profile_with_fewer_tools():
    full = load_profile("full")
    fewer = full.without(["bash", "job", "shell"])
    assert fewer.tools == tuple(tool for tool in full.tools if tool not in ("bash", "job"))
    assert "bash command" not in fewer.system_text()
    assert full.without([]) is full
    with pytest.raises(SchemaError, match="grpe"):
        full.without(["grpe"])


def test_the_compact_profile_costs_a_tiny_model_little():
    compact = load_profile("compact")
    assert len(compact.system_text().split()) <= 6
    assert len(compact.summary_request.split()) == 1
    assert all(len(text.split()) <= 6 for text in compact.wording.values())


def test_the_full_profile_names_every_tool():
    full = load_profile("full")
    assert all(f"\n{schema.usage()}" in full.system_text() for schema in full.schemas())


def test_values_are_never_taken_for_templates():
    compact = load_profile("compact")
    old = compact.open("fix {turns} and {0}")
    new = compact.resume(old, summary="{edited}", edited=[], turns_left=2)
    assert new.messages[1].text == "fix {turns} and {0}\nnote 1 {edited}\nedit none\nturns 2"


def test_texts_hold_what_a_tokenizer_must_know():
    said = " ".join(load_profile("compact").texts()).split()
    assert {"fix", "note", "turns", "exit", "shell", "edit"} <= set(said)
    assert not any("{" in word for word in said)


def test_a_profile_that_lacks_something_is_refused():
    with pytest.raises(SchemaError, match="cut_off"):
        parse_profile('name = "x"', "x.toml")
    with pytest.raises(SchemaError, match="no profile nothing"):
        load_profile("nothing")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name = ", "x.toml"),
        ('name = "x"', "description"),
        ('name = "x"\ndescription = ""\n[[parameters]]\nname = "a"\nkind = "float"', "kind"),
        (
            'name = "x"\ndescription = ""\n[[parameters]]\nname = "a"\nkind = "rest"\n'
            '[[parameters]]\nname = "b"\nkind = "word"',
            "last parameter",
        ),
    ],
)
def test_a_schema_that_makes_no_sense_is_refused(text, problem):
    with pytest.raises(SchemaError, match=problem):
        parse_schema(text, "x.toml")
