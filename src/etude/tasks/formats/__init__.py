"""Task formats of others: read, run as they are meant, and written back.

A file each, imported by whoever needs it: `harbor` is the typed view of a task.toml, `folders` moves whole folders."""
