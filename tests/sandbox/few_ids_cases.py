"""Boxes of a user with 5,000 subordinate ids only. Run by test_ordinary_user.py, as such a user."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from tests.contract.sandbox.support import in_loop

from etude.sandbox import BoxSpec, EmbeddedSandboxes, ImageError, RequestRefused
from etude.sandbox.embedded.probe import Mode


def root_of(path: Path, uid: int) -> Path:
    """A tar of one file that belongs to a user."""
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("file")
        info.uid, info.size = uid, 2
        tar.addfile(info, io.BytesIO(b"hi"))
    return path


@in_loop
async def test_users_and_owners_within_the_range_are_there_and_others_refused(
    sandboxes: EmbeddedSandboxes, tmp_path: Path
) -> None:
    assert sandboxes.host.mode == Mode.SUBUID
    box = await sandboxes.create(BoxSpec("host"))
    for user, uid in (("root", 0), ("agent", 1000), ("grader", 1001), ("4999:4999", 4999)):
        assert (await box.exec("id -u", timeout=20, user=user)).stdout == f"{uid}\n".encode()
    with pytest.raises(RequestRefused, match="ids below 5000"):
        await box.exec("true", timeout=20, user="5000")
    last = await sandboxes.import_image(root_of(tmp_path / "last.tar", 4999))
    assert len(sandboxes.store.image(last).layers) == 1
    with pytest.raises(ImageError, match="ids below 5000"):
        await sandboxes.import_image(root_of(tmp_path / "beyond.tar", 5000))
