"""Planted duplicates are found; what merely looks alike stays."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from etude.corpus import normalised_digest
from etude.corpus.dedup import first_copies, jaccard, shingles_of, signatures
from etude.corpus.dedup import near_duplicates as flags_of

WORDS = [f"w{n}" for n in range(800)]


def near_duplicates(texts, similarity):
    return flags_of(signatures(texts), similarity, lambda some: (texts[index] for index in some)).tolist()


def document(rng, words=300):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def changed(text, rng, changes):
    words = text.split()
    for place in rng.sample(range(len(words)), changes):
        words[place] = "changed"
    return " ".join(words)


def test_planted_near_duplicates_are_found_and_nothing_else():
    rng = random.Random(3)
    originals = [document(rng) for _ in range(300)]
    # Three changed words of 300 break at most 15 of 296 shingles: a similarity of .9.
    planted = [changed(originals[place], rng, 3) for place in range(0, 300, 10)]
    flags = near_duplicates(originals + planted, 0.8)
    assert flags == [False] * len(originals) + [True] * len(planted)


def test_the_first_of_a_family_stays_and_short_texts_work():
    assert near_duplicates(["a b c", "a b c", "", "", "x"], 0.8) == [False, True, False, True, False]
    assert near_duplicates([], 0.8) == []


def test_a_chain_does_not_swallow_what_is_far_from_every_kept_one():
    rng = random.Random(5)
    first = document(rng)
    near = changed(first, rng, 3)
    far = changed(near, rng, 60)
    assert near_duplicates([first, near, far], 0.8) == [False, True, False]


def test_exact_duplicates_ignore_whitespace_only():
    texts = ["a  b\n", "a b", "a c", "ab"]
    digests = np.array([np.frombuffer(bytes.fromhex(normalised_digest(text))[:16], np.uint64) for text in texts])
    assert first_copies(digests).tolist() == [True, False, True, True]
    assert normalised_digest("a\tb") == normalised_digest(" a b ")


@given(st.lists(st.text("ab c", max_size=30), max_size=12))
def test_what_is_flagged_is_near_an_earlier_one_and_an_exact_copy_is_flagged(texts):
    flags = near_duplicates(texts, 0.8)
    kept = [text for text, flag in zip(texts, flags, strict=True) if not flag]
    assert len(set(kept)) == len(kept)
    for place, flag in enumerate(flags):
        likeness = [jaccard(shingles_of(texts[place]), shingles_of(other)) for other in texts[:place] if other in kept]
        assert flag == any(one >= 0.8 for one in likeness)
