"""Micro-repositories with one injected bug: small enough for a tiny model, graded like any other task."""

from etude.tasks.microrepo.bugs import KINDS, Mutation, mutations
from etude.tasks.microrepo.documents import Document, read_documents, write_documents
from etude.tasks.microrepo.families import FAMILIES, Family, families_of
from etude.tasks.microrepo.source import MicroRepoSource

__all__ = [
    "FAMILIES",
    "KINDS",
    "Document",
    "Family",
    "MicroRepoSource",
    "Mutation",
    "families_of",
    "mutations",
    "read_documents",
    "write_documents",
]
