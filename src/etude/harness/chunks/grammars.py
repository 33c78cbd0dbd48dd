"""Finds the definitions in a file with tree-sitter's grammars, if they are installed (`pip install 'etude[search]'`).

No function here raises. If a file does not parse, the recognised definitions are returned; if the language has no
grammar, none are returned. Grammars are part of installed wheels; nothing is downloaded.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Definition:
    first: int
    """Index of the first line (counting from 0), comments, decorators and attributes directly before it included."""
    last: int
    name: str
    kind: str
    """Kind of the definition: "function", or "class" for all others, such as classes, interfaces and types."""


@dataclass(frozen=True, slots=True)
class Language:
    module: str
    functions: frozenset[str]
    classes: frozenset[str]
    """Node types of all definitions in the grammar that are not functions, such as classes, interfaces and types."""
    entry: str = "language"


def _language(module: str, functions: str, classes: str, entry: str = "language") -> Language:
    return Language(module, frozenset(functions.split()), frozenset(classes.split()), entry)


_JS = "function_declaration generator_function_declaration method_definition"
_TS = f"{_JS} function_signature abstract_method_signature"
_TS_CLASSES = (
    "class_declaration abstract_class_declaration interface_declaration enum_declaration internal_module module "
    "type_alias_declaration"
)
_C_CLASSES = "struct_specifier union_specifier enum_specifier"
_CPP = _language("tree_sitter_cpp", "function_definition", f"{_C_CLASSES} class_specifier namespace_definition")
_JAVASCRIPT = _language("tree_sitter_javascript", _JS, "class_declaration")
_C = _language("tree_sitter_c", "function_definition", _C_CLASSES)
_TYPESCRIPT = _language("tree_sitter_typescript", _TS, _TS_CLASSES, "language_typescript")

LANGUAGES = {
    ".py": _language("tree_sitter_python", "function_definition", "class_definition"),
    ".pyi": _language("tree_sitter_python", "function_definition", "class_definition"),
    ".js": _JAVASCRIPT,
    ".jsx": _JAVASCRIPT,
    ".mjs": _JAVASCRIPT,
    ".cjs": _JAVASCRIPT,
    ".ts": _TYPESCRIPT,
    ".mts": _TYPESCRIPT,
    ".cts": _TYPESCRIPT,
    ".tsx": _language("tree_sitter_typescript", _TS, _TS_CLASSES, "language_tsx"),
    ".go": _language("tree_sitter_go", "function_declaration method_declaration", "type_declaration"),
    ".rs": _language(
        "tree_sitter_rust",
        "function_item macro_definition",
        "impl_item trait_item struct_item enum_item union_item mod_item",
    ),
    ".java": _language(
        "tree_sitter_java",
        "method_declaration constructor_declaration compact_constructor_declaration",
        "class_declaration interface_declaration enum_declaration record_declaration annotation_type_declaration",
    ),
    ".c": _C,
    ".h": _C,
    ".cc": _CPP,
    ".cpp": _CPP,
    ".cxx": _CPP,
    ".hh": _CPP,
    ".hpp": _CPP,
    ".hxx": _CPP,
    ".rb": _language("tree_sitter_ruby", "method singleton_method", "class module singleton_class"),
}

_WRAPPERS = frozenset({"decorated_definition", "export_statement", "template_declaration", "linkage_specification"})
_BEFORE = frozenset({"comment", "line_comment", "block_comment", "attribute_item", "decorator"})
_ASSIGNED = frozenset({"arrow_function", "function_expression", "generator_function", "class"})
_DEEPEST = 200
"""Maximum depth in the syntax tree at which definitions are found. Only hostile files nest deeper."""


def definitions(suffix: str, data: bytes) -> list[Definition]:
    """Return all definitions in file order, outer definitions before their inner ones. `suffix` is the file name's
    suffix, such as ".py"."""
    language = LANGUAGES.get(suffix.lower())
    grammar = _grammar(language) if language else None
    if language is None or grammar is None:
        return []
    core, known = grammar
    found: list[Definition] = []
    # Each file gets its own parser, because two threads must not share one.
    root = core.Parser(known).parse(data).root_node
    # A stack instead of recursion, because a file can nest arbitrarily deep.
    waiting: list[tuple[Any, tuple[str, ...], int | None, int]] = [(root, (), None, 0)]
    while waiting:
        node, outer, begins, depth = waiting.pop()
        kind = _kind(node, language)
        inside, wraps = outer, None
        if kind is not None:
            inside = (*outer, *_name(node))
            first = _begin(node) if begins is None else begins
            found.append(Definition(first, _last(node), ".".join(inside), kind))
        elif node.type in _WRAPPERS:
            wraps = _begin(node) if begins is None else begins
        if depth < _DEEPEST:
            children = node.named_children
            holds_one = wraps is not None and sum(_kind(child, language) is not None for child in children) == 1
            for child in reversed(children):
                waiting.append((child, inside, wraps if holds_one else None, depth + 1))
    return found


@cache
def _grammar(language: Language) -> tuple[Any, Any] | None:
    try:
        core = importlib.import_module("tree_sitter")
        grammar = importlib.import_module(language.module)
    except ModuleNotFoundError:
        return None
    return core, core.Language(getattr(grammar, language.entry)())


def _kind(node: Any, language: Language) -> str | None:
    kind = node.type
    if kind in language.functions:
        return "function"
    if kind in language.classes:
        # In C and C++ only a specifier with a body is a definition; `struct stat buffer` only mentions a type.
        return None if kind.endswith("_specifier") and node.child_by_field_name("body") is None else "class"
    if kind == "variable_declarator" and (value := node.child_by_field_name("value")) is not None:
        return ("class" if value.type == "class" else "function") if value.type in _ASSIGNED else None
    return None


def _begin(node: Any) -> int:
    first = int(node.start_point[0])
    if node.type == "variable_declarator" and node.parent is not None:
        node = node.parent
        first = int(node.start_point[0])
    before = node.prev_named_sibling
    while before is not None and before.type in _BEFORE and first - 1 <= before.end_point[0] <= first:
        # A comment at the end of a line of code belongs to that code.
        further = before.prev_sibling
        if further is not None and further.end_point[0] == before.start_point[0] and further.type not in _BEFORE:
            break
        first, before = int(before.start_point[0]), before.prev_named_sibling
    return first


def _last(node: Any) -> int:
    row, column = node.end_point
    return int(row - 1 if column == 0 and row > node.start_point[0] else row)


def _name(node: Any) -> tuple[str, ...]:
    """Return the parts of a definition's name. For a Go method or a C++ method outside its class, the type's name comes
    first."""
    named = node.child_by_field_name("name")
    if named is None and (declarator := node.child_by_field_name("declarator")) is not None:
        named = _declared(declarator)
    if named is None and node.type == "type_declaration" and node.named_children:
        named = node.named_children[0].child_by_field_name("name")
    named = named or node.child_by_field_name("type")
    return tuple(part for part in (_receiver(node.child_by_field_name("receiver")), _text(named)) if part)


def _declared(declarator: Any) -> Any:
    for _ in range(_DEEPEST):
        inner = declarator.child_by_field_name("declarator")
        if inner is None and declarator.type in ("reference_declarator", "parenthesized_declarator"):
            inner = next(iter(declarator.named_children), None)
        if inner is None:
            return declarator
        declarator = inner
    return declarator


def _receiver(node: Any) -> str:
    if node is None or node.type != "parameter_list" or not node.named_children:
        return ""
    kind = node.named_children[0].child_by_field_name("type")
    return _text(kind).lstrip("*").partition("[")[0] if kind is not None else ""


def _text(node: Any) -> str:
    if node is None:
        return ""
    return "".join(node.text[:200].decode("utf-8", "replace").split())[:120]
