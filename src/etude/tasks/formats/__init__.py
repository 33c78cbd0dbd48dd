"""Task formats of other projects, imported and exported.

`folders` imports and exports folders of Harbor tasks, `harbor_export` makes the files that other readers need, and
`swebench` imports SWE-bench.
"""
