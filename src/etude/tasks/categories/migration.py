"""Migration tasks: the agent moves a program from an old interface to a new one. The old interface is not available at
grading."""

from __future__ import annotations

import random
from collections.abc import Sequence

from etude.tasks.categories.base import CategorySource, Draft
from etude.tasks.categories.migrations import options, tables
from etude.tasks.verifiers.migration import old_interface_file
from etude.tasks.verifiers.migration.new_interface import FOLDER
from etude.tasks.verifiers.tests import suite_files

_TABLES = "grids"
_GONE = 'raise ImportError("this is not here any more")\n'


class MigrationSource(CategorySource):
    name = "migration"
    version = 2
    category = "migration"

    def kins(self) -> Sequence[str]:
        return [f"migrate:{name}" for name in (*options.SUBJECTS, _TABLES)]

    def draft(self, kin: str, rng: random.Random) -> Draft:
        subject = kin.partition(":")[2]
        program = tables.draw(rng) if subject == _TABLES else options.draw(subject, rng)
        path, test_path = f"{program.name}.py", f"tests/test_{program.name}.py"
        workspace = {**program.libraries, "README.md": f"# {program.name}\n{program.about}\n".encode()}
        absent = {place: _GONE.encode() for place in program.absent}
        hidden = {**absent, "tests/__init__.py": b"", test_path: program.tests.encode()}
        folders = sorted({place.partition("/")[0] for place in program.libraries})
        return Draft(
            instruction=program.instruction,
            kind=program.kind,
            verifier={"type": "migration", "runner": "unittest", "seconds": 10.0, "memory_mb": 512},
            before={**workspace, path: program.before.encode()},
            solved={**workspace, path: program.after.encode()},
            other={**workspace, path: program.other.encode()},
            hidden={
                **suite_files(hidden, [f"tests.test_{program.name}.ProgramTest.{test}" for test in program.test_names]),
                **{f"{FOLDER}/{place}": data for place, data in program.dulled.items()},
                **old_interface_file(program.old, program.new, folders),
            },
        )
