"""Files of a repository come after what they import, as far as circles allow, and none is lost or doubled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.corpus.repository_order import File, imports_of, joined

NAMES = [f"{folder}{name}.py" for folder in ("", "app/", "app/core/") for name in ("a", "b", "c", "__init__")]


def order(files):
    return [file.name for group in joined(files, 1 << 30) for file in group]


@given(st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3)), st.integers(1, 30))
def test_every_file_is_joined_once_and_only_a_circle_puts_a_use_first(imports, most):
    files = [
        File(index, name, tuple(one.removesuffix(".py").removesuffix("/__init__") for one in wanted), 7)
        for index, (name, wanted) in enumerate(imports.items())
    ]
    groups = list(joined(files, most))
    found = [file for group in groups for file in group]
    assert sorted(found) == sorted(files)
    assert all(len(group) == 1 or sum(file.size for file in group) <= most for group in groups)
    places = {file.name: place for place, file in enumerate(found)}

    def reaches(start, end, seen):
        return start == end or any(
            one not in seen and reaches(one, end, seen | {one}) for one in imports[start] if one in imports
        )

    for name, wanted in imports.items():
        for other in wanted:
            unambiguous = "/" in other and "__init__" not in name + other
            if other in imports and unambiguous and places[other] > places[name]:
                assert reaches(other, name, {other})


def test_definitions_come_before_their_uses():
    texts = {
        "app/__init__.py": "",
        "app/main.py": "from app.views import index\nimport os\n",
        "app/views.py": "from .models import (User,\n    Group)\nfrom app import shared\n",
        "app/models.py": "import json\n",
        "app/shared.py": "",
    }
    files = [File(n, name, imports_of(text, "python"), 1) for n, (name, text) in enumerate(texts.items())]
    assert order(files) == ["app/__init__.py", "app/models.py", "app/shared.py", "app/views.py", "app/main.py"]


@pytest.mark.parametrize(
    ("language", "text", "found"),
    [
        ("c", '#include "util/list.h"\n#include <stdio.h>\n', "util/list"),
        ("javascript", "import { a } from './lib/a.js'\n", "lib/a"),
        ("typescript", "const b = require('../b')\n", "b"),
        ("ruby", "require_relative 'x/y'\n", "x/y"),
        ("rust", "pub use crate::net::tcp;\n", "crate/net/tcp"),
        ("java", "import org.app.Model;\n", "org/app/Model"),
        ("python", "import a.b\n", "a/b"),
    ],
)
def test_imports_of_many_languages(language, text, found):
    assert found in imports_of(text, language)


@given(st.text(), st.sampled_from(["python", "c", ""]))
def test_any_text_has_imports(text, language):
    assert all(imports_of(text, language))
