"""What runs outside the owner's process: the zygote, and pid 1 of every box. Standard library only.

The owner starts the zygote with stub packages, so that these files import without the rest of Étude
(zygote_client.py)."""
