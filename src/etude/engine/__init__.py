"""The inference engine: token ids in, token ids out.

Holds the engine protocol (needs no torch) and the built-in engine.
"""
