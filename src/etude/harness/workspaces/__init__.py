"""Workspaces: the files that an agent works on, and where its commands run.

Files lie in memory over a copy, in a box, or in the user's own folder.
"""
