"""Cleans the files of a source: filters by path, language, licence, generated code and syntax, and redacts secrets."""

from etude.corpus.cleaning.languages import header, language_of, unchecked
from etude.corpus.cleaning.licences import is_licence_file, licence_of_text, nearest
from etude.corpus.cleaning.rules import INSTALLED, REASONS, CodeRules, GeneratedRules, PythonRules, Rules

__all__ = [
    "INSTALLED",
    "REASONS",
    "CodeRules",
    "GeneratedRules",
    "PythonRules",
    "Rules",
    "header",
    "is_licence_file",
    "language_of",
    "licence_of_text",
    "nearest",
    "unchecked",
]
