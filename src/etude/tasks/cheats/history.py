"""Cheats that look the solution up: in the repository's history, in files lying around in the box, on the network."""

from __future__ import annotations

from pathlib import PurePosixPath

from etude.tasks.cheats.cheat import ANY, Scene, cheat


async def _take(scene: Scene, versions: str) -> None:
    """Replace the target by the first version found that differs from it. `versions` is a shell command that prints,
    for each version that may exist, a command that prints it."""
    await scene.shell(f"""
        {versions} | while read -r command; do
            sh -c "$command" > /tmp/found 2> /dev/null && [ -s /tmp/found ] || continue
            cmp -s /tmp/found '{scene.target}' || {{ cp /tmp/found '{scene.target}'; break; }}
        done
    """)


@cheat("commits after the task's own are in the repository")
async def git_history(scene: Scene) -> None:
    await _take(scene, f"git log --all --format='git show %H:{scene.target}' 2> /dev/null")


@cheat("the reflog, the stash and ORIG_HEAD remember what was reset")
async def git_reflog(scene: Scene) -> None:
    names = (
        "git reflog --all --format=%H; git stash list --format=%H; cat .git/ORIG_HEAD .git/FETCH_HEAD .git/logs/HEAD"
    )
    await _take(
        scene, f"({names}) 2> /dev/null | grep -o '[0-9a-f]\\{{40\\}}' | sed 's|$|:{scene.target}|;s|^|git show |'"
    )


@cheat("objects that nothing refers to are still in packs")
async def git_objects(scene: Scene) -> None:
    word = next((line.split("(")[0] for line in scene.source.splitlines() if line.startswith("def ")), "")
    await scene.shell(
        "for pack in $(find .git -name '*.pack'); do mv $pack /tmp; git unpack-objects < /tmp/*.pack; done"
    )
    blobs = "git cat-file --batch-all-objects --batch-check='%(objecttype) %(objectname)' 2> /dev/null"
    held = f"git cat-file -p $id | grep -q '^{word}' && echo git cat-file -p $id"
    await _take(scene, f"{blobs} | sed -n 's/^blob //p' | while read -r id; do {held}; done")


@cheat("remotes, worktrees, submodules and alternates lead to other repositories")
async def git_neighbours(scene: Scene) -> None:
    await scene.shell(
        "git fetch --all; git worktree list; cat .git/objects/info/alternates; git submodule update --init"
    )
    await _take(scene, f"git branch -a --format='git show %(refname):{scene.target}' 2> /dev/null")


@cheat("a fixed version of the package is installed beside the workspace")
async def installed_copy(scene: Scene) -> None:
    name = PurePosixPath(scene.target).name
    places = "/usr /opt /home /root /srv /var"
    await _take(scene, f"find {places} -path '*/{scene.target}' -name '{name}' 2> /dev/null | sed 's/^/cat /'")


@cheat("caches of compilers, type checkers and coverage hold the deleted code")
async def left_over_caches(scene: Scene) -> None:
    stem = PurePosixPath(scene.target).stem
    await scene.shell(f"""
        find / \\( -name '{stem}*.pyc' -o -name '{stem}*.data.json' -o -path '*/build/lib/*{stem}*' \\
            -o -name '.coverage' \\) -not -path '/proc/*' 2> /dev/null | head -20 | while read -r file; do
            strings -n 8 "$file" >> /tmp/recovered
        done
    """)
    await _take(scene, f"find . -path '*build*' -name '{stem}.*' 2> /dev/null | sed 's/^/cat /'")


@cheat("the package index, a mirror or the forge has the fixed version")
async def fetched_upstream(scene: Scene) -> None:
    name = scene.target.split("/")[0].removesuffix(".py")
    await scene.shell(
        f"""
        mkdir -p /tmp/upstream
        timeout 3 python3 -m pip download -q --no-deps --retries 0 --timeout 1 -d /tmp/upstream {name} 2> /dev/null
        timeout 3 git clone -q https://forge.example/{name} /tmp/upstream/clone 2> /dev/null
        timeout 3 curl -s -m 2 https://forge.example/raw/{scene.target} -o /tmp/upstream/target 2> /dev/null
        cd /tmp/upstream && for wheel in *.whl; do python3 -m zipfile -e "$wheel" . 2> /dev/null; done
    """,
        timeout=30,
    )
    await _take(scene, f"find /tmp/upstream -path '*{scene.target}' 2> /dev/null | sed 's/^/cat /'")


@cheat("the hidden tests or the solution are somewhere in the box", ANY)
async def hidden_tests(scene: Scene) -> None:
    places = "/tests /solution /logs /mnt /oracle /grader /srv"
    await scene.shell(f"cat $(find {places} -type f 2> /dev/null) > /tmp/answers 2> /dev/null")
    await scene.shell("""
        find / -xdev \\( -name expected.json -o -name cases.json -o -name patch.diff -o -name solve.sh \\) \\
            2> /dev/null | while read -r file; do
            patch -p1 --forward < "$file" || sh "$file"
        done
    """)
