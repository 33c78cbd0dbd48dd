"""The report needs nothing but the run's files, and shows what is there of a run that is not finished."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.view.folder import write_run

from etude.journal import RunPaths
from etude.view import closing_table, plain, write_report
from etude.view.data import read_run
from etude.view.plots import FIGURES, _smooth
from etude.view.rollouts import pairs
from etude.view.table import cell_table, measured


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse(page: str) -> Page:
    parser = Page()
    parser.feed(page)
    return parser


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunPaths:
    return write_run(tmp_path_factory.mktemp("view") / "tiny")


@pytest.fixture(scope="module")
def page(finished) -> str:
    return write_report(finished).read_text(encoding="utf-8")


def test_the_page_is_self_contained(page) -> None:
    links = parse(page).links
    assert len(links) == len(FIGURES)
    assert all(link.startswith("data:image/png;base64,") for link in links)
    assert not re.search(r"url\(|@import|https?://", page)


def test_every_picture_is_a_png(finished, page) -> None:
    drawn = sorted(finished.plots.glob("*"))
    assert [file.stem for file in drawn] == sorted(FIGURES)
    for file in drawn:
        data = file.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert data.rstrip().endswith(b"IEND\xaeB`\x82")
        assert len(data) > 5_000


def test_rollouts_stand_side_by_side_improvements_first(finished, page) -> None:
    shown = pairs(read_run(finished))
    assert (shown[0].before.judgement, shown[0].after.judgement) == ("fail", "pass")
    assert len({p.task for p in shown}) == len(shown)
    after = shown[0].after
    assert [s.text for s in after.steps if s.role == "call"][2] == "edit kitchen.py 3 return load * 4 + score * 8"
    assert [s.text for s in after.steps if s.role == "break"] == ["goes on from its own summary"]
    assert "return <b>1</b>" in "".join(parse(page).text)
    assert "<b>1</b>" not in page


def test_a_torn_last_line_and_a_step_logged_twice_do_no_harm(finished) -> None:
    data = read_run(finished)
    assert data.series("rl", "solved")[0] == list(range(1, 40))


@pytest.mark.parametrize("keep", ["nothing", "lineage.json", "stages"])
def test_a_run_at_any_point_can_be_shown(keep, finished, tmp_path) -> None:
    root = tmp_path / "half"
    root.mkdir()
    source = finished.root / keep
    if source.is_dir():
        shutil.copytree(source, root / keep)
    elif source.exists():
        shutil.copy(source, root / keep)
    shown = write_report(RunPaths(root)).read_text(encoding="utf-8")
    assert "half" in shown
    assert "None" not in "".join(parse(shown).text)


def test_an_evaluation_that_has_just_begun_is_left_out(finished, tmp_path) -> None:
    root = tmp_path / "half"
    shutil.copytree(finished.root, root)
    (root / "eval/test-rl/summary.json").unlink()
    shutil.rmtree(root / "eval/test-rl/traces")
    write_report(RunPaths(root))


def test_the_closing_table_reads_well(finished) -> None:
    lines = closing_table(read_run(finished).summary)
    assert (lines[0].stage, lines[0].before, lines[0].after) == ("pretrain", "6.900", "1.200")
    assert [x.seconds for x in lines if x.stage == "rl"] == [12.5, None, None], "a stage's seconds are shown once"
    shown = plain(lines)
    assert "test tasks solved, pass@4" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert closing_table({}) == []


def test_the_four_cells_are_told_before_and_after(finished, page) -> None:
    lines = cell_table(read_run(finished).summary)
    met = [("seen", "seen"), ("unseen", "seen"), ("seen", "unseen"), ("unseen", "unseen")]
    assert [(line.family, line.kind) for line in lines] == met
    assert lines[0].tasks == 7
    assert lines[0].scores == (("20.0%", "60.0%"), ("", ""), ("", ""))
    assert page.count("20.0% &rarr; 60.0%") == 4
    assert cell_table({}) == []


def test_how_the_test_was_taken_is_told(finished, page) -> None:
    told = measured(read_run(finished).summary)
    assert told in parse(page).text
    assert told.startswith("40 test tasks")
    assert "; 4 attempts at each at temperature 1, under" in told
    assert "taken 2 times" in told
    assert "1, and a greedy one, under" in measured(
        {"rl": {"tasks": 1, "k": 2, "test_evaluations": 3, "greedy_before": 0}}
    )
    assert measured({"rl": {"k": 4}}) == "" == measured({})


@given(st.lists(st.floats(-1e3, 1e3), max_size=80))
def test_a_smooth_course_stays_with_its_curve(values: list[float]) -> None:
    smooth = _smooth(values)
    assert len(smooth) == len(values)
    if values:
        assert (smooth[0], smooth[-1]) == (values[0], values[-1])
        assert min(values) - 1e-9 <= min(smooth)
        assert max(smooth) <= max(values) + 1e-9


def test_a_straight_line_is_smooth_already() -> None:
    line = [float(value) for value in range(100)]
    assert _smooth(line) == line


def test_no_torch_is_needed() -> None:
    code = "import sys, etude.view.report; sys.exit(len({'torch', 'ray', 'transformers'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_that_continued_sft_is_shown_as_one_that_did_rl(tmp_path) -> None:
    paths = write_run(tmp_path / "run")
    shutil.move(paths.evaluation("test-rl"), paths.evaluation("test-continued"))
    lineage = json.loads(paths.lineage.read_text())
    lineage["stages"]["continued"] = lineage["stages"].pop("rl")
    paths.lineage.write_text(json.dumps(lineage))
    summary = json.loads(paths.summary.read_text())
    summary["continued"] = summary.pop("rl")
    paths.summary.write_text(json.dumps(summary))
    data = read_run(paths)
    assert data.ends == ("test-sft", "test-continued")
    shown = [line.shows for line in closing_table(summary) if line.stage == "continued"]
    assert shown[0] == "test tasks solved, pass@1"
    assert FIGURES["scores"](data) is not None
    assert len(pairs(data)) > 0


def test_what_keeps_rl_well_behaved_has_a_panel_each(tmp_path) -> None:
    figure = FIGURES["health"](read_run(write_run(tmp_path / "run")))
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert len(titles) == 6
    assert {"entropy (nats)", "staleness (versions)"} <= set(titles)
