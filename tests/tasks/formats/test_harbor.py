"""The typed view of a task.toml, and the document below it, which survives."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etude.tasks import Split, TaskError, read_task, toml, write_task
from etude.tasks.harbor import Harbor, harbor_mistakes, parse_harbor, parts_of, unknown_keys

from .harbor_tasks import STEPS, VERSIONS, write

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).map(lambda key: f"x {key}")
VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    | st.dates()
    | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
UNKNOWN = st.dictionaries(KEYS, VALUES, max_size=3)


def harbor(text: str) -> Harbor:
    return parse_harbor(tomllib.loads(text), Path("task.toml"))


def test_old_spellings_mean_what_the_new_ones_do() -> None:
    old = harbor(VERSIONS["1.0"]).environment
    assert (old.memory_mb, old.storage_mb, old.network_mode) == (512, 1024, "no-network")
    both = harbor('[environment]\nmemory = "1G"\nmemory_mb = 3\n').environment
    assert both.memory_mb == 3, "the new spelling counts"


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [("2G", 2048), ("1.5g", 1536), ("512MiB", 512), ("2048K", 2), ("1T", 1 << 20), ("1048576", 1)],
)
def test_sizes(text: str, megabytes: int) -> None:
    assert harbor(f'[environment]\nstorage = "{text}"\n').environment.storage_mb == megabytes


def test_a_step_says_what_is_different(tmp_path: Path) -> None:
    text = STEPS.replace("[steps.verifier]\n", '[steps.agent]\nuser = 7\n[steps.verifier]\nuser = "root"\n')
    first, second = parts_of(harbor(text))
    assert (first.name, first.min_reward, first.verifier.user) == ("scaffold", {"reward": 1.0}, None)
    assert (second.verifier.timeout_sec, second.verifier.user, second.agent.user) == (30, "root", "7")
    assert second.folder(tmp_path) == tmp_path / "steps/extend"
    (whole,) = parts_of(harbor('artifacts = ["a"]'))
    assert (whole.name, whole.artifacts[0].source, whole.folder(tmp_path)) == ("", "a", tmp_path)


def test_an_environment_of_its_own_makes_a_verifier_separate() -> None:
    assert harbor("[verifier.environment]\n").verifier.separate
    assert harbor('[verifier]\nenvironment_mode = "separate"\n').verifier.separate
    assert not harbor("").verifier.separate


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ('schema_version = "2.0"', "schema_version: expected 1.x, found '2.0'"),
        ("version = 1.0", "schema_version: expected text, found 1.0"),
        ("environment = 3", "environment: expected a table, found 3"),
        ("[environment]\nmemory_mb = true", "environment.memory_mb: expected a whole number, found True"),
        ("[environment]\nmemory_mb = 0", "environment.memory_mb: expected a number above 0, found 0"),
        ('[environment]\nmemory = "lots"', "environment: expected memory as a size such as \"2G\", found 'lots'"),
        ("[environment]\nallow_internet = 1", "environment: expected allow_internet as true or false, found 1"),
        ('[environment]\nworkdir = "app"', "environment.workdir: expected an absolute path, found 'app'"),
        ('[environment]\nnetwork_mode = "some"', "network_mode: expected 'public', 'no-network' or 'allowlist', found"),
        ('[agent]\nnetwork_mode = "allowlist"', "agent: expected allowed_hosts, which allowlist needs"),
        ("[environment.healthcheck]\nretries = 1", "environment.healthcheck.command: expected a value, there is none"),
        ("[verifier.env]\nA = 1", "verifier.env.A: expected text, found 1"),
        ("[verifier]\ntimeout_sec = -1", "verifier.timeout_sec: expected a number above 0, found -1"),
        ("[[verifier.collect]]\ntimeout_sec = 1", "verifier.collect[0].command: expected a value, there is none"),
        ('artifacts = ["/logs"]', "artifacts[0]: expected a path that holds none of /tests, /solution, /logs/verifier"),
        ('artifacts = ["/tests/../etc"]', "artifacts[0]: expected a path without .."),
        ('artifacts = "a"', "artifacts: expected a list, found 'a'"),
        ('[[steps]]\nname = "../up"', "steps[0].name: expected a plain folder name, found '../up'"),
        ('[[steps]]\nname = "a"\nmin_reward = "x"', "steps[0].min_reward: expected a table, found 'x'"),
        ('[[steps]]\nname = "a"\n[[steps]]\nname = "a"', "expected steps with different names, found 'a' twice"),
        ('[[environment.mcp_servers]]\nname = "x"', "environment.mcp_servers[0]: expected a url, which sse needs"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_file_field_and_expectation(text: str, mistake: str) -> None:
    with pytest.raises(TaskError) as caught:
        harbor(text)
    assert str(caught.value).startswith("task.toml: ")
    assert mistake in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    document = {"agent": {"timeout_sec": 0}, "environment": {"cpus": "two"}, "steps": 3}
    assert len(harbor_mistakes(document)) == 3
    with pytest.raises(TaskError, match=r"agent\.timeout_sec: .* \(and 2 more\)"):
        parse_harbor(document, Path("task.toml"))


def test_keys_that_harbor_does_not_have_are_named() -> None:
    found = harbor('colour = 1\n[environment]\nmemroy_mb = 2\n[[steps]]\nname = "a"\nx = 1\n')
    assert list(unknown_keys(found)) == ["colour", "environment.memroy_mb", "steps[0].x"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=35, deadline=None)
@given(st.sampled_from(sorted(VERSIONS)), UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
def test_every_key_survives_being_read_and_written(
    tmp_path: Path,
    version: str,
    top: dict[str, Any],
    metadata: dict[str, Any],
    inner: dict[str, Any],
    ours: dict[str, Any],
) -> None:
    document = tomllib.loads(VERSIONS[version]) | top
    document.setdefault("metadata", {}).update({**metadata, "etude": dict(ours)})
    document["environment"] |= inner
    files = {"task.toml": toml.dumps(document), "instruction.md": "do it\n"}
    task = read_task(write(tmp_path / "t", files), set(Split))
    assert task.config == document
    write_task(task, {})
    again = read_task(tmp_path / "t", set(Split)).config
    assert _within(document, again)
    assert harbor_mistakes(again) == []


def _within(before: Any, after: Any) -> bool:
    """Nothing was lost or changed; Étude's own fields may have come."""
    if isinstance(before, dict):
        return isinstance(after, dict) and all(key in after and _within(before[key], after[key]) for key in before)
    return type(before) is type(after) and before == after


@settings(max_examples=25, deadline=None)
@given(st.recursive(VALUES, lambda inner: st.dictionaries(st.sampled_from(sorted(Harbor.model_fields)), inner)))
def test_no_document_brings_the_reader_down(document: Any) -> None:
    mistakes = harbor_mistakes(document if isinstance(document, dict) else {"steps": document})
    assert all(": expected" in mistake or mistake.startswith("expected") for mistake in mistakes)
