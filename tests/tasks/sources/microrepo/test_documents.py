from __future__ import annotations

import json
import re
from collections import Counter
from itertools import takewhile
from pathlib import Path

import pytest
import zstandard

from etude.harness.tools.files import parse_line_edits, replacement
from etude.tasks import Split, function_hashes
from etude.tasks.sources.microrepo import SEEN_KINDS, documents, pool_of, write_documents
from etude.tasks.sources.microrepo.documents import Document, make_document


def read_documents(paths: list[Path]) -> list[Document]:
    texts = (zstandard.decompress(path.read_bytes()).decode() for path in paths)
    return [Document(**json.loads(line)) for text in texts for line in text.splitlines()]


def test_documents_are_deterministic_resumable_and_of_three_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PER_FILE", 100)
    paths = write_documents(tmp_path / "a", 250, 1)
    first = [path.read_bytes() for path in paths]
    assert len(paths) == 3
    paths[1].unlink()
    assert [path.read_bytes() for path in write_documents(tmp_path / "a", 250, 1)] == first
    read = read_documents(paths)
    assert len(read) == 250
    assert {document.kind for document in read} == {"lookup", "fix", "module"}
    assert read != read_documents(write_documents(tmp_path / "b", 250, 2))


def test_a_lookup_copies_lines_of_its_listing() -> None:
    looked = [d.text for d in (make_document(1, index) for index in range(60)) if d.kind == "lookup"]
    for text in looked:
        file = text.split("\n")[0].removeprefix("read ")
        shown = dict(line.split(" ", 1) for line in text.split("\n") if line[:1].isdigit())
        asked = [line for line in text.split("\n")[1:] if line.startswith(f"{file} ")]
        assert 2 <= len(asked) <= 3
        for line in asked:
            _, number, copy = line.split(" ", 2)
            assert shown[number].strip() == copy


def parts(text: str) -> tuple[str, str, list[str], dict[int, str]]:
    """Of a fix: what failed, the file, its lines, and what the last edit puts in the place of some."""
    before, *in_vain, call = text.removesuffix("\n").split("\nedit ")
    fail, read, *listing = before.split("\n")
    path, edited = call.split(" ", 1)
    assert read == f"read {path}"
    for number, line in enumerate(listing, 1):
        assert line.startswith(f"{number} ")
    lines = [line.partition(" ")[2] for line in listing]
    for said in in_vain:
        ((number, line),) = parse_line_edits(said.removeprefix(f"{path} ").removesuffix(f"\n{fail}")).items()
        assert line == lines[number - 1].strip(), "it changes nothing, so the same call fails again"
    return fail, path, lines, parse_line_edits(edited)


def test_a_fix_is_the_true_one_of_the_wrong_line_or_the_functions_code_anew() -> None:
    anew = alone = retried = 0
    for text in [d.text for d in (make_document(1, index) for index in range(80)) if d.kind == "fix"]:
        fail, _, lines, edited = parts(text)
        changed = [number for number, new in edited.items() if new != lines[number - 1].strip()]
        assert len(changed) == 1
        retried += text.count("\nedit ") == 2
        head = max(n for n, line in enumerate(lines, 1) if line.startswith("def ") and n < min(edited))
        assert lines[head - 1].startswith(f"def {fail.removeprefix('FAIL ').partition('(')[0]}(")
        rest = enumerate(lines[head:], head + 1)
        body = list(takewhile(lambda line: line[1].startswith(" "), rest))
        if len(edited) == 1:
            alone += 1
            assert changed[0] in [number for number, _ in body]
        else:
            anew += 1
            assert list(edited) == [number for number, line in body if not line.strip().startswith("#")]
        for number, new in edited.items():
            lines[number - 1 : number] = replacement(lines[number - 1], new)
        scope: dict[str, object] = {}
        exec("\n".join(lines), scope)
        call, _, expected = fail.removeprefix("FAIL ").partition(", expected ")
        call = call[: call.rindex(" gave ") if " gave " in call else call.rindex(" raised ")]
        assert repr(eval(call, scope)) == expected
        assert function_hashes("\n".join(lines))
    assert anew > alone > retried > 0


def words(line: str) -> Counter[str]:
    return Counter(re.findall(r"\w+|[^\w\s]+", line))


def test_no_fix_is_of_an_unseen_kind() -> None:
    """Told by the lines alone: what an edit puts in the place of what."""
    compared = 0
    for text in [d.text for d in (make_document(2, index) for index in range(300)) if d.kind == "fix"]:
        _, _, lines, edited = parts(text)
        ((wrong, right),) = [
            (lines[number - 1].strip(), new) for number, new in edited.items() if new != lines[number - 1].strip()
        ]
        out, into = words(wrong) - words(right), words(right) - words(wrong)
        changed = set(out + into)
        assert changed - {"and", "or", "not", "True", "False"} or not changed, f"bool: {wrong} -> {right}"
        assert {*out, *into} not in ({"<", "<="}, {">", ">="}), f"off1: {wrong} -> {right}"
        assert "range(" not in right or out != Counter(["-", "1"]), f"off1: {wrong} -> {right}"
        assert into not in (Counter(["-", "1"]), Counter(["+", "1"])), f"off1: {wrong} -> {right}"
        compared += 1
    assert compared > 125


def test_fixes_show_every_seen_kind_of_bug_of_what_may_be_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pool_of(Split.TRAIN) == documents.POOL
    shown: Counter[str] = Counter()
    draw = documents.draw_broken

    def counted(pool, kind, *args, **named):
        assert pool is documents.POOL
        broken = draw(pool, kind, *args, **named)
        shown[broken.mutation.kind] += 1
        return broken

    monkeypatch.setattr(documents, "draw_broken", counted)
    fixes = sum(make_document(1, index).kind == "fix" for index in range(400))
    assert shown.keys() == set(SEEN_KINDS)
    assert shown.total() == fixes
    assert min(shown.values()) > 0.4 * fixes / len(SEEN_KINDS), "no kind is rare"
