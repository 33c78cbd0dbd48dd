"""Coding tasks: their splits and sources, the gate that admits them, and the sealed grader, which returns a Verdict.

The grader trusts nothing that the agent could touch.
"""

from etude.tasks.cases import Case, CasesError
from etude.tasks.diff import Bounds, DiffError, apply_diff, parse_diff
from etude.tasks.directory import gated_digest, list_tasks, read_files, read_task, task_digest, write_task
from etude.tasks.environment import Environments, Prepared
from etude.tasks.gate import (
    GateOutcome,
    GateResult,
    by_source,
    gate,
    gate_tasks,
    read_evidence,
    reference_diff,
    revalidate,
)
from etude.tasks.grader import Grader, GraderStats
from etude.tasks.hashes import function_hashes
from etude.tasks.oracle import OraclePolicy
from etude.tasks.protected_files import is_protected
from etude.tasks.seal import Finding, SealReport
from etude.tasks.sources import TaskSource, UnknownSource, generate_tasks, make_tasks, open_source, register_source
from etude.tasks.sources.microrepo.documents import write_documents
from etude.tasks.task import Cell, Split, SplitViolation, Task, TaskError, TaskLimits, split_of
from etude.tasks.verdict import Evidence, Judgement, Verdict
from etude.tasks.verifiers import GradingContext, Verifier, open_verifier, register_verifier

__all__ = [
    "Bounds",
    "Case",
    "CasesError",
    "Cell",
    "DiffError",
    "Environments",
    "Evidence",
    "Finding",
    "GateOutcome",
    "GateResult",
    "Grader",
    "GraderStats",
    "GradingContext",
    "Judgement",
    "OraclePolicy",
    "Prepared",
    "SealReport",
    "Split",
    "SplitViolation",
    "Task",
    "TaskError",
    "TaskLimits",
    "TaskSource",
    "UnknownSource",
    "Verdict",
    "Verifier",
    "apply_diff",
    "by_source",
    "function_hashes",
    "gate",
    "gate_tasks",
    "gated_digest",
    "generate_tasks",
    "is_protected",
    "list_tasks",
    "make_tasks",
    "open_source",
    "open_verifier",
    "parse_diff",
    "read_evidence",
    "read_files",
    "read_task",
    "reference_diff",
    "register_source",
    "register_verifier",
    "revalidate",
    "split_of",
    "task_digest",
    "write_documents",
    "write_task",
]
