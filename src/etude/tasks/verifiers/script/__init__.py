"""Builds and CI: tried on products that are sound and on products that are broken.

A folder's three verifiers differ in what is run on a product: a command, a workflow's steps, a Dockerfile's build."""

from etude.tasks.verifiers.script.images import ImageVerifier
from etude.tasks.verifiers.script.products import FILE, Artifact, Product, difference
from etude.tasks.verifiers.script.verifier import ScriptVerifier
from etude.tasks.verifiers.script.workflow import Job, Step, WorkflowError, parse_workflow
from etude.tasks.verifiers.script.workflows import WorkflowVerifier

__all__ = [
    "FILE",
    "Artifact",
    "ImageVerifier",
    "Job",
    "Product",
    "ScriptVerifier",
    "Step",
    "WorkflowError",
    "WorkflowVerifier",
    "difference",
    "parse_workflow",
]
