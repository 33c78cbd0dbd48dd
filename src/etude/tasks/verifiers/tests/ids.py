"""Builds and takes apart the test ids of pytest, unittest and Node. For example, finds the id that a test has in a
renamed copy of its function."""

from __future__ import annotations

from dataclasses import dataclass

from etude.tasks.verifiers.tests.suite import SuiteConfig


@dataclass(frozen=True, slots=True)
class Ids:
    config: SuiteConfig

    @property
    def separator(self) -> str:
        return {"pytest": "::", "unittest": ".", "node": " > "}[self.config.runner]

    def address(self, test: str) -> str:
        """Return the id of the test function, which is the test's id without parameters."""
        return test.partition("[")[0] if self.config.runner == "pytest" else test

    def row(self, test: str) -> str:
        """Return the text in brackets of a pytest id, which names the row of a parametrised test; else ""."""
        return test[len(self.address(test)) + 1 : -1]

    def addresses(self, file: str, path: tuple[str, ...]) -> list[str]:
        """Return the ids that a test function may have. `path` has the enclosing classes and then its own name. Several
        ids are possible with unittest, where an id can start at any folder on Python's path."""
        if self.config.runner != "unittest":
            return [self.separator.join([file, *path])]
        below = [folder.strip("/") + "/" for folder in self.config.path if folder not in (".", "")]
        places = {file, *(file.removeprefix(folder) for folder in below)}
        return [".".join([place.removesuffix(".py").replace("/", "."), *path]) for place in sorted(places)]

    def renamed(self, test: str, name: str) -> str:
        """Return the id that a test has in a copy of its function with the name `name`."""
        address = self.address(test)
        return address.rpartition(self.separator)[0] + self.separator + name + test[len(address) :]
