"""The policies: one over a chat endpoint, one over an engine, one that plays a script, and one that records another
policy's turns as tokens.

Their common interface is in `harness/policy.py`.
"""
