"""Micro-repositories with one injected bug: small enough for a tiny model, and graded like any other task."""

from etude.tasks.sources.microrepo.bugs import KINDS, SEEN_KINDS, UNSEEN_KINDS, mutations
from etude.tasks.sources.microrepo.documents import write_documents
from etude.tasks.sources.microrepo.families import FAMILIES, Family, families_of
from etude.tasks.sources.microrepo.pools import Pool, pool_of
from etude.tasks.sources.microrepo.source import MicroRepoSource

__all__ = [
    "FAMILIES",
    "KINDS",
    "SEEN_KINDS",
    "UNSEEN_KINDS",
    "Family",
    "MicroRepoSource",
    "Pool",
    "families_of",
    "mutations",
    "pool_of",
    "write_documents",
]
