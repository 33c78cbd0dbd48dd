"""Repositories are read at a commit: what git ignores, or was deleted, changed or added since, plays no part."""

import subprocess

import pytest

from etude.corpus import CorpusError
from etude.corpus.sources import parts_of
from etude.recipe.corpus import CorpusRecipe


def git(folder, *arguments):
    settings = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *settings, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "code" / "app"
    (root / "inner").mkdir(parents=True)
    git(root, "init")
    (root / "a.py").write_text("first = 1\n")
    (root / "inner" / "b b.go").write_text("package b\n")
    (root / "inner" / "LICENSE").write_text("Mozilla Public License Version 2.0")
    (root / "link.py").symlink_to("a.py")
    (root / ".gitignore").write_text("secret.py\n")
    git(root, "add", ".")
    git(root, "commit", "-m", "one")
    git(root, "tag", "v1")
    (root / "a.py").write_text("second = 2\n")
    git(root, "commit", "-am", "two")
    (root / "a.py").write_text("not committed\n")
    (root / "secret.py").write_text("password\n")
    return root


def found(path, **fields):
    recipe = CorpusRecipe(sources=[], code={"mine": {"path": str(path), **fields}})
    return {one.name: one for source in parts_of(recipe, None) for one in source.part.read(lambda name, size: True)}


@pytest.mark.parametrize(("revision", "text"), [("HEAD", b"second = 2\n"), ("v1", b"first = 1\n")])
def test_a_commit_is_read_without_what_lies_around_it(repository, monkeypatch, revision, text):
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    files = found(repository, revision=revision)
    assert sorted(files) == [".gitignore", "a.py", "inner/LICENSE", "inner/b b.go"]
    assert files["a.py"].data == text
    assert files["inner/b b.go"].licences == ("mpl-2.0",)
    assert files["a.py"].licences == ()
    assert files["a.py"].origin.startswith("app ")


def test_repositories_below_a_folder_and_bare_ones_are_found(repository, tmp_path):
    (repository.parent / "loose.py").write_text("loose = 1\n")
    git(tmp_path, "clone", "--bare", str(repository), str(repository.parent / "bare.git"))
    files = [one for source in parts_of(CorpusRecipe(sources=[], code={"mine": {"path": str(repository.parent)}}), None)
             for one in source.part.read(lambda name, size: True)]  # fmt: skip
    assert {(one.repository, one.name) for one in files if one.name.endswith(".py")} == {
        ("app", "a.py"),
        ("bare.git", "a.py"),
        ("code", "loose.py"),
    }


def test_mistakes_are_one_line(repository, tmp_path):
    with pytest.raises(CorpusError, match=r"app has no revision 'v9': git says"):
        found(repository, revision="v9")
    with pytest.raises(CorpusError, match=r"app has no revision '--all'"):
        found(repository, revision="--all")
    with pytest.raises(CorpusError, match=r"corpus\.code\.mine\.path: .*nowhere is neither a folder"):
        found(tmp_path / "nowhere")
    for path in (repository / ".git" / "objects").glob("??/*"):
        path.chmod(0o644)
        path.unlink()
    with pytest.raises(CorpusError, match="app has no revision"):
        found(repository)
