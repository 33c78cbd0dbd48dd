"""Code of the zygote process and of pid 1 of every box. It uses the standard library only.

The process that uses the boxes (the owner) starts the zygote with stub packages in place of `etude` and `etude.sandbox`
(embedded/zygote_client.py), so these files must import nothing else of Étude. They use plain strings and
descriptors instead of Path, since most of them run for every command of every box.
"""
