"""vLLM as an engine: a process in vLLM's own interpreter (`inside/`), and the service in ours that starts it, sends it
requests, and gives it versions of the weights."""

from etude.engine.vllm.child import checked_interpreter
from etude.engine.vllm.settings import why_not

__all__ = ["checked_interpreter", "why_not"]
