"""Task formats of other projects: imported, run as intended, and exported.

Each format has its own module: `harbor` is the typed view of a task.toml, `folders` copies whole folders of tasks.
"""
