"""The built-in engine, for CPUs: continuous batching, speculative decoding with MTP heads, weight swaps in flight.

Every engine has a folder like this one. Runs start its `service.py`; the contract suite in tests/contract must pass.
"""

from etude.engine.builtin.engine import Answer, BuiltinEngine, Failure

__all__ = ["Answer", "BuiltinEngine", "Failure"]
