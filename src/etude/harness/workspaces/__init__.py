"""Workspaces: the files that an agent works on, and the commands that it runs on them.

There are two kinds. One keeps changes in memory, on top of the files of an image or a folder. The other is the user's
own folder.
"""
