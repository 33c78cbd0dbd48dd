"""How runners name tests: from a place in a file to an id, and from an id to that of a copy under another name."""

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
        """Of the function that the test is a case of."""
        return test.partition("[")[0] if self.config.runner == "pytest" else test

    def row(self, test: str) -> str:
        """What pytest calls the row that the test is made of; empty for others."""
        return test[len(self.address(test)) + 1 : -1]

    def addresses(self, file: str, path: tuple[str, ...]) -> list[str]:
        """What the function there may be called: by a dotted id, from any folder where Python looks."""
        if self.config.runner != "unittest":
            return [self.separator.join([file, *path])]
        below = [folder.strip("/") + "/" for folder in self.config.path if folder not in (".", "")]
        places = {file, *(file.removeprefix(folder) for folder in below)}
        return [".".join([place.removesuffix(".py").replace("/", "."), *path]) for place in sorted(places)]

    def renamed(self, test: str, name: str) -> str:
        """Of a copy of the test's function."""
        address = self.address(test)
        return address.rpartition(self.separator)[0] + self.separator + name + test[len(address) :]
