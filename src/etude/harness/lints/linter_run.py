"""Builds the command that runs a linter in one folder with its configuration, and interprets the command's result.

Invariant: if an Answer (the interpreted result) has no failure, the linter checked all files, or `Answer.stopped` says
that it stopped early.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from etude.harness.lints.compare import sorted_problems
from etude.harness.lints.detect import Root, nearest, relative
from etude.harness.lints.diagnostic import Diagnostic, one_line
from etude.harness.lints.linter import Linter
from etude.harness.lints.parsers import PARSERS, Finding, LinterOutput, Unreadable
from etude.harness.paths import within
from etude.harness.workspaces.scratch_tree import SCRATCH, is_own
from etude.sandbox.contract import ExecResult, HostOverloaded

NOT_INSTALLED = 127
_PROGRAMS = ("node_modules/.bin", ".venv/bin", "venv/bin")
"""Folders of a project in which linters may be installed; they are searched before PATH."""


@dataclass(frozen=True, slots=True)
class Answer:
    problems: tuple[Diagnostic, ...] = ()
    failure: str = ""
    """Why the run failed; empty if it completed."""
    stopped: bool = False
    """Whether the linter stopped after it had found these problems, without checking the remaining files."""


@dataclass(frozen=True, slots=True)
class LinterRun:
    linter: Linter
    root: Root
    folders: tuple[str, ...]
    """All folders that contain this linter's configuration and files that it checks."""
    path: str
    was_configured: bool
    """Whether the folder in which the linter runs already contained the linter's configuration when the agent began."""
    start: Mapping[str, bytes]

    @property
    def target(self) -> str:
        """File or folder to lint, relative to the folder in which the linter runs."""
        below = self.path != self.root.folder and within(self.path, self.root.folder)
        return relative(self.path, self.root.folder) if below and self.linter.scope == "files" else "."

    @property
    def key(self) -> tuple[str, str, str]:
        return self.linter.name, self.root.folder, self.target

    @property
    def existed_at_start(self) -> bool:
        """Whether the file or folder to lint existed, and was configured for the linter, when the agent began."""
        target = self.path if self.target != "." else self.root.folder
        return self.was_configured and any(within(path, target) for path in self.start)

    def command(self) -> str:
        """Return the shell command that runs the linter in a scratch tree. Linters installed in the project take
        precedence over those on PATH."""
        depth = 0 if self.root.folder == "." else self.root.folder.count("/") + 1
        search = [f"$PWD/{'../' * up}{programs}" for up in range(depth + 1) for programs in _PROGRAMS]
        found = " || ".join(f"command -v {program}" for program in self.linter.programs)
        settings = "".join(f" {name}={shlex.quote(value)}" for name, value in sorted(self.linter.env.items()))
        target = self.target if self.target == "." else f"./{self.target}"
        targets = "" if self.root.has_targets and self.target == "." else shlex.quote(target)
        call = self.linter.command.format(program='"$program"', targets=targets).strip()
        return (
            f'cd {shlex.quote(f"./{self.root.folder}")} && export PATH="{":".join(search)}:$PATH"{settings} && '
            f"program=$({found}) || exit {NOT_INSTALLED}; {call}"
        )

    def answer(self, result: ExecResult, files: Mapping[str, bytes]) -> Answer:
        """Interpret a run on `files`. Raises HostOverloaded if it timed out because the host gave it no CPU time."""
        seconds = self.linter.seconds
        if result.starved:
            raise HostOverloaded(
                f"{self.linter.name} reached its limit of {seconds:g} s on a host that gave it no CPU time"
            )
        if result.timed_out or result.limit == "time":
            return Answer(failure=f"it reached its limit of {seconds:g} s")
        if result.limit:
            return Answer(failure=f"it reached its {result.limit} limit")
        if result.truncated:
            return Answer(failure="its output exceeded the size limit")
        stdout, stderr = (stream.decode("utf-8", "replace") for stream in (result.stdout, result.stderr))
        words = one_line(f"{stderr.strip() or stdout.strip()}".replace(f"{SCRATCH}/", ""))
        if result.code == NOT_INSTALLED and not words:
            return Answer(failure=f"{self.root.config} configures it, but it is not installed")
        failed = f"exit code {result.code}: {words}" if words else f"exit code {result.code}"
        if result.code and result.code not in (*self.linter.found, *self.linter.stopped):
            return Answer(failure=failed)
        said = LinterOutput(stdout, stderr, self.linter.pattern, self.linter.severity)
        try:
            findings = PARSERS[self.linter.parser](said)
        except Unreadable as error:
            return Answer(failure=failed if result.code and stderr.strip() else f"its output cannot be read: {error}")
        if result.code and not findings:
            return Answer(failure=failed)
        problems = [self._problem(finding, files) for finding in findings]
        return Answer(tuple(sorted_problems(filter(None, problems))), stopped=result.code in self.linter.stopped)

    def remarks(self, was: Answer, now: Answer) -> list[str]:
        """Return sentences for the agent about runs that failed or stopped early. `was` is the result on the original
        files, `now` the one on the current files."""
        name = self.linter.name if self.root.folder == "." else f"{self.linter.name} in {self.root.folder}"
        if now.failure:
            return [f"{name} gave no answer: {now.failure}."]
        found = []
        if now.stopped:
            found.append(f"{name} stopped at these problems and did not check the rest.")
        if was.failure:
            found.append(
                f"{name} gave no answer for the files as you found them, so older problems count as new: {was.failure}."
            )
        elif was.stopped:
            found.append(
                f"{name} did not check all of the files as you found them, so older problems may count as new."
            )
        return found

    def _problem(self, finding: Finding, files: Mapping[str, bytes]) -> Diagnostic | None:
        """Convert a finding. None if its file is outside the workspace, is not the project's own (`is_own`), or belongs
        to another configured folder, which has its own LinterRun."""
        path = self._place(finding.path, files)
        if path is None or not is_own(path, files) or nearest(path, self.folders) != self.root.folder:
            return None
        message = finding.message.replace(f"{SCRATCH}/", "")
        position = (path, finding.line, finding.column)
        return Diagnostic(*position, finding.severity, one_line(finding.code), message, self.linter.name)

    def _place(self, printed: str, files: Mapping[str, bytes]) -> str | None:
        """Convert a path that the linter printed to a workspace path; None if it is outside the workspace."""
        if not printed:
            return self.root.config
        if printed.startswith("/"):
            return _clean(printed.removeprefix(f"{SCRATCH}/")) if printed.startswith(f"{SCRATCH}/") else None
        folder = self.root.folder
        from_root = path = _clean(f"{folder}/{printed}")
        # Cargo prints paths relative to its workspace, which may be a folder above.
        while path not in files and folder != ".":
            folder = folder.rpartition("/")[0] or "."
            path = _clean(f"{folder}/{printed}")
        return path if path in files else from_root


def _clean(path: str) -> str | None:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(one_line(part))
    return "/".join(parts) or None
