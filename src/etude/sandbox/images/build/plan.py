"""Decides which stages a target needs and what each stage starts from, before anything is built."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from etude.sandbox.contract import ImageError
from etude.sandbox.images.build.instructions import Arg, Copy, Dockerfile, Stage
from etude.sandbox.images.build.variables import VariableLimits, expand

PROXIES = {f"{kind}_proxy" for kind in ("http", "https", "ftp", "no", "all")}
PROXIES |= {name.upper() for name in PROXIES}
"""Build arguments that a RUN sees without an ARG, and that are not part of the cache keys."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


@dataclass(frozen=True, slots=True)
class Plan:
    dockerfile: Dockerfile
    defaults: dict[str, str]
    """Values of the ARGs that a stage declares without a value, by name. They come from ARGs before the first FROM, and
    from the host's platform (such as TARGETARCH)."""
    bases: tuple[str, ...]
    """The name of every stage's base (an image or stage), with variables expanded."""
    needed: tuple[Stage, ...]
    """The stages to build, in order. The target stage is last."""

    def base_stage(self, stage: Stage) -> Stage | None:
        """Return the earlier stage that `stage` starts from, or None if it starts from an image."""
        return self.dockerfile.stage_before(self.bases[stage.index], stage.index)


def host_platform() -> dict[str, str]:
    machine = os.uname().machine
    architecture = _ARCHITECTURES.get(machine, machine)
    facts = {"PLATFORM": f"linux/{architecture}", "OS": "linux", "ARCH": architecture, "VARIANT": ""}
    return {f"{side}{name}": value for side in ("TARGET", "BUILD") for name, value in facts.items()}


def make_plan(dockerfile: Dockerfile, target: str, given: dict[str, str]) -> Plan:
    """Plan the build of the stage `target` (the last one if empty). `given` are the caller's values for ARG."""
    defaults = _defaults(dockerfile, given)
    bases = []
    for stage in dockerfile.stages:
        try:
            base, platform = (expand(text, defaults, dockerfile.escape) for text in (stage.base, stage.platform))
            _require_platform(platform, defaults)
            if not base:
                raise ValueError(
                    "the name of the image is empty; its ARG needs a value, and must come before the first FROM"
                )
        except ValueError as error:
            raise ImageError(f"{dockerfile.file}:{stage.line}: {stage.text}: {error}") from error
        bases.append(base)
    plan = Plan(dockerfile, defaults, tuple(bases), ())
    needed = _needed(plan, _target(dockerfile, target))
    return replace(plan, needed=tuple(stage for stage in dockerfile.stages if stage.index in needed))


def unused(dockerfile: Dockerfile, given: dict[str, str]) -> list[str]:
    """Return the names in `given` that no ARG declares: each is probably a typing mistake."""
    stages = (stage.instructions for stage in dockerfile.stages)
    declared = {
        name
        for instructions in (dockerfile.arguments, *stages)
        for instruction in instructions
        if isinstance(instruction.action, Arg)
        for name, _ in instruction.action.names
    }
    return sorted(set(given) - declared - PROXIES)


def _defaults(dockerfile: Dockerfile, given: dict[str, str]) -> dict[str, str]:
    values = host_platform()
    limits = VariableLimits(values)
    for instruction in dockerfile.arguments:
        assert isinstance(instruction.action, Arg)
        for name, default in instruction.action.names:
            try:
                if name in given:
                    values[name] = given[name]
                elif default is not None:
                    values[name] = limits.take(expand(default, values, dockerfile.escape))
            except ValueError as error:
                raise ImageError(f"{dockerfile.file}:{instruction.line}: {instruction.text}: {error}") from error
    return values


def _require_platform(platform: str, defaults: dict[str, str]) -> None:
    host = defaults["BUILDPLATFORM"]
    if platform and platform.split("/")[:2] != host.split("/"):
        raise ValueError(f"--platform={platform}: boxes of this host are {host}")


def _target(dockerfile: Dockerfile, target: str) -> Stage:
    if not target:
        return dockerfile.stages[-1]
    stage = dockerfile.stage_before(target, len(dockerfile.stages))
    if stage is None:
        names = ", ".join(stage.name or str(stage.index) for stage in dockerfile.stages)
        raise ImageError(f"{dockerfile.file}: no stage {target!r}; there are {names}")
    return stage


def _needed(plan: Plan, target: Stage) -> set[int]:
    waiting, needed = [target], set()
    while waiting:
        stage = waiting.pop()
        if stage.index in needed:
            continue
        needed.add(stage.index)
        copied = (i.action.stage for i in stage.instructions if isinstance(i.action, Copy))
        below = [plan.base_stage(stage), *(plan.dockerfile.stage_before(name, stage.index) for name in copied)]
        waiting += [found for found in below if found is not None]
    return needed
