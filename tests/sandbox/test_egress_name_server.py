"""The name server of a box, fed by hand and by chance."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.sandbox import Egress
from etude.sandbox.egress import name_server
from etude.sandbox.egress.name_server import BadQuery, NameServer, parse_query
from etude.sandbox.egress.policy import Policy

POLICY = Policy(Egress("test", ("index.example", "*.distro.example")))


def question(name: str, kind: int = 1, *, ticket: int = 7, flags: int = 0x0100, extra: bytes = b"") -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label)
    head = struct.pack("!HHHHHH", ticket, flags, 1, 0, 0, 1 if extra else 0)
    return head + labels + b"\0" + struct.pack("!HH", kind, 1) + extra


def code(answer: bytes) -> int:
    return answer[3] & 15


def test_an_allowed_name_has_one_address_and_no_other_has_it() -> None:
    served = NameServer(POLICY, ipv6=True)
    answer, refused, _ = served.answer(question("Index.Example"))
    assert (code(answer), refused, answer[:2]) == (0, "", b"\0\7")
    assert answer[6:8] == b"\0\1"
    address = ".".join(map(str, answer[-4:]))
    assert served.name_of(address) == "index.example"
    assert served.answer(question("index.example"))[0][-4:] == answer[-4:]
    assert served.answer(question("deb.distro.example"))[0][-4:] != answer[-4:]
    assert served.name_of("198.18.0.99") is None


def test_the_question_comes_back_letter_by_letter() -> None:
    asked = question("iNdEx.eXaMpLe")
    assert asked[12:] in NameServer(POLICY, ipv6=True).answer(asked)[0]


@pytest.mark.parametrize("kind", [65, 16, 15, 33, 5, 6, 10])
def test_an_allowed_name_has_nothing_but_addresses(kind: int) -> None:
    answer, refused, _ = NameServer(POLICY, ipv6=True).answer(question("index.example", kind))
    assert (code(answer), answer[6:8], refused) == (0, b"\0\0", "")


def test_an_allowed_name_has_an_address_in_each_family() -> None:
    served = NameServer(POLICY, ipv6=True)
    answer, refused, _ = served.answer(question("index.example", 28))
    assert (code(answer), refused, answer[6:8], len(answer[-16:])) == (0, "", b"\0\1", 16)
    six = socket.inet_ntop(socket.AF_INET6, answer[-16:])
    four = socket.inet_ntop(socket.AF_INET, served.answer(question("index.example"))[0][-4:])
    assert served.name_of(six) == served.name_of(four) == served.name_of(f"::ffff:{four}") == "index.example"
    assert served.answer(question("index.example", 255))[0][6:8] == b"\0\2"
    assert served.answer(question("deb.distro.example", 28))[0][-16:] != answer[-16:]
    for other in ("::", "2001:2::", "2001:2::9", "fe80::1%eth0", "::ffff:198.18.0.9", "no address"):
        assert served.name_of(other) is None


def test_without_ipv6_there_is_no_second_address() -> None:
    served = NameServer(POLICY, ipv6=False)
    answer, refused, why = served.answer(question("index.example", 28))
    assert (code(answer), answer[6:8], refused, why) == (0, b"\0\0", "", "")
    assert served.answer(question("index.example", 255))[0][6:8] == b"\0\1"
    assert served.name_of("2001:2::1") is None


@pytest.mark.parametrize(
    "name",
    [
        "evil.example",
        "c2VjcmV0.evil.example",
        "index.example.evil.example",
        "distro.example",
        "1.0.0.127.in-addr.arpa",
        "",
    ],
)
def test_other_names_do_not_exist_and_are_told(name: str) -> None:
    answer, refused, why = NameServer(POLICY, ipv6=True).answer(question(name))
    assert (code(answer), answer[6:8]) == (3, b"\0\0")
    assert refused == name
    assert "no pattern" in why


def test_a_dot_within_a_label_is_no_border() -> None:
    data = question("x")[:12] + b"\x0dindex.example\0\0\1\0\1"
    answer, _, why = NameServer(POLICY, ipv6=True).answer(data)
    assert code(answer) == 1
    assert "dot within" in why


def test_names_without_end_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_server, "MOST_NAMES", 3)
    served = NameServer(POLICY, ipv6=True)
    answers = [served.answer(question(f"h{number}.distro.example")) for number in range(5)]
    assert [code(answer) for answer, _, _ in answers] == [0, 0, 0, 2, 2]
    assert code(served.answer(question("h1.distro.example"))[0]) == 0


def test_an_answer_or_an_update_is_not_a_question() -> None:
    assert NameServer(POLICY, ipv6=True).answer(question("index.example", flags=0x8100))[0] == b""
    assert code(NameServer(POLICY, ipv6=True).answer(question("index.example", flags=0x2900))[0]) == 4
    too_long = question(".".join(["x" * 63] * 4))
    assert code(NameServer(POLICY, ipv6=True).answer(too_long)[0]) == 1
    compressed = question("index.example")[:12] + b"\xc0\x0c\0\1\0\1"
    with pytest.raises(BadQuery):
        parse_query(compressed)


@given(st.binary(max_size=600))
def test_any_bytes_are_answered_or_dropped(data: bytes) -> None:
    served = NameServer(POLICY, ipv6=True)
    answer, _, why = served.answer(data)
    assert answer == b"" or (answer[:2] == data[:2] and answer[2] & 0x80)
    assert why or code(answer) == 0


@given(st.lists(st.from_regex(r"[A-Za-z0-9_-]{1,63}", fullmatch=True), min_size=1, max_size=3), st.integers(0, 65535))
def test_a_question_is_read_as_it_was_written(labels: list[str], kind: int) -> None:
    query = parse_query(question(".".join(labels), kind, extra=b"\0\0\x29\x10\0\0\0\0\0\0\0"))
    assert (query.name, query.kind, query.ticket) == (".".join(labels), kind, 7)
