"""Draws the documentation's pictures of `etude chat` from a scripted session on its real screen.

Run in the repository's root: python -m scripts.chat_picture docs/pictures

chat.svg shows the permission question. session.svg is an animation of the whole session, which a browser plays in a
loop.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from pathlib import Path

from tests.cli.screen.endpoint import SESSION
from tests.cli.screen.parts import screen, write_files

from etude.cli.agent_setup import Rules

SIZE = (96, 36)
ASKED = "check.py fails, mend it"
SECONDS = 2.0
"""Base duration of a frame; frames of typing are shorter, and important ones a multiple of it."""


async def draw(folder: Path) -> None:
    film: list[tuple[str, float]] = []
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        own = write_files(Path(home) / "larger")
        async with screen(
            own, SESSION, size=SIZE, rules=Rules(here=True, allow=("execute:python", "execute:seq"))
        ) as seen:

            def frame(seconds: float) -> str:
                drawn = seen.app.export_screenshot(title="etude chat --here")
                # Drop web fonts: the picture must not load anything.
                film.append((re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL), seconds))
                return film[-1][0]

            frame(SECONDS / 2)
            for end in range(6, len(ASKED), 6):
                await seen.pilot.press(*(key if key.isalpha() else NAMES[key] for key in ASKED[end - 6 : end]))
                await seen.pilot.pause()
                frame(0.3)
            await seen.pilot.press(*(key if key.isalpha() else NAMES[key] for key in ASKED[end:]))
            await seen.pilot.pause()
            frame(0.6)
            await seen.pilot.press("enter")
            await seen.until("Change, on this machine?")
            (folder / "chat.svg").write_text(frame(2 * SECONDS), encoding="utf-8")
            await seen.pilot.press("y")
            await seen.idle()
            frame(3 * SECONDS)
    (folder / "session.svg").write_text(as_film(film), encoding="utf-8")


NAMES = {" ": "space", ".": "full_stop", ",": "comma"}


def as_film(frames: list[tuple[str, float]]) -> str:
    """Return one SVG that shows each frame for its seconds, in a loop. Without animation the last frame is visible."""
    whole, begin = sum(seconds for _, seconds in frames), 0.0
    box = re.search(r'viewBox="([^"]+)"', frames[0][0])
    assert box is not None
    style, shown = [], []
    for number, (drawn, seconds) in enumerate(frames):
        start, end = 100 * begin / whole, 100 * (begin + seconds) / whole
        style.append(
            f"@keyframes shown{number} {{ 0%, {start:.2f}% {{ visibility: hidden }}"
            f" {start + 0.01:.2f}%, {end:.2f}% {{ visibility: visible }} {min(end + 0.01, 100):.2f}%, 100%"
            f" {{ visibility: {'visible' if end >= 100 else 'hidden'} }} }}"
        )
        style.append(f".frame{number} {{ animation: shown{number} {whole:.1f}s step-end infinite }}")
        shown.append(
            drawn.replace("<svg ", f'<svg class="frame{number} rich-frame" ', 1).replace(
                'class="rich-terminal" ', "", 1
            )
        )
        begin += seconds
    inner = "\n".join(shown)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box[1]}"><style>\n'
        + "\n".join(style)
        + f"\n</style>\n{inner}\n</svg>\n"
    )


if __name__ == "__main__":
    asyncio.run(draw(Path(sys.argv[1])))
