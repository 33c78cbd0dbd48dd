"""The report needs nothing but the run's files, and shows what is there of a run that is not finished."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from tests.view.folder import write_run

from etude.journal import RunPaths
from etude.view import closing_table, plain, write_report
from etude.view.data import read_run
from etude.view.plots import FIGURES, _smooth
from etude.view.rollouts import pairs
from etude.view.story import story
from etude.view.table import STAGES, Score, cell_table, measured, minutes


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


def test_the_page_is_self_contained(finished, page) -> None:
    links = parse(page).links
    assert len(links) == len(FIGURES)
    assert all(link.startswith("data:image/png;base64,") for link in links)
    assert not re.search(r"url\(|@import|https?://", page)
    drawn = sorted(finished.plots.glob("*"))
    assert [file.stem for file in drawn] == sorted(FIGURES)
    assert all(file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") for file in drawn)


def test_rollouts_stand_side_by_side_improvements_first(finished, page) -> None:
    shown = pairs(read_run(finished))
    assert (shown[0].before.judgement, shown[0].after.judgement) == ("fail", "pass")
    assert shown[0].before.reason == "ran out of its 5 turns"
    assert page.index(shown[0].task) < page.index("What each stage did") < page.index(shown[1].task)
    assert len({p.task for p in shown}) == len(shown)
    assert re.search(
        r"one at each task, \d+ failed before and passed after, \d+ the other way round; this is one", page
    )
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
    assert "Where the cores were" not in shown
    assert "None" not in "".join(parse(shown).text)


def test_the_closing_table_reads_well(finished) -> None:
    lines = closing_table(read_run(finished).summary)
    told = {x.stage: x for x in reversed(lines)}
    assert list(told)[::-1] == [*list(STAGES)[1:8], "rl", "evaluate"], "in their order, the first line of each"
    assert (told["pretrain"].before, told["pretrain"].after) == ("6.900", "1.200")
    assert [x.seconds for x in lines if x.stage == "rl"] == [12.5, None, None], "a stage's seconds are shown once"
    assert sum(x.seconds or 0 for x in lines) == 60 * minutes(read_run(finished).summary) == 9 * 12.5
    shown = plain(lines)
    assert "test tasks solved, pass@4" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert closing_table({}) == []


def test_the_four_cells_are_told_before_and_after(finished, page) -> None:
    lines = cell_table(read_run(finished).summary)
    met = [("seen", "seen"), ("unseen", "seen"), ("seen", "unseen"), ("unseen", "unseen")]
    assert [(line.family, line.kind) for line in lines] == met
    assert lines[0].tasks == 10
    assert lines[0].scores[0] == Score("20.0%", "60.0%", ("10\u201330", ""), fell=False)
    assert lines[0].scores[2] == Score("", "", ("", ""), fell=False)
    assert [line.scores[1].fell for line in lines] == [False, False, False, True]
    assert page.count("20.0% &rarr; 60.0%") == 1
    assert page.count('class="n fell"') == 1
    assert cell_table({}) == []


def test_how_the_test_was_taken_is_told(finished, page) -> None:
    told = measured(read_run(finished).summary)
    assert set(told) <= set(parse(page).text)
    for line, part in zip(
        told, ("40 test tasks, 4 attempts", "a fresh box", "the test 2 times", "one seed"), strict=True
    ):
        assert part in line
    tested = {"tasks": 1, "k": 2, "test_evaluations": 3, "greedy_before": 0}
    assert "1, and a greedy one, under" in measured({"rl": tested})[0]
    assert len(measured({"continued": tested})) == 3, "the other arm of that question"
    assert measured({"rl": {"k": 4}}) == [] == measured({})


def test_three_sentences_say_what_happened(finished, page) -> None:
    told = story(read_run(finished))
    assert set(told) <= set(parse(page).text)
    assert told == [
        "A network of 1.6 million parameters, 1.0 million of them at work on each token, was trained from nothing into "
        "a coding agent in 2 minutes on 2 CPUs (a CPU, 8 GiB of memory), on 1 March 2026: base model, longer context, "
        "draft head, learning from solutions, reinforcement learning (RL).",
        "One attempt at each of 40 unseen test tasks solved 8 of them before RL (20%, 95% interval 10 to 30%) and 24 "
        "after it (60%, 50 to 70%), as the average of 4 attempts.",
        "30 of these tasks are of a family of functions, or hold a kind of bug, that training never met: RL helped "
        "least where both were new (from 20% to 30%); fewer than before were solved by one at least of 4 attempts "
        "where both were new (from 50% to 45%).",
    ]


def test_the_story_of_an_unfinished_run_tells_what_is_known(finished, tmp_path) -> None:
    assert story(read_run(RunPaths(tmp_path / "none"))) == []
    data = read_run(finished)
    data.stages = {"corpus": data.stages["corpus"], "pretrain": data.stages["pretrain"] | {"done": False}}
    data.summary, data.started = {"seconds": {"corpus": 12.5, "pretrain": 12.5}}, {}
    assert story(data) == [], "nothing is trained yet"
    data.stages["pretrain"] |= {"done": True}
    data.summary["seconds"]["pretrain"] = 60.0
    assert story(data) == [
        "A network has been trained from nothing, so far for 1 minute, on 1 March 2026: base model."
    ], "as of a run that was to end there"


def test_where_training_helped_everywhere_nothing_is_said_to_have_fallen(finished) -> None:
    data = read_run(finished)
    del data.summary["cells"]["both_unseen"]
    assert "fewer" not in story(data)[2]
    cell = data.summary["cells"]["unseen_kind"]
    cell["pass1_after"] = cell["pass1_before"]
    assert story(data)[2].endswith("RL helped least where the kind of bug was new (from 20% to 20%).")
    cell["pass1_after"] = 0.1
    assert story(data)[2].endswith(
        ": fewer than before were solved by one attempt where the kind of bug was new (from 20% to 10%)."
    )


def test_every_core_second_of_rl_is_told(finished, page) -> None:
    text = "".join(parse(page).text)
    assert "2.0 cores for 100 seconds" in text
    for name, seconds in (("engine", 80.0), ("others on this machine", 10.0), ("idle, while these waited", 50.0)):
        assert re.search(rf"{re.escape(name)}\s*{seconds}\s*{seconds / 2}%", text), name


def test_a_journal_without_cores_and_an_evaluation_that_has_just_begun_are_left_out(finished, tmp_path) -> None:
    """Only the picture of cores is missing: that of scores shows the other evaluation."""
    shutil.copytree(finished.root, tmp_path / "old", ignore=shutil.ignore_patterns("journal", "plots"))
    (tmp_path / "old/eval/test-rl/summary.json").unlink()
    shutil.rmtree(tmp_path / "old/eval/test-rl/traces")
    data = read_run(RunPaths(tmp_path / "old"))
    assert [name for name, draw in FIGURES.items() if draw(data) is None] == ["cores"]
    assert pairs(data) == []


def test_smoothing_keeps_the_ends_and_a_straight_line() -> None:
    line = [float(value) for value in range(100)]
    assert _smooth(line) == line
    assert _smooth([]) == []
    smooth = _smooth([0.0, 9.0] * 20)
    assert (smooth[0], smooth[-1]) == (0.0, 9.0)
    assert 3 < min(smooth[5:-5]) < max(smooth[5:-5]) < 6


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
    assert "before more demonstrations" in story(data)[1]
    shown = [line.shows for line in closing_table(summary) if line.stage == "continued"]
    assert shown[0] == "test tasks solved, pass@1"
    assert FIGURES["scores"](data) is not None
    assert len(pairs(data)) > 0


def test_what_keeps_rl_well_behaved_has_a_panel_each(tmp_path) -> None:
    figure = FIGURES["health"](read_run(write_run(tmp_path / "run")))
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert len(titles) == 6
    assert {"entropy (nats)", "staleness (versions)"} <= set(titles)
