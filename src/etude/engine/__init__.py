"""Generation: token ids in, token ids out.

The protocol (no torch) and the built-in engine."""
