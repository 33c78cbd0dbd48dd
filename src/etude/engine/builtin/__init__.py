"""The built-in engine, for CPUs: continuous batching, speculative decoding with MTP heads, weights swapped in between.

Every engine has a folder like this one, whose `service.py` is what runs start, and passes the suite of tests/contract.
"""

from etude.engine.builtin.engine import Answer, BuiltinEngine, Failure

__all__ = ["Answer", "BuiltinEngine", "Failure"]
