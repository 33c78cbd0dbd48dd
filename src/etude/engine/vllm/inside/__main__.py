"""Entry point of the process in vLLM's interpreter: `python -m etude.engine.vllm.inside SETTINGS`.

It says each phase of its start as a line on stdout. Everything that vLLM prints goes to stderr instead.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path


def main() -> None:
    # The service holds the other end of stdin. When it dies, however it dies, this process and its workers end too.
    threading.Thread(target=_end_with_the_service, daemon=True).start()
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def tell(phase: str) -> None:
        told.write(phase + "\n")

    tell("importing vLLM")
    from etude.engine.vllm.inside.host import run

    run(json.loads(Path(sys.argv[1]).read_text()), tell)


def _end_with_the_service() -> None:
    while os.read(0, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
