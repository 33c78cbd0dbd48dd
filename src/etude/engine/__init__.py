"""Inference engines: token ids in, token ids out. One folder per engine.

The protocol and the client that workers hold stand here and need no torch.
"""
