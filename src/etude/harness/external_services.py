"""Services outside the workspace that tools use: a user to ask, the web, an embedder.

Each service is optional; a tool whose service is missing says so in its result. `FixtureWeb` serves pages from a
folder, for tests and for training, which must not depend on the current state of the web.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from etude.harness.chunks.embedder import Embedder

Ask = Callable[[str], Awaitable[str]]


class WebError(Exception):
    """A web search or fetch failed (no such page, no connection). The message is written for the model."""


@dataclass(frozen=True, slots=True)
class Hit:
    title: str
    url: str
    excerpt: str = ""


@runtime_checkable
class Web(Protocol):
    """Access to the web. The methods `search` and `fetch` raise WebError."""

    async def search(self, query: str) -> list[Hit]: ...

    async def fetch(self, url: str) -> str: ...


@dataclass(frozen=True, slots=True)
class ExternalServices:
    """The services that are available to a run's tools; a missing service is None."""

    ask: Ask | None = None
    web: Web | None = None
    embedder: Embedder | None = None


class FixtureWeb:
    """Web access that serves fixed pages from `folder`/pages.json, a list of {url, title, text}.

    A search ranks pages by how many of the query's words they contain, so that results are deterministic.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "pages.json"
        self._pages: list[dict[str, str]] | None = None

    async def search(self, query: str) -> list[Hit]:
        words = {word.lower() for word in query.split()}
        ranked = []
        for index, page in enumerate(await self._all()):
            text = f"{page['title']} {page['text']}".lower()
            if contained := sum(word in text for word in words):
                ranked.append((-contained, index, Hit(page["title"], page["url"], page["text"][:200])))
        return [hit for _, _, hit in sorted(ranked, key=lambda entry: entry[:2])]

    async def fetch(self, url: str) -> str:
        for page in await self._all():
            if page["url"] == url:
                return page["text"]
        raise WebError(f"there is no page {url}")

    async def _all(self) -> list[dict[str, str]]:
        if self._pages is None:
            try:
                self._pages = json.loads(await asyncio.to_thread(self._file.read_text, "utf-8"))
            except (OSError, json.JSONDecodeError) as error:
                raise WebError(f"the pages of {self._file} cannot be read: {error}") from error
        return self._pages
