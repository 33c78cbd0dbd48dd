"""The verbs of `etude doctor`: options, help and examples. The code of a verb is imported only when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.errors import verb
from etude.cli.options import StageOption, group

doctors = group("Diagnose a run: what low precision does to its checkpoint.")


@doctors.callback()
def _group() -> None:
    """Empty callback that keeps the verb's name: without one, Typer drops the name of an app's single command."""


@doctors.command()
@verb()
def numerics(
    folder: Annotated[Path, typer.Argument(help="A run folder, for example runs/tiny, or a Hugging Face checkpoint.")],
    stage: StageOption = None,
    formats: Annotated[
        str, typer.Option(help="bf16, nvfp4, nvfp4_tensor, mxfp8, fp8_block, with commas; by default all that fit.")
    ] = "",
    sequences: Annotated[
        int | None, typer.Option(min=1, help="Held-out demonstrations to measure on, at most; by default 8.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> int:
    """Measure what each number format does to a checkpoint, and fail if it has broken numbers.

    Per layer: the error of weights, experts and residual stream against fp32, and how often other experts are picked.
    Between trainer and engine: the difference of their log-probs. A plot is written to RUN/plots/numerics.png.

    Of a checkpoint that is not in a run folder, only the stored tensors are checked.

    The exit code is 1 if a weight, scale or activation is not finite, or a row is clipped: one line names it.

    \b
    Examples:
      etude doctor numerics runs/tiny
      etude doctor numerics runs/tiny --stage sft --formats nvfp4,mxfp8
      etude doctor numerics runs/tiny --sequences 2 --json
      etude doctor numerics downloads/some-model
    """
    from etude.cli.numerics import numerics_command

    return numerics_command(
        folder, stage, [name.strip() for name in formats.split(",") if name.strip()], sequences, as_json
    )
