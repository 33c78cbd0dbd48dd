"""Lists every regular file below some folders that this user may see: its size, modification time and path.

The first argument is a folder to leave out, the others are the folders to list. Symbolic links are not followed; file
systems that are mounted below the folders are listed too. Each file is one record that ends with a zero byte.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path


def files_below(top: str, left_out: str) -> Iterator[tuple[int, int, str]]:
    place = Path(top)
    waiting = [top] if place.is_dir() and not place.is_symlink() else []
    while waiting:
        try:
            entries = sorted(os.scandir(waiting.pop()), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            try:
                if entry.is_file(follow_symlinks=False):
                    facts = entry.stat(follow_symlinks=False)
                    yield facts.st_size, facts.st_mtime_ns, entry.path
                elif entry.is_dir(follow_symlinks=False) and entry.path != left_out:
                    waiting.append(entry.path)
            except OSError:
                continue


if __name__ == "__main__":
    for folder in sys.argv[2:]:
        for size, changed, path in files_below(folder, sys.argv[1]):
            sys.stdout.buffer.write(b"%d %d %s\0" % (size, changed, os.fsencode(path)))
