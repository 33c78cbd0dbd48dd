"""The verifier of tasks in which the agent writes documentation: `type = "documentation"`.

The documentation's examples are run, and must demonstrate the function that they belong to. Statements about
parameters, results and exceptions are checked against the code.
"""

from etude.tasks.verifiers.documentation.verifier import DocumentationVerifier

__all__ = ["DocumentationVerifier"]
