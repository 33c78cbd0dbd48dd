"""Chooses the embedder from the environment: an endpoint, or else the shipped model if it is installed.

Code is sent to an endpoint only if ETUDE_EMBEDDINGS_URL is set.
"""

from __future__ import annotations

from collections.abc import Mapping

from etude.harness.chunks.embedder import Embedder, EndpointEmbedder
from etude.harness.chunks.shipped_embedder import ShippedEmbedder, has_shipped_model

URL, MODEL, KEY = "ETUDE_EMBEDDINGS_URL", "ETUDE_EMBEDDINGS_MODEL", "ETUDE_EMBEDDINGS_KEY"


def usual_embedder(environment: Mapping[str, str]) -> Embedder | None:
    """Return the embedder that the environment variables choose: with ETUDE_EMBEDDINGS_URL always an EndpointEmbedder.

    Without a URL, return None, so that search compares words only, if ETUDE_EMBEDDINGS_MODEL is set but empty or the
    shipped model is not installed.
    """
    if url := environment.get(URL):
        return EndpointEmbedder(url, environment.get(MODEL, "default"), api_key=environment.get(KEY, ""))
    if environment.get(MODEL) == "" or not has_shipped_model():
        return None
    return ShippedEmbedder()
