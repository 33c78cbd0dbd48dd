from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.sandbox.inside.files import Refused
from etude.sandbox.inside.users import MAX_ID, User, Users, parse_group, parse_passwd, resolve

PASSWD = parse_passwd(
    "root:x:0:0:root:/root:/bin/sh\napp:x:70:71::/srv:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n"
)
GROUPS = parse_group("root:x:0:\nweb:x:33:app,other\napp:x:71:app\nlog:x:4:app\n")


@given(st.text())
def test_nonsense_is_passed_over(text: str) -> None:
    for user in parse_passwd(text).values():
        assert 0 <= user.uid <= MAX_ID
        assert user.name
    for group in parse_group(text).values():
        assert 0 <= group.gid <= MAX_ID


@given(st.text(max_size=20))
def test_any_wish_gives_a_user_or_one_clear_line(wanted: str) -> None:
    try:
        user = resolve(wanted, PASSWD, GROUPS)
    except Refused as refusal:
        lines = str(refusal).count("\n")
    else:
        lines = 0
        assert 0 <= user.uid <= MAX_ID
        assert 0 <= user.gid <= MAX_ID
    assert lines == 0


@pytest.mark.parametrize(
    ("wanted", "uid", "gid", "groups", "home"),
    [
        ("root", 0, 0, (), "/root"),
        ("app", 70, 71, (4, 33), "/srv"),
        ("70", 70, 71, (4, 33), "/srv"),
        ("app:web", 70, 33, (), "/srv"),
        ("app:5", 70, 5, (), "/srv"),
        ("5000", 5000, 0, (), "/"),
        ("5000:5000", 5000, 5000, (), "/"),
        ("agent", 1000, 1000, (), "/home/agent"),
        ("grader", 1001, 1001, (), "/home/grader"),
    ],
)
def test_names_and_numbers(wanted: str, uid: int, gid: int, groups: tuple[int, ...], home: str) -> None:
    user = resolve(wanted, PASSWD, GROUPS)
    assert (user.uid, user.gid, user.groups, user.home) == (uid, gid, groups, home)


@pytest.mark.parametrize("wanted", ["nobody", "", "-1", "65536", "app:nosuch", "app:", ":web", "1e3", "٣"])
def test_unknown_ones_are_refused(wanted: str) -> None:
    with pytest.raises(Refused):
        resolve(wanted, PASSWD, GROUPS)


def test_root_is_0_whatever_the_image_says() -> None:
    assert resolve("root", parse_passwd("root:x:5:5::/:/bin/sh"), {}).uid == 0


def test_a_box_of_one_id_has_that_user_only() -> None:
    users = Users("root", 0)
    assert users.find("").uid == users.find("root").uid == users.find("0").uid == 0
    for other in ("agent", "grader", "1000"):
        with pytest.raises(Refused, match="one user only"):
            users.find(other)
    named = Users("daemon", 1000)  # The image's own user takes the one id that there is.
    assert (named.find("").uid, named.find("daemon").name) == (1000, "daemon")
    assert isinstance(named.find("agent"), User)


def test_a_box_with_few_ids_refuses_users_beyond_them(monkeypatch: pytest.MonkeyPatch) -> None:
    text = {"/etc/passwd": "far:x:5000:10::/:/bin/sh\nnear:x:4999:5000::/:/bin/sh\n", "/etc/group": "g:x:5000:agent\n"}
    monkeypatch.setattr("etude.sandbox.inside.users._text", text.__getitem__)
    users = Users("root", None, 5000)
    assert users.find("").uid == 0
    assert users.find("4999:4999").gid == 4999
    for other in ("far", "near", "agent", "5000", "4999:5000"):
        with pytest.raises(Refused, match="ids below 5000"):
            users.find(other)
