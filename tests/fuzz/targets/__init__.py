"""The targets of the fuzzer. Each module holds those of one kind of input."""

from tests.fuzz.target import Target
from tests.fuzz.targets import (
    checkpoints,
    diffs,
    dockerfiles,
    egress,
    frames,
    images,
    layers,
    names,
    redaction,
    reports,
    requests,
    sources,
    tars,
)

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (
        frames,
        requests,
        tars,
        layers,
        images,
        diffs,
        reports,
        dockerfiles,
        names,
        egress,
        redaction,
        sources,
        checkpoints,
    )
    for target in module.TARGETS
}
