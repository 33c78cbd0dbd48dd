"""Changes to files as text: unified diffs, the patch dialect of models, and writing them into a user's folder."""
