"""A folder's chat format is found by its template, whatever that does; what does not fit is said in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.text.formats.real import FETCHED, REAL, every_file
from tests.text.formats.tiny import merged_file

from etude.harness import format_of
from etude.recipe.acting import HarnessRecipe
from etude.text import CompactFormat, Tokenizer, TokenizerError, rendering
from etude.text.finding import FoundFormat, find_format
from etude.text.formats import ChatMLFormat, Qwen25Format, qwen3
from etude.text.pretrained import PretrainedTokenizer
from etude.text.rendering import Template, read_template
from etude.text.template_child import rendered

MESSAGE = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
ASKED = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PLAIN = "{% for m in messages %}" + MESSAGE + "{% endfor %}" + ASKED
CALL = (
    """{{ '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments|tojson }}"""
    "{{ '}\n</tool_call>' }}"
)
WITH_TOOLS = (
    "<|im_start|>system\n{{ messages[0].content }}{% if tools %}{{ '\n\n' }}"
    + qwen3._TOOLS
    + "{% for tool in tools %}{{ '\n' + tool|tojson }}{% endfor %}"
    + f"{{{{ {json.dumps(qwen3._CALLING)} }}}}"
    + "{% endif %}<|im_end|>{{ '\n' }}"
    "{%- for m in messages[1:] %}{% if m.role == 'tool' %}"
    "{% if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% elif m.tool_calls %}{{ '<|im_start|>assistant\n' + m.content }}"
    "{% for c in m.tool_calls %}{% if m.content or not loop.first %}{{ '\n' }}{% endif %}"
    f"{CALL}{{% endfor %}}{{{{ '<|im_end|>\n' }}}}{{% else %}}{MESSAGE}{{% endif %}}{{% endfor %}}" + ASKED
)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render without a child, which takes most of the time."""

    def render(self: Template, conversations: Sequence[Mapping[str, Any]]) -> list[str | None]:
        given = [{**self.names, **values} for values in conversations]
        return [one.get("text") for one in rendered(self.text, given)]

    monkeypatch.setattr(Template, "render", render)


def folder_with(root: Path, template: str | None, names: Sequence[str] | None = None) -> Path:
    """A folder with the small tokenizer, which knows these special tokens (default: those of all formats)."""
    data = merged_file()
    if names is not None:
        first = data["added_tokens"][0]["id"]
        data = data | {
            "added_tokens": [
                data["added_tokens"][0] | {"content": name, "id": first + n} for n, name in enumerate(names)
            ]
        }
    (root / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    settings = {} if template is None else {"chat_template": template}
    (root / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return root


def found(folder: Path, *preferred: str) -> FoundFormat:
    return find_format(folder, PretrainedTokenizer.load(folder), preferred)


@pytest.mark.usefixtures("in_this_process")
def test_a_template_is_recognised_by_what_it_writes(tmp_path: Path) -> None:
    everything = folder_with(tmp_path, WITH_TOOLS)
    assert found(everything) == FoundFormat("qwen3", by_template=True)
    assert found(everything, "qwen2.5").name == "qwen2.5", "a family's own comes first"
    assert found(everything, "kimi-k2", "chatml").name == "qwen3", "what does not fit is passed over"
    assert found(folder_with(tmp_path, WITH_TOOLS, Qwen25Format.NAMES)) == FoundFormat("qwen2.5", by_template=True)
    assert found(folder_with(tmp_path, WITH_TOOLS, ChatMLFormat.NAMES)) == FoundFormat("chatml", by_template=True)
    assert found(folder_with(tmp_path, PLAIN, ChatMLFormat.NAMES)) == FoundFormat("chatml", by_template=True)
    assert found(folder_with(tmp_path, None)) == FoundFormat("qwen3", by_template=False)


@pytest.mark.usefixtures("in_this_process")
def test_other_calls_are_told_and_another_prompt_is_refused(tmp_path: Path) -> None:
    calls = found(folder_with(tmp_path, WITH_TOOLS.replace('"arguments"', '"parameters"')))
    assert calls.name == "qwen3"
    assert "parameters" in calls.differs
    assert "arguments" in calls.differs
    dated = folder_with(
        tmp_path, WITH_TOOLS.replace("{{ messages[0]", "It is {{ strftime_now('%Y') }}. {{ messages[0]")
    )
    with pytest.raises(TokenizerError, match=r"\(format qwen3 differs at .*It is 2024\. .*\): name harness\.format"):
        found(dated)
    tools = folder_with(tmp_path, WITH_TOOLS.replace("# Tools", "# Functions"))
    with pytest.raises(TokenizerError, match="# Functions"):
        found(tools)
    with pytest.raises(TokenizerError, match="special tokens of no chat format"):
        found(folder_with(tmp_path, PLAIN, ["<s>"]))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "did not end within 1 s"),
        ("{{ 'x' * 10**10 }}", "fills the memory"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ raise_exception('no\nroles') }}", r"\(TemplateError: no roles\)"),
        ("{% if %}", "TemplateSyntaxError"),
    ],
)
def test_a_template_that_harms_or_fails_is_one_line(
    template: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "_CPU_SECONDS", 1)
    with pytest.raises(TokenizerError, match=said) as caught:
        found(folder_with(tmp_path, template))
    assert "\n" not in str(caught.value)
    assert "name the chat format (harness.format)" in str(caught.value)


def test_where_a_template_may_stand(tmp_path: Path) -> None:
    def text_of(settings: dict[str, Any]) -> str | None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        template = read_template(tmp_path)
        return template.text if template else None

    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    assert text_of({}) is None
    assert text_of({"chat_template": "c"}) == "c"
    assert text_of({"chat_template": named}) == "b"
    assert text_of({"chat_template": named[:1]}) == "a"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}d")
    assert text_of({"chat_template": "c", "bos_token": {"content": "<s>"}, "eos_token": None}) == "{{ bos_token }}d"
    template = read_template(tmp_path)
    assert template is not None
    assert template.names == {"bos_token": "<s>"}


@pytest.mark.usefixtures("in_this_process")
def test_a_recipe_may_leave_the_format_to_the_folder(tmp_path: Path) -> None:
    recipe = HarnessRecipe(format="auto", tokenizer=str(folder_with(tmp_path, PLAIN, ChatMLFormat.NAMES)))
    assert type(format_of(recipe, tmp_path / "nowhere")) is ChatMLFormat
    Tokenizer.train(["x"], 400).save(tmp_path / "own.json")
    assert isinstance(format_of(HarnessRecipe(format="auto"), tmp_path / "own.json"), CompactFormat)


FOUND = {"qwen3": "qwen3", "deepseek_v3": "deepseek-v3", "llama3_1": "special tokens of no chat format"}
"""What scripts/test-tools.sh fetches: the format of its template. Its Llama has the special tokens of version 3.0."""


@pytest.mark.usefixtures("in_this_process")
@every_file
def test_real_templates_are_recognised(file: Path) -> None:
    folder = file.parent
    formats = {name for name, other in REAL if other == file}
    try:
        name = found(folder).name
    except TokenizerError as error:
        assert FOUND.get(folder.name, "is none that is known (format ") in str(error)  # noqa: PT017 - another template
    else:
        assert name in formats
        assert folder.parent != FETCHED or name == FOUND[folder.name]
