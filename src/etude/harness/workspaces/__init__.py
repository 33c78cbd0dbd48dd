"""Workspaces: the files that an agent works on, and the commands that it runs on them.

The files are in memory, on top of an image or a folder, in a box, or in the user's own folder.
"""
