"""Policies: a chat endpoint, a token engine, a script, or the recorded turns of another one.

The interface they share is `harness/policy.py`.
"""
