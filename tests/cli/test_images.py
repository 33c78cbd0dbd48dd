"""etude sandbox images: ids on stdout, progress beside it, and one line for a mistake."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.cli import here

from etude.cli.images import parse_size
from etude.sandbox import ImageError

etude = partial(here.etude, "sandbox", "images")


def test_an_image_comes_and_goes(tmp_path: Path) -> None:
    root, store = tmp_path / "root", ("--store", tmp_path / "store")
    root.mkdir()
    (root / "file").write_bytes(b"x" * 1_000_000)
    (root / "sudo").touch()
    (root / "sudo").chmod(0o4755)
    made = etude("import", root, *store)
    assert (made.returncode, made.stderr) == (0, "left out, as no box has a use for it: 1 x set-uid or set-gid bit\n")
    image = made.stdout.strip()
    head, row = etude("list", *store).stdout.splitlines()
    assert head.split() == ["IMAGE", "LAYERS", "SIZE", "LAST", "USED", "FROM"]
    assert row.startswith(f"{image}  1       1.0 MB")
    assert row.endswith(f"just now   imported from {root}")
    assert etude("collect", "0", *store).stdout.splitlines()[1].startswith("everything left is in use, or was")
    unknown = etude("remove", "5f2c", *store)
    assert (unknown.returncode, "no image '5f2c'" in unknown.stderr) == (2, True)
    assert "frees the disk" in etude("remove", image, *store).stdout
    done = etude("collect", "1G", "--grace", "0", *store)
    assert done.stdout == "freed 1.0 MB: 0 images, 1 layer; 0 B left\n"
    assert etude("list", *store).stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["import", "nowhere"], "nowhere: no such file or folder; expected a root file system"),
        (["pull", "No Reference"], "'No Reference' is no image reference; expected [registry/]name[:tag]"),
        (["remove", "5f2c"], "is not an image store: name one with --store"),
        (["list"], "is not an image store"),
        (["collect", "lots"], "'lots' is not a size: expected a number with or without K, M, G or T"),
        (["debootstrap", "../x"], "expected such as bookworm"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, args: list[str], says: str) -> None:
    done = etude(*args, "--store", tmp_path / "store")
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.startswith("etude: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_sizes() -> None:
    assert [parse_size(text) for text in ("0", "500M", "20g", "1.5T", "7 GB".replace(" ", ""))] == [
        0,
        500_000_000,
        20 * 10**9,
        1_500_000_000_000,
        7 * 10**9,
    ]
    for text in ("", "-1", "G", "1P", "1 G"):
        with pytest.raises(ImageError, match="is not a size"):
            parse_size(text)
