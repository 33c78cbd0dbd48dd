"""Inference engines, one folder per engine. They take and return token ids.

The protocol (`protocol.py`) and the client for workers (`remote.py`) do not need torch.
"""
