"""The verifier of tasks in which the agent writes documentation: `type = "documentation"`."""

from etude.tasks.verifiers.documentation.verifier import DocumentationVerifier

__all__ = ["DocumentationVerifier"]
