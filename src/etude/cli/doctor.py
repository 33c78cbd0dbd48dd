"""etude doctor: what is wrong with a run, or would go wrong. Its rooms are imported when a verb is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.errors import finish
from etude.cli.options import StageOption

doctors = typer.Typer(
    help="Look into a run: what low precision does to its checkpoint.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@doctors.callback()
def _group() -> None:
    """So that a lone verb is still called by its name."""


@doctors.command()
def numerics(
    folder: Annotated[Path, typer.Argument(help="A run folder, for example runs/tiny; or a checkpoint of anybody's.")],
    stage: StageOption = None,
    formats: Annotated[
        str, typer.Option(help="bf16, nvfp4, nvfp4_tensor, mxfp8, fp8_block, with commas; all that fit if not given.")
    ] = "",
    sequences: Annotated[
        int | None, typer.Option(min=1, help="Held-out demonstrations to measure on, at most; 8 if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure what each number format does to a checkpoint, and refuse to bless one that is poisoned.

    Per layer: the error of weights, experts and residual stream against fp32, and the experts picked otherwise. Trainer
    against engine: the difference of their log-probs. A picture goes to RUN/plots/numerics.png.

    Of a checkpoint that is no run's, only what is stored is looked at.

    The exit code is 1 if a weight, scale or activation is not finite, or a row is cut off: one line names it.

    \b
    Examples:
      etude doctor numerics runs/tiny
      etude doctor numerics runs/tiny --stage sft --formats nvfp4,mxfp8
      etude doctor numerics runs/tiny --sequences 2 --json
      etude doctor numerics downloads/some-model
    """

    def verb() -> int:
        from etude.cli.numerics import numerics_command

        return numerics_command(
            folder, stage, [name.strip() for name in formats.split(",") if name.strip()], sequences, as_json
        )

    finish(verb)
