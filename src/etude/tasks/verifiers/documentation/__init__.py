"""The agent writes documentation: `type = "documentation"`.

Examples are run and must show what they are for; what is said of parameters, results and exceptions is checked."""

from etude.tasks.verifiers.documentation.interface import Public, public_of, without_docstrings
from etude.tasks.verifiers.documentation.verifier import DocumentationVerifier

__all__ = ["DocumentationVerifier", "Public", "public_of", "without_docstrings"]
