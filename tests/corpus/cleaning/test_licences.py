"""Licences: recognised by their texts, or unknown; expressions mean what SPDX says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.corpus.cleaning.licences import allows, is_licence_file, licence_of_text, nearest, wanted_names

MIT = "Permission is hereby granted, free of charge, to any person ... this permission notice shall be included in all"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Apache License\n  Version 2.0, January 2004", "apache-2.0"),
        (f"Copyright (c) A\n\n{MIT}", "mit"),
        ("GNU GENERAL PUBLIC LICENSE Version 3 ... the GNU Affero General Public License", "gpl-3.0"),
        ("GNU LESSER GENERAL PUBLIC LICENSE Version 3 ... GNU General Public License", "lgpl-3.0"),
        ("GNU AFFERO GENERAL PUBLIC LICENSE Version 3", "agpl-3.0"),
        ("Redistribution and use in source and binary forms ... to endorse or promote products", "bsd-3-clause"),
        ("Redistribution and use in source and binary forms ...", "bsd-2-clause"),
        ("All rights reserved. You may not copy this.", "unknown"),
    ],
)
def test_texts_are_recognised(text, name):
    assert licence_of_text(text) == name


@pytest.mark.parametrize(
    ("known", "text", "kept"),
    [
        (["MIT"], "", True),
        (["MIT", "GPL-3.0"], "", False),
        (["GPL-3.0-or-later OR MIT"], "", True),
        (["(MIT OR GPL-2.0) AND GPL-2.0"], "", False),
        (["Apache-2.0 WITH LLVM-exception"], "", True),
        ([], "", False),
        (["unknown"], "", False),
        (["GPL-3.0"], "// SPDX-License-Identifier: MIT\n", True),
        (["MIT"], "# SPDX-License-Identifier: GPL-2.0-only\n", False),
    ],
)
def test_what_is_permissive(known, text, kept):
    assert allows(wanted_names(["permissive"]), text, known) == kept


def test_the_closest_licence_counts():
    folders = {".": ("mit",), "vendor/x": ("gpl-3.0",)}
    assert nearest("a.py", folders) == nearest("src/a.py", folders) == ("mit",)
    assert nearest("vendor/x/deep/a.py", folders) == ("gpl-3.0",)
    files = {"LICENSE": True, "a/COPYING.LESSER": True, "LICENSE-MIT": True, "license.py": False, "a/licenses/b": False}
    assert {name: is_licence_file(name, 9) for name in files} == files
    assert not is_licence_file("LICENSE", 1 << 40)


@given(st.text("spdxMIT() or and/", max_size=30))
def test_any_expression_is_answered_and_names_what_it_allows(known):
    assert not allows(wanted_names(["mit"]), "", [known]) or "mit" in known.lower()
