"""What users write for a policy: names, tables of their own, hosts; each mistake is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.sandbox import Egress, RequestRefused
from etude.sandbox.egress import parse_egress

TEAM = """
[python]
allow = ["index.example", "*.packages.example:8443"]
[inner]
allow = ["localhost:3141"]
credentials = true
private = true
"""


@pytest.fixture
def team(tmp_path: Path) -> str:
    (tmp_path / "team.toml").write_text(TEAM)
    return str(tmp_path / "team.toml")


def test_names_tables_and_hosts_in_one_list(team: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/all")
    egress = parse_egress(f"pip, {team}:python, mirror.example:8443,index.example")
    assert egress.allow == ("index.example", "*.packages.example:8443", "mirror.example:8443")
    assert egress.name == f"pip,{team}:python,mirror.example:8443,index.example"
    assert not egress.credentials
    assert not egress.private
    assert parse_egress("none") == Egress("none", ())


def test_what_widens_a_policy_widens_its_own_hosts_alone(team: str) -> None:
    assert parse_egress(f"{team}:inner") == Egress(f"{team}:inner", ("localhost:3141",), credentials=True, private=True)
    for text in (f"{team}:inner,mirror.example", f"{team}:python,{team}:inner"):
        with pytest.raises(RequestRefused, match="would hold for the other hosts too; expected it alone"):
            parse_egress(text)


def test_a_proxy_of_a_table_is_for_all_that_is_named(tmp_path: Path) -> None:
    address = "http://me:s3cret@proxy.example:3128"
    tables = f"[a]\nallow = ['a.example']\nupstream_proxy = '{address}'\n[b]\nallow = ['b.example']\n"
    tables += f"[same]\nallow = ['c.example']\nupstream_proxy = '{address}'\n"
    tables += "[other]\nallow = ['d.example']\nupstream_proxy = 'http://other.example:3128'\n"
    (tmp_path / "team.toml").write_text(tables)
    team = f"{tmp_path}/team.toml"
    for text, allow in (
        (f"{team}:a,{team}:b", ("a.example", "b.example")),
        (f"{team}:b,x.example,{team}:a", ("b.example", "x.example", "a.example")),
        (f"{team}:a,{team}:same", ("a.example", "c.example")),
    ):
        egress = parse_egress(text)
        assert (egress.allow, egress.proxy) == (allow, address)
        assert "s3cret" not in repr(egress)
    assert parse_egress(f"{team}:b").proxy == ""
    with pytest.raises(RequestRefused, match=r"expected one upstream_proxy in all its tables, found 2"):
        parse_egress(f"{team}:a,{team}:other")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pyp", r"expected pip, npm, apt, none, a table of yours .*; found pyp$"),
        ("", "found nothing$"),
        ("pip.example,one,two", "found one, two$"),
        ("https://index.example", "egress pattern 'https://index.example'"),
        ("nowhere.toml:python", "cannot read nowhere.toml: No such file"),
    ],
)
def test_words_that_mean_nothing(text: str, says: str) -> None:
    with pytest.raises(RequestRefused, match=says) as refused:
        parse_egress(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[python", "is no TOML: "),
        (b"\xff", "is no TOML: "),
        (b"python = 1\n[other]", r"expected a table \[python\] in .*; there are other$"),
        (b"", "there are none$"),
        (b"[python]", r"team.toml \[python\]: expected allow = .*; found allow = None"),
        (b"[python]\nallow = 'a.example'", "found allow = 'a.example'"),
        (b"[python]\nallow = [1]", r"found allow = \[1\]"),
        (b"[python]\nallow = []\nprivate = 1", "found private = 1"),
        (b"[python]\nallow = []\nprivat = true", "found privat = True"),
        (b"[python]\nallow = []\nupstream_proxy = 3128", "found upstream_proxy = 3128"),
        (b"[python]\nallow = []\nupstream_prxy = 'http://me:s3cret@a'", "found upstream_prxy = a text$"),
        (
            b"[python]\nallow = []\nupstream_proxy = 'https://me:s3cret@a:1'",
            r"\[python\]: upstream_proxy: .* found https:",
        ),
        (b"[python]\nallow = ['*']", r"team.toml \[python\]: egress pattern '\*'"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "team.toml").write_bytes(content)
    with pytest.raises(RequestRefused, match=says) as refused:
        parse_egress(f"{tmp_path}/team.toml:python")
    assert "\n" not in str(refused.value)
    assert "s3cret" not in str(refused.value)
