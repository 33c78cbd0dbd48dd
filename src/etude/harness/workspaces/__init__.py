"""Workspaces: the files that an agent works on, and the commands that it runs on them.

There are three kinds. The first keeps changes in memory, on top of the files of an image or a folder. The second has
all files in a box. The third is the user's own folder.
"""
