"""Word lists for names. They are short, so that each word can be one token of a small vocabulary.

No word ends in a digit or is a Python keyword or builtin. No module has the name of a standard library module.
"""

from __future__ import annotations

MODULES = (
    "bank", "basket", "cafe", "cart", "club", "farm", "game", "garden", "harbour", "hotel", "kitchen", "league",
    "market", "menu", "museum", "office", "orders", "park", "prices", "rules", "school", "scores", "shop", "stats",
    "stock", "store", "team", "tickets", "tools", "travel", "weather",
)  # fmt: skip

NOUNS = (
    "age", "amount", "area", "cost", "depth", "distance", "energy", "fuel", "goal", "gold", "heat", "height", "level",
    "load", "mass", "money", "pay", "points", "power", "price", "rain", "rate", "score", "size", "speed", "steps",
    "time", "value", "water", "weight", "width", "wind",
)  # fmt: skip
"""Names of variables that hold numbers. They are also the second words of function names."""

LISTS = ("data", "entries", "figures", "items", "numbers", "results", "rows", "samples", "series", "values")
ITEMS = ("entry", "item", "n", "number", "x")
TOTALS = ("answer", "count", "out", "result", "total")
INDEXES = ("i", "index", "k", "place")
BOUNDS = (("low", "high"), ("lower", "upper"), ("first", "last"), ("start", "stop"), ("bottom", "top"))
FLAGS = ("closed", "empty", "full", "late", "locked", "new", "open", "ready", "sold", "wet")
TEXTS = ("labels", "names", "tags", "titles", "words")
TEXT_ITEMS = ("label", "name", "tag", "title", "word")
SAMPLES = ("air", "apple", "bread", "cat", "cloud", "dog", "fish", "moon", "pear", "river", "stone", "tea", "tree")
"""Texts that occur in the lists on which generated functions are called."""
GRADES = (("low", "mid", "high"), ("bad", "fair", "good"), ("cold", "warm", "hot"), ("small", "medium", "large"))
