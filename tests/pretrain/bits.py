"""The bits of a finished stage: the model handed on, and all state of the last checkpoint."""

import hashlib
from pathlib import Path


def stage_bits(run: Path, stage: str) -> dict[str, str]:
    folder = run / "stages" / stage
    newest = max((folder / "checkpoints").glob("step-*"))
    files = [folder / "model" / "model.safetensors", folder / "model" / "config.json"]
    files += [newest / "tensors.safetensors", newest / "state.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files} | {"step": newest.name}
