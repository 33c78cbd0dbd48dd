"""Policies: over a chat endpoint, over an engine, from a script, and one that records another policy as tokens.

Their common interface is in `harness/policy.py`.
"""
