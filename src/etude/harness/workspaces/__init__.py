"""Workspaces: the files that an agent works on, and the commands that it runs on them.

There are three kinds: changes are kept in memory, on top of an image or a folder; or all files are in a box; or the
agent works in the user's own folder.
"""
