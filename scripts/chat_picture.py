"""Draws docs/pictures/chat.svg: a scripted session on the screen of `etude chat`, at a question for permission.

From the repository's root: python -m scripts.chat_picture docs/pictures/chat.svg
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

from etude.cli.fronts import Rules

SIZE = (96, 36)


async def draw(target: Path) -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        folder = write_files(Path(home) / "larger")
        async with screen(folder, SESSION, size=SIZE, rules=Rules(here=True, allow=("execute:python",))) as seen:
            await seen.say("check.py fails, mend it")
            await seen.until("Change, on this machine?")
            drawn = seen.app.export_screenshot(title="etude chat --here")
    # The picture must need nothing from elsewhere.
    target.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))


if __name__ == "__main__":
    asyncio.run(draw(Path(sys.argv[1])))
