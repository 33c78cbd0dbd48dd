"""Verifiers of builds and CI: the agent's build is tried on correct and on broken products. A product is a hidden
variant of the workspace's files.

The three verifiers differ in what they run on a product: a command, a workflow's steps, or a Dockerfile's build.
"""

from etude.tasks.verifiers.script.images import ImageVerifier
from etude.tasks.verifiers.script.products import FILE, Artifact, difference
from etude.tasks.verifiers.script.verifier import ScriptVerifier
from etude.tasks.verifiers.script.workflow import Job, Step, WorkflowError, parse_workflow
from etude.tasks.verifiers.script.workflows import WorkflowVerifier

__all__ = [
    "FILE",
    "Artifact",
    "ImageVerifier",
    "Job",
    "ScriptVerifier",
    "Step",
    "WorkflowError",
    "WorkflowVerifier",
    "difference",
    "parse_workflow",
]
