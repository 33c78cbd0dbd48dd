"""Scripts that run inside a box with a bare Python, so they import nothing from Étude.

Some are written into task folders byte for byte (`sources/microrepo/source.py`, `formats/harbor_export.py`). Changing
even a comment there changes the digests of new tasks, and lets the helpers in older task folders look like hidden
tests.
"""
