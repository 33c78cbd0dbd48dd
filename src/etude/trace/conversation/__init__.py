"""Conversations as messages and as token ids. The harness acts in them, and a server can answer in them.

`encoding` and `transcript` never re-tokenise what a model sampled.
"""
