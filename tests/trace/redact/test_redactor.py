"""A secret that was planted anywhere is nowhere in what comes out."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.trace.redact import Known, Redactor, known_here

secrets = st.text(st.characters(codec="utf-8", exclude_categories=["Zs", "Cc", "Zl", "Zp"]), min_size=8, max_size=40)
around = st.text(max_size=30)


@settings(max_examples=20, deadline=None)
@given(
    secret=secrets, before=around, behind=around, form=st.sampled_from(["plain", "json", "base64", "broken", "diff"])
)
def test_a_value_of_the_environment_is_taken_out_in_every_spelling(
    secret: str, before: str, behind: str, form: str
) -> None:
    spelled = {
        "plain": secret,
        "json": json.dumps(secret)[1:-1],
        "base64": base64.b64encode(secret.encode()).decode().rstrip("="),
        "broken": f"{secret[:5]}\n{secret[5:]}",
        "diff": f"{secret[:5]}\n+{secret[5:]}",
    }[form]
    redactor = Redactor([Known("env", secret)])
    cleaned = redactor.redact({"a": [f"{before}{spelled}{behind}"], spelled: 1})
    text = json.dumps(cleaned, ensure_ascii=False)
    assert spelled not in cleaned["a"][0] or spelled in before + behind
    assert "[redacted:" in text
    assert redactor.redact(cleaned) == cleaned


@settings(max_examples=30, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=20), lambda inner: st.lists(inner)))
def test_what_holds_no_secret_comes_back_as_it_was(document: object) -> None:
    redactor = Redactor()
    cleaned = redactor.redact(document)
    assert cleaned == document or redactor.counts


def test_the_same_secret_has_the_same_placeholder_wherever_it_stands() -> None:
    redactor = Redactor()
    one, other = "AKIAQ6XZTN4PWLKD2J7B", "AKIAQ6XZTN4PWLKD2J7C"
    cleaned = redactor.redact([f"id {one}", {one: other}, f"again {one}"])
    assert cleaned == [
        "id [redacted:aws-key-1]",
        {"[redacted:aws-key-1]": "[redacted:aws-key-2]"},
        "again [redacted:aws-key-1]",
    ]
    assert redactor.counts == {"aws-key": 4}
    assert redactor.redact(one) == "[redacted:aws-key-1]", "also in the next document"


def test_what_a_name_gave_away_is_taken_out_where_no_name_stands() -> None:
    cleaned = Redactor().redact(["it is x7Kd93mQvB here", "password = 'x7Kd93mQvB'"])
    assert cleaned == ["it is [redacted:secret-1] here", "password = '[redacted:secret-1]'"]


def test_arguments_are_read_as_json_too() -> None:
    redactor = Redactor()
    raw = '{"text": "\\u0041KIAQ6XZTN4PWLKD2J7B"}'
    assert json.loads(redactor.arguments(raw)) == {"text": "[redacted:aws-key-1]"}
    kept = '{ "a":1 , "b": [2,3]}'
    assert redactor.arguments(kept) == kept, "what holds no secret keeps its spelling"
    assert redactor.arguments("edit AKIAQ6XZTN4PWLKD2J7B {") == "edit [redacted:aws-key-1] {"


def test_who_and_where_the_user_is(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("HOME", "/srv/people/ada")
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    monkeypatch.setattr("socket.gethostname", lambda: "engine-7")
    environment = {
        "MY_KEY": "opensesame",
        "EDITOR": "vim-or-so",
        "ENDPOINT": "hush-hush",
        "SSH_AUTH_SOCK": "/tmp/agent.1",
    }
    redactor = Redactor(known_here(environment, ["ENDPOINT"]))
    text = "ada@engine-7:/srv/people/ada/x /srv/people/adam canada opensesame vim-or-so hush-hush /tmp/agent.1"
    assert redactor.redact(text) == (
        "[redacted:user-1]@[redacted:host-1]:[redacted:home-1]/x /srv/people/adam canada [redacted:env-1] vim-or-so "
        "[redacted:env-2] /tmp/agent.1"
    )


SECRET = "x7Kd93mQ/B2nL+pR5t"


@pytest.mark.parametrize("before", ["", "u", "ab", "user:", "a much longer text before it: "])
@pytest.mark.parametrize("behind", ["", "\n", "@host", "\0\0\0"])
@pytest.mark.parametrize("alphabet", [base64.b64encode, base64.urlsafe_b64encode, base64.encodebytes])
def test_a_secret_within_a_text_in_base64(before: str, behind: str, alphabet: Callable[[bytes], bytes]) -> None:
    """What is left of the encoded text is the same for another secret, so it tells nothing of the secret."""
    left = set()
    for secret in (SECRET, "q0Wm/Zc8+Tn41vYhEs"):
        spelled = alphabet(f"{before}{secret}{behind}".encode()).decode()
        left.add(Redactor([Known("env", secret)]).redact(f"data {spelled}."))
    assert len(left) == 1, left
    assert "[redacted:env-1]" in left.pop()


def test_the_quotes_around_a_spelling_are_kept() -> None:
    """A text may begin or end with a spelling, where no Base64 character carries its first or last bits."""
    inner = base64.b64encode(f"u{SECRET}@".encode()).decode()[2:-3]
    assert Redactor([Known("env", SECRET)]).redact([f'"{inner}"', inner]) == ['"[redacted:env-1]"', "[redacted:env-1]"]


@pytest.mark.parametrize(
    "spelled",
    [
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        SECRET.encode().hex(" "),
        SECRET.encode().hex(":"),
        SECRET.encode().hex(" ", 2),
        "".join(f"\\x{byte:02x}" for byte in SECRET.encode()),
        ", ".join(f"0x{byte:02X}" for byte in SECRET.encode()),
        SECRET.replace("/", "%2f").replace("+", "%2b"),
    ],
)
def test_a_secret_in_other_digits(spelled: str) -> None:
    cleaned = Redactor([Known("env", SECRET)]).redact(f"<{spelled}>")
    assert re.fullmatch(r"<(\\x|0x)?\[redacted:env-1\]>", cleaned), cleaned


@pytest.mark.parametrize(
    "between",
    [
        *(
            "\n    ",
            "\n\t",
            " \n  ",
            "\r\n  ",
            "\n+    ",
            "\n-\t",
            "\\n    ",
            "\\n\\t",
            " \\\n  ",
            "\n  12\t",
            "\n     7: ",
        ),
        *('"\n    "', "' +\n  '", '" + "', "' '", '\\"\\n    \\"', '",\n+  "', "' . '", "'\n+    f'", "\\\n"),
    ],
)
def test_a_secret_in_pieces(between: str) -> None:
    """As in an indented text, a numbered listing, or a program that joins them."""
    for cut in (1, 8, len(SECRET) - 1):
        cleaned = Redactor([Known("env", SECRET)]).redact(f'key = "{SECRET[:cut]}{between}{SECRET[cut:]}" # ok')
        assert cleaned == 'key = "[redacted:env-1]" # ok'


def test_what_splits_a_secret_is_found_in_linear_time() -> None:
    """Anything slower would take hours here, and the test's own deadline ends it."""
    redactor = Redactor([Known("env", SECRET)])
    for piece in (" ", "\t", "'", "' ", "\\n", "\\", "+ ", "0x", "\n ", "1", '" + "'):
        assert len(redactor.redact(piece * (100_000 // len(piece)))) > 0
