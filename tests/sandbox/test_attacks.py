"""The suite of attacks: a cell says what the mode declares, and nothing that was not tried counts as held."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from tests.contract.sandbox.escapes import withstands
from tests.contract.sandbox.support import in_loop

from etude.sandbox import (
    BoxBusy,
    Capability,
    DiskFull,
    EmbeddedSandboxes,
    Feature,
    HostOverloaded,
    RequestRefused,
    SandboxError,
    SandboxLost,
    SandboxUnavailable,
)
from etude.sandbox.attacks import (
    ATTACKS,
    CLASSES,
    Cell,
    Outcome,
    Scene,
    attack,
    cells,
    requests,
    run_attacks,
    table,
    try_attack,
)
from etude.sandbox.attacks.classes import HIDING, SERVING, TABLES, WITHOUT, lacking
from etude.sandbox.attacks.outside import odd_roots
from etude.sandbox.embedded.copies import CopyableBox
from etude.sandbox.modes import open_mode
from etude.sandbox.modes.confinement import Bubblewrap, Landlock

RACES = 6
"""Enough to find what worked in one of two tries; `make bench NAME=attacks RACES=1000` tries more."""
SLOW = {"waking-in-a-fork", "folders-that-take-much"}
OWN = [
    pytest.param(name, marks=pytest.mark.slow) if found.race or name in SLOW else name
    for name, found in ATTACKS.items()
    # These are cases of the contract suite, so in every mode.
    if not found.act.__module__.endswith(".escapes") and found.of is not TABLES
]


@pytest.mark.parametrize("name", OWN)
def test_boxes_withstand(name: str, tmp_path: Path) -> None:
    async def body() -> None:
        sandboxes = EmbeddedSandboxes(tmp_path / "boxes")
        try:
            await withstands(sandboxes, name, races=RACES)
        finally:
            await sandboxes.close()

    asyncio.run(body())


def test_each_class_has_an_attack_and_words_for_what_it_needs() -> None:
    assert {found.of.name for found in ATTACKS.values()} == {each.name for each in CLASSES}
    needs = {need for found in ATTACKS.values() for need in found.needs}
    assert needs <= set(WITHOUT)
    assert set(WITHOUT) == {*Feature, *Capability}


def rows_of(title: str) -> dict[str, str]:
    """The rows of the first table below a title of docs/threats.md, by their first column."""
    text = (Path(__file__).parents[2] / "docs" / "threats.md").read_text(encoding="utf-8")
    table = text.partition(f"## {title}\n")[2].partition("|---|---|\n")[2].partition("\n\n")[0]
    return {name: rest.removesuffix(" |") for name, rest in (row[2:].split(" | ", 1) for row in table.splitlines())}


def test_the_threat_model_has_each_class_with_its_invariant() -> None:
    assert rows_of("What a box cannot do") == {each.name: each.invariant for each in CLASSES}


def test_the_threat_model_says_what_a_mode_lacks() -> None:
    """A class is lacking if the mode promises to withstand none of its attacks."""
    told, lacks = rows_of("What modes lack"), {}
    for mode in (Bubblewrap, Landlock):
        tried = {
            found.of.name for found in ATTACKS.values() if not lacking(found.needs, mode.features | mode.capabilities)
        }
        lacks[mode.name] = {each.name for each in CLASSES} - tried
    listed = {each.strip() for each in told["`bubblewrap`"].partition(";")[0].split(",")}
    assert listed == lacks["bubblewrap"]
    assert told["`landlock`"] == "the same, and other processes, rights, segments; grading"
    assert lacks["landlock"] - listed == {"other processes", "rights"}


def test_what_was_not_tried_never_counts_as_held(tmp_path: Path) -> None:
    @attack(HIDING)
    async def fails(scene: Scene) -> None:
        """Fail."""
        scene.held()
        raise RuntimeError("no python")

    @attack(SERVING)
    async def loses(scene: Scene) -> None:
        """Lose a box."""
        raise SandboxLost("gone")

    async def body() -> list[Outcome]:
        sandboxes = open_mode("plain", tmp_path)
        image = await sandboxes.add_image({"a": b""})
        found = [await try_attack(each, sandboxes, image) for each in (fails, replace(fails, needs=()), loses)]
        await sandboxes.close()
        return found

    lacking, undecided, lost = asyncio.run(body())
    assert (lacking.tried, lacking.lacks) == (0, ("own_init",))
    assert (undecided.tried, undecided.undecided) == (1, "RuntimeError: no python")
    assert (lost.tried, lost.breaches) == (1, ("a box was lost: gone",))


def test_no_cell_of_the_table_is_empty() -> None:
    outcomes = [
        Outcome("a", HIDING.name, 3, ("out",)),
        Outcome("b", HIDING.name, 2, undecided="why"),
        Outcome("c", HIDING.name, lacks=("own_init",)),
        Outcome("d", SERVING.name, lacks=("fork",)),
    ]
    found = cells(outcomes)
    assert [str(found[name]) for name in (HIDING.name, SERVING.name)] == ["5: 1 ?1 *", "no fork"]
    assert str(Cell()) == "not tried"
    drawn = table({"here": found, "there": {}}, (HIDING, SERVING))
    assert [line.split("  ")[0] for line in drawn.splitlines()[2:4]] == ["hiding", "requests"]
    assert drawn.count("not tried") == 2
    assert f"no fork: {WITHOUT[Feature.FORK]}" in drawn


def attacked(name: str, folder: Path) -> Outcome:
    async def body() -> Outcome:
        sandboxes = EmbeddedSandboxes(folder / "boxes")
        try:
            return (await run_attacks(sandboxes, [ATTACKS[name]], races=1))[0]
        finally:
            await sandboxes.close()

    return asyncio.run(body())


def test_an_attack_that_could_not_be_prepared_is_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_ODD", "raise SystemExit(1)")
    found = attacked("odd-files", tmp_path)
    assert (found.tried, found.breaches) == (0, ())
    assert "could not be prepared" in found.undecided


@pytest.mark.parametrize(
    ("error", "undecided"),
    [
        (BoxBusy("it writes"), ""),
        (RequestRefused("never"), "NotTried: no box was copied: never"),
        (DiskFull("no room"), "DiskFull: no room"),
        (SandboxError("a fault of ours"), "SandboxError: a fault of ours"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_race_in_which_nothing_was_copied_is_held_if_the_box_was_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, undecided: str
) -> None:
    monkeypatch.setattr(CopyableBox, "snapshot", AsyncMock(side_effect=error))
    found = attacked("snapshot-of-a-waking-box", tmp_path)
    assert (found.breaches, found.undecided) == ((), undecided)


@pytest.mark.parametrize(
    ("error", "breaches", "undecided"),
    [
        (RequestRefused("no"), 0, ""),
        (SandboxUnavailable("no namespaces"), 0, "SandboxUnavailable: no namespaces"),
        (HostOverloaded("slow"), len(odd_roots(Path("/"))), ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_image_is_refused_as_such_or_our_error_is_a_breach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, breaches: int, undecided: str
) -> None:
    monkeypatch.setattr(EmbeddedSandboxes, "import_image", AsyncMock(side_effect=error))
    found = attacked("odd-images", tmp_path)
    if found.lacks:
        pytest.skip("boxes have no root here")
    assert (len(found.breaches), found.undecided) == (breaches, undecided)


def test_a_proxy_that_lets_boxes_in_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.sandbox.egress.upstream.may_reach", lambda *_, **__: True)
    found = attacked("inward-requests", tmp_path)
    assert "HTTP/1.1 200 OK" in found.breaches[0]
    assert "the host was reached" in found.breaches[-1]
    assert not found.undecided


@in_loop
async def test_plain_boxes_promise_no_wall(sandboxes: EmbeddedSandboxes, tmp_path: Path) -> None:
    assert {Capability.HOST_FILES, Capability.OWN_INIT} <= sandboxes.capabilities
    assert Capability.OWN_KERNEL not in sandboxes.capabilities
    plain = open_mode("plain", tmp_path / "plain")
    assert plain.capabilities == frozenset()
    await plain.close()
