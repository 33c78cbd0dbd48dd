"""The command `etude`: one verb per file, imported when it is called."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="etude",
    help="Turn an open base model into your own coding agent.\n\n"
    "Start with `etude run recipes/tiny.toml`: it trains a tiny agent through every stage, in minutes, without a GPU.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
sandbox = typer.Typer(
    help="Boxes for untrusted code: what this machine allows.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(sandbox, name="sandbox")

GOES_ON = "interrupted: the same command goes on where it was"

RunsOption = Annotated[Path, typer.Option("--runs", help="Where run folders lie.")]
RunFolder = Annotated[Path, typer.Argument(help="A run folder, for example runs/tiny.")]


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(help="A recipe, for example recipes/tiny.toml.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to it, as section.field=value: rl.steps=5 seed=2")
    ] = None,
    runs: RunsOption = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the run folder; the recipe's own if not given.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved recipe and its plan; run nothing.")
    ] = False,
) -> None:
    """Run every stage of a recipe. Interrupt it at any moment: the same command goes on where it was.

    A stage that is done is not done again. What comes out lies in RUNS/NAME: report.html, summary.json, the models of
    all stages, and the recipe as it was run.

    \b
    Examples:
      etude run recipes/tiny.toml
      etude run recipes/tiny.toml --dry-run
      etude run recipes/tiny.toml seed=2 --name tiny-2
      etude run recipes/tiny.toml rl.steps=10 rl.optimizer.lr=2e-4 --name short
    """

    def verb() -> int:
        from etude.cli.run import run_command

        return run_command(recipe, overrides or [], runs, name, dry_run)

    _exit(verb, when_interrupted=GOES_ON)


@app.command()
def chat(
    run_folder: RunFolder,
    task: Annotated[str | None, typer.Argument(help="What to do; asked for if not given.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="The folder to work on (a copy-on-write view of it); a small sample if not given."),
    ] = None,
    stage: Annotated[str | None, typer.Option(help="Which stage's model: sft or rl; the latest if not given.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Apply the change without asking.")] = False,
) -> None:
    """Talk to a trained agent through the harness that trained it. Its change is shown, and applied if you say yes.

    The agent works on a copy-on-write view in a box without network; your files change only when you say so.

    \b
    Examples:
      etude chat runs/tiny
      etude chat runs/tiny --stage sft
      etude chat runs/tiny "fix total" --folder ~/my/repository
    """

    def verb() -> int:
        from etude.cli.chat import chat_command

        return chat_command(run_folder, task, folder, stage, yes)

    _exit(verb, when_interrupted="interrupted: what you had not said yes to is dropped")


@app.command()
def report(run_folder: RunFolder) -> None:
    """Write summary.json, report.html and the plots of a run again.

    It reads files only, so it may be called while the run goes on: what is not there yet is left out.

    \b
    Example:
      etude report runs/tiny
    """

    def verb() -> int:
        from etude.cli.report import report_command

        return report_command(run_folder)

    _exit(verb)


@sandbox.command()
def doctor() -> None:
    """Print which sandbox mode this machine allows, which limits are real, and the knob for a better one.

    \b
    Example:
      etude sandbox doctor
    """

    def verb() -> int:
        from etude.cli.sandbox import doctor_command

        return doctor_command()

    _exit(verb)


def main() -> None:
    # Read by OpenMP when torch is loaded, here and in every service. Threads that spin for long at each barrier make a
    # step ten times slower as soon as anything else wants a core; threads that never spin cost half again when calm.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    app()


def _exit(verb: Callable[[], int], *, when_interrupted: str = "interrupted") -> None:
    from etude.cli.errors import exit_code

    raise typer.Exit(exit_code(verb, when_interrupted=when_interrupted))


if __name__ == "__main__":
    main()
