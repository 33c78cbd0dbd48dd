"""The gate: a task may be used only if an empty diff fails and the reference passes in every repeated run.

The runs differ in time zone, clock, load and test order. The evidence is stored with the task.
"""

from etude.tasks.gate.concurrent import gate_tasks
from etude.tasks.gate.evidence import keep_evidence, read_evidence, stored_evidence
from etude.tasks.gate.result import GateOutcome, GateResult, Run, by_source
from etude.tasks.gate.revalidation import revalidate
from etude.tasks.gate.single import gate, other_diffs, reference_diff

__all__ = [
    "GateOutcome",
    "GateResult",
    "Run",
    "by_source",
    "gate",
    "gate_tasks",
    "keep_evidence",
    "other_diffs",
    "read_evidence",
    "reference_diff",
    "revalidate",
    "stored_evidence",
]
