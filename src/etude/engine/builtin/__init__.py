"""The built-in engine, for CPUs: continuous batching, speculative decoding with MTP heads, weight swaps in flight.

Every engine has such a folder, and a run starts the service in its `service.py`. Every engine must pass the contract
suite in tests/contract.
"""

from etude.engine.builtin.engine import Answer, BuiltinEngine, Failure

__all__ = ["Answer", "BuiltinEngine", "Failure"]
