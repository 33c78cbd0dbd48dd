"""Inference engines, one folder per engine, which take and return token ids.

`protocol.py` is the interface, `open.py` opens the engine of a recipe, `remote.py` and `streams.py` are what callers
hold. All files beside the folders need no torch.
"""
