from __future__ import annotations

import socket
from pathlib import Path

import pytest

from etude.sandbox.inside.init import Init, OwnerGone


@pytest.mark.parametrize(
    "work", [lambda init: init.serve(), lambda init: init.answer({"ticket": 1, "op": "list", "path": "."}, b"")]
)
def test_an_owner_that_leaves_before_an_answer_is_not_an_error_to_answer_with(tmp_path: Path, work) -> None:
    ours, theirs = socket.socketpair()
    init = Init(theirs, {"limits": {}, "env": {}, "workdir": str(tmp_path)}, second_user=False)
    ours.close()
    with pytest.raises(OwnerGone):
        work(init)
    theirs.close()
