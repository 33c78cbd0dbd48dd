"""Scripts that run inside a box with a bare Python, so they import nothing from Étude.

Some are copied into task folders byte for byte (`sources/microrepo/source.py`, `formats/harbor_export.py`). Changing
even a comment there changes the digests of new tasks. When you do, add the old file's digest to `FORMER`.
"""

FORMER = frozenset(
    {
        "0d58116c102c1bbbf5d71b4646b6d615",  # open_products.py
        "c789d49709cca7fda6d89144fc0ca47e",  # open_suite.py
        "eaba41317be153363a56f0367c29f506",  # run_cases.py
        "f1cd45031e9aa75a4ee9bfa34375a634",  # run_tests.mjs
        "f1f51870a9a5924ab9c0db61e14d42d2",  # run_tests.py
        "eea9d8dfbd3061367a256b1b8d695c6d",  # verify.py
    }
)
"""Digests (the first 32 hex digits of the SHA-256) of earlier versions of this package's scripts. Older task folders
hold copies of them, which must not be taken for hidden tests."""
