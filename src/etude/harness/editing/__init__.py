"""Changes to files: unified diffs, the patch format that models write, and writing changes into a user's folder."""
