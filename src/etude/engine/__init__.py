"""Inference engines, one folder per engine, which take and return token ids.

The interface (`protocol.py`) and the client that workers use (`remote.py`) do not need torch.
"""
