"""Every line lies in one chunk, in order, whatever a file holds; definitions are found in every language."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.harness.chunks import Chunk, chunks_of, grammars
from etude.harness.chunks.chunk import LONGEST, MAX_FILE_BYTES, PARAGRAPHS
from etude.harness.chunks.grammars import LANGUAGES

CODE = {
    "a.py": """import os
X = 1


# about f
@wrapped
def f(a):
    def inner(): pass
    return a


class A(B):
    y = 1

    @property
    def m(self):
        return 1

    class N:
        async def k(self): pass

print(1)  # the end of f
def h():
    pass
""",
    "a.ts": """import x from "y";
export class A<T> {
  x = 1;
  /** says foo */
  foo(a: number): void {
    return;
  }
}
export const f = (a) => {
  return a;
};
interface I { a: string }
""",
    "a.js": "function* g() {}\nconst a = class {\n  m() {}\n};\n",
    "a.go": """package x

// Foo does.
func Foo(a int) int {
	return a
}

type T struct {
	a int
}

func (t *T) Bar() {
}
""",
    "a.rs": """use x;
/// says S
#[derive(Debug)]
pub struct S { a: i32 }
impl Tr for S {
    fn a(&self) -> i32 { 1 }
}
""",
    "A.java": """package a;
public class A {
  int x;
  /** says foo */
  public int foo(int a) {
    return 1;
  }
  A() {}
}
""",
    "a.c": """#include <x.h>
struct s { int a; };
static struct s *foo(struct t *a)
{
  return 0;
}
""",
    "a.cpp": """namespace n {
template <class T>
class A {
  int f() const { return 1; }
};
}
int n::A::g(int &x) { return 2; }
int& h() { return 1; }
""",
    "a.rb": """module M
  class A
    # says foo
    def foo(a)
      1
    end
    def self.bar; end
  end
end
""",
}
FOUND = {
    "a.py": "1-4 , 5-11 f, 12-14 A, 15-18 A.m, 19-19 A.N, 20-21 A.N.k, 22-22 , 23-24 h",
    "a.ts": "1-1 , 2-3 A, 4-8 A.foo, 9-11 f, 12-12 I",
    "a.js": "1-1 g, 2-2 a, 3-4 a.m",
    "a.go": "1-2 , 3-7 Foo, 8-11 T, 12-13 T.Bar",
    "a.rs": "1-1 , 2-4 S, 5-5 S, 6-7 S.a",
    "A.java": "1-1 , 2-3 A, 4-7 A.foo, 8-9 A.A",
    "a.c": "1-1 , 2-2 s, 3-6 foo",
    "a.cpp": "1-1 n, 2-3 n.A, 4-6 n.A.f, 7-7 n::A::g, 8-8 h",
    "a.rb": "1-1 M, 2-3 M.A, 4-6 M.A.foo, 7-9 M.A.bar",
}


@pytest.mark.parametrize("path", CODE)
def test_definitions_of_every_language(path: str) -> None:
    assert ", ".join(f"{c.first}-{c.last} {c.name}" for c in chunks_of(path, CODE[path].encode())) == FOUND[path]


def holds_every_line_once(chunks: list[Chunk], data: bytes) -> None:
    lines = data.decode().removesuffix("\n").split("\n")
    assert [line for chunk in chunks for line in chunk.text.split("\n")] == lines
    place = 1
    for chunk in chunks:
        assert chunk.first == place
        assert chunk.last - chunk.first == chunk.text.count("\n")
        assert chunk.last - chunk.first < LONGEST
        place = chunk.last + 1


PIECES = [line for code in CODE.values() for line in code.splitlines()] + ["", "    ", "}", "end", "\t'''", '"""', "\r"]


@settings(deadline=None)
@given(st.sampled_from(sorted(LANGUAGES)), st.lists(st.sampled_from(PIECES), min_size=1, max_size=200))
def test_broken_code_loses_no_line(suffix: str, lines: list[str]) -> None:
    data = "\n".join(lines).encode()
    if data:
        holds_every_line_once(chunks_of(f"x{suffix}", data), data)


@settings(deadline=None)
@given(st.sampled_from([*sorted(LANGUAGES), ".txt", ""]), st.one_of(st.binary(), st.text().map(str.encode)))
def test_any_bytes_make_chunks_or_none(suffix: str, data: bytes) -> None:
    chunks = chunks_of(f"x{suffix}", data)
    if chunks:
        holds_every_line_once(chunks, data)
    else:
        assert not data or b"\0" in data or data.decode("utf-8", "replace").encode() != data


@pytest.mark.parametrize(
    "data",
    [
        b"((((" * 20_000,
        b"class A {" * 3_000,
        b"def f():\n" + b"  x = 1\n" * 5_000,
        b"x" * 400_000,
        b"\n" * 10_000,
        "\n".join(" " * n + "def f():" for n in range(300)).encode(),
    ],
    ids=["deep", "classes", "long", "one line", "blank", "stairs"],
)
@pytest.mark.parametrize("suffix", [".py", ".cpp", ".ts", ".txt"])
def test_hostile_files(data: bytes, suffix: str) -> None:
    holds_every_line_once(chunks_of(f"x{suffix}", data), data)


def test_what_is_no_text_or_too_large_has_no_chunks() -> None:
    assert chunks_of("a.py", b"x\0y") == []
    assert chunks_of("a.py", b"\xff\xfe") == []
    assert chunks_of("a.py", b"") == []
    assert chunks_of("a.py", b"x = 1\n" * (MAX_FILE_BYTES // 6 + 1)) == []


def test_a_long_function_is_split_and_its_inner_ones_stand_alone() -> None:
    body = "".join(f"    x{n} = {n}\n" + "\n" * (n % 7 == 0) for n in range(100))
    data = f"def outer():\n{body}    def inner():\n        return 1\n".encode()
    chunks = chunks_of("a.py", data)
    holds_every_line_once(chunks, data)
    assert [chunk.name for chunk in chunks] == ["outer", "outer", "outer.inner"]


def test_without_a_grammar_paragraphs_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "_grammar", lambda language: None)
    functions = [f"def f{n}(a):\n" + "    a += 1\n" * 10 + "    return a\n" for n in range(12)]
    data = "\n\n".join(functions).encode()
    chunks = chunks_of("a.py", data)
    holds_every_line_once(chunks, data)
    assert len(chunks) > 3
    for chunk in chunks:
        assert chunk.last - chunk.first < PARAGRAPHS
        assert chunk.text.startswith("def f")
        assert chunk.name == chunk.text[4:].partition("(")[0]
