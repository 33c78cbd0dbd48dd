"""Changes to files: unified diffs, the patch format that models write, and writing changes to a user's folder."""
