"""Code of the zygote process and of pid 1 of every box. It uses the standard library only.

The process that uses the boxes (the owner) starts the zygote with stub packages in place of `etude` and `etude.sandbox`
(embedded/zygote_client.py), so these files must import nothing else of Étude.
"""
