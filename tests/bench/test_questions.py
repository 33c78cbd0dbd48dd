"""The rule that judges answers, and files of questions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.bench import BenchError, Question, chosen, read_questions, write_questions
from etude.bench.questions import LONGEST_LINE, first_line, folded, is_right


@pytest.mark.parametrize(
    ("accepted", "answer", "right"),
    [
        ("functools.cache", "`functools.cache`", True),
        ("functools.cache", "It is **functools.cache**.\n\n", True),
        ("functools.cache", "functools.cache\nNo: lru_cache", False),
        ("functools.cache", "", False),
        ("3.1", "Version 3.1.", True),
        ("3.1", "3.11", False),
        ("3.1", "3.1.4", False),
        ("3.1", "13.1", False),
        ("join", "os.path.join", False),
        ("join", "rejoin", False),
        ("--no-cache", "pass --no-cache", True),
        ("no-cache", "--no-cache-dir", False),
        ("Straße", "STRASSE", True),
        ("a b", "it is a   b", True),
        ("x.*", "xyz", False),
        ("def", f"def {'or not ' * LONGEST_LINE}", False),
    ],
)
def test_the_last_line_must_hold_the_answer_as_whole_words(accepted: str, answer: str, right: bool) -> None:
    assert is_right(Question("?", ("other", accepted)), answer) is right


def test_an_exact_question_takes_nothing_else() -> None:
    assert is_right(Question("?", ("443",), exact=True), "so:\n'443'.")
    assert not is_right(Question("?", ("443",), exact=True), "not 443")


def test_a_base_model_is_judged_by_its_first_line() -> None:
    assert first_line(" def\n\nQuestion: Which keyword ends it?\nAnswer: none") == "def"


WORDS = st.text(min_size=1, max_size=12).filter(lambda text: folded(text) != "" and text.strip() != "")
QUESTIONS = st.builds(
    Question, WORDS, st.lists(WORDS, min_size=1, max_size=3).map(tuple), st.booleans(), st.text(max_size=5)
)


@given(st.lists(QUESTIONS, min_size=1, max_size=4))
def test_written_questions_are_read_back(tmp_path_factory: pytest.TempPathFactory, questions: list[Question]) -> None:
    path = tmp_path_factory.mktemp("questions") / "q.toml"
    write_questions(path, questions, "Drafts.\nEdit them.")
    assert read_questions(path) == questions


def test_lines_of_json_are_read_and_the_seed_chooses(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text("".join(f'{{"question": "q{n}", "answers": ["a"]}}\n\n' for n in range(20)))
    found = read_questions(path)
    drawn = chosen(found, 5, 1)
    assert drawn == sorted(chosen(found, 5, 1), key=found.index)
    assert len(set(drawn)) == 5
    assert drawn != chosen(found, 5, 2)
    assert chosen(found, 50, 1) == found


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("q.txt", "", "expected a file of questions, .toml or .jsonl"),
        ("q.toml", "question = 3", "expected [[question]] tables, with two brackets"),
        ("q.toml", "", "has no questions"),
        ("q.toml", "[[question]\n", "is not TOML"),
        ("q.toml", "[[questions]]", "has 'questions'"),
        ("q.toml", "[[question]]\nquestion = 'a'\nanswer = 'b'", "question 1 has 'answer'"),
        ("q.toml", "[[question]]\nquestion = 'a'\nanswers = ['`*`']", "question 1 has no answers"),
        ("q.toml", "[[question]]\nquestion = 'a'\nanswers = ['b']\nexact = 1", "expected true or false for exact"),
        ("q.jsonl", '{"question": "a", "answers": ["b"]}\n[' + "[" * 100_000, "line 2 is not JSON"),
        ("q.jsonl", '"a"', "line 1: expected a table"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_one_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BenchError) as raised:
        read_questions(tmp_path / name)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
