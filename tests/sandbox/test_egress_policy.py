"""Which names a policy covers, and which look like them and are not covered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.sandbox import Egress, RequestRefused
from etude.sandbox.egress.policy import Pattern, Policy, host_name

LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
NAMES = st.lists(LABELS, min_size=2, max_size=5).map(".".join).filter(lambda name: host_name(name) is not None)


def policy(*allow: str) -> Policy:
    return Policy(Egress("test", allow))


LOOK_ALIKES = [
    *("index.example.evil.example", "evilindex.example", "evil-index.example", "index.example@evil.example"),
    *("xindex.example", "index.examplex", "example", "index", ".index.example", "index..example", "index.example.."),
    *("www.index.example", "index.example:443", "index.example/", "", "ind\u0435x.example", "index.ex\u0251mple"),
    *("index\u3002example", "index.example\0", "index.example\n", " index.example", "index\uff0eexample"),
]


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_what_only_looks_like_an_allowed_name(name: str) -> None:
    form = host_name(name)
    assert form is None or not policy("index.example").allows(form)


@pytest.mark.parametrize("name", ["index.example", "Index.Example", "index.example.", "INDEX.EXAMPLE."])
def test_one_name_in_all_its_spellings(name: str) -> None:
    form = host_name(name)
    assert form == "index.example"
    assert policy("Index.Example.").allows(form)


def test_letters_beyond_ascii_do_not_become_ascii() -> None:
    assert "\u212a".lower() == "k"
    assert host_name("\u212aernel.example") is None
    with pytest.raises(RequestRefused, match="ASCII"):
        Pattern.parse("b\u00fccher.example")


@pytest.mark.parametrize("name", ["1.2.3.4", "127.1", "0x7f000001", "a.0x7f", "2130706433", "::1", "[::1]", "a.b.99"])
def test_addresses_are_not_names(name: str) -> None:
    assert host_name(name) is None
    with pytest.raises(RequestRefused):
        Policy(Egress("test", (name,)))


@pytest.mark.parametrize(
    "text",
    [
        *("*", "*.", "*.org", "a*.org", "a.*.org", "**.a.org", "", "https://a.org"),
        *("a.org:", "a.org:0", "a.org:x", "a.org:65536", "a.org:53", "a.org:443:80", "a.org:\u0661"),
    ],
)
def test_a_pattern_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused, match="egress pattern"):
        Pattern.parse(text)


def test_ports_are_those_of_the_pattern() -> None:
    both = policy("a.org", "b.org:8443")
    assert both.ports == [80, 443, 8443]
    assert [both.allows("a.org", port) for port in (80, 443, 8443)] == [True, True, False]
    assert [both.allows("b.org", port) for port in (80, 443, 8443)] == [False, False, True]
    with pytest.raises(RequestRefused, match="at most 32"):
        policy(*(f"a.org:{port}" for port in range(1000, 1040)))


@given(NAMES, NAMES)
def test_a_name_is_covered_by_itself_and_its_wildcard_alone(name: str, other: str) -> None:
    assert policy(name).allows(name)
    assert policy(name).allows(other) == (name == other)
    assert policy(f"*.{name}").allows(f"{other}.{name}") == (len(f"{other}.{name}") <= 253)
    assert not policy(f"*.{name}").allows(f"{other}{name}") or other.endswith(".")
    assert not policy(name).allows(f"{name}.{other}")


@given(st.text(max_size=300))
def test_any_text_is_a_name_in_one_form_or_none(text: str) -> None:
    form = host_name(text)
    if form is not None:
        assert host_name(form) == form == host_name(form.upper())
        assert form.isascii()
        assert len(form) <= 253
