"""One file per verb.

Verbs import their rooms when they are called, so that --help stays fast."""
