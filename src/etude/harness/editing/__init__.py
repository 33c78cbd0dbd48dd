"""Changes to files: unified diffs, the patch format that models write, and functions that write changes to a user's
folder."""
