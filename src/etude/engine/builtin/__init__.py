"""The built-in engine: continuous batching, speculative decoding with MTP heads, weight swaps in flight.

Every engine has a folder like this one; a run starts the service in the folder's `service.py`. Every engine must pass
the contract suite in tests/contract.
"""

from etude.engine.builtin.engine import Answer, BuiltinEngine

__all__ = ["Answer", "BuiltinEngine"]
