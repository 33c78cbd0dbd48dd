"""Code that runs outside the owner's process: the zygote, and pid 1 of every box. It uses the standard library only.

The owner starts the zygote with stub packages (zygote_client.py), so these files import nothing else of Étude."""
