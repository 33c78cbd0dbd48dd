"""etude tasks: the verbs, their options and examples. What they do is in a file each, imported when one is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.errors import finish

tasks = typer.Typer(
    help="Tasks for agents: look at them, check them, grade changes, bring them in and out.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

StoreOption = Annotated[Path, typer.Option("--store", help="The folder of images and boxes.")]
STORE = Path("runs/boxes")
TaskArgument = Annotated[Path, typer.Argument(help="A task's directory.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
EgressOption = Annotated[
    str, typer.Option(help="What a Dockerfile's RUN may reach: named policies or hosts, with commas; nothing else.")
]


@tasks.command("list")
def list_tasks(
    folder: Annotated[Path, typer.Argument(help="A folder with tasks in it, at any depth.")],
    split: Annotated[str, typer.Option(help="Only train, dev or test.")] = "",
    category: Annotated[str, typer.Option(help="Only this category.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Show the tasks below a folder.

    Verdicts on a "sealed" task hold against an agent that knows the grader; those on an "open" one as far as the task's
    own script does. The exit code is 1 if a task cannot be read.

    \b
    Examples:
      etude tasks list runs/tiny/tasks
      etude tasks list ./tasks --split dev --category debugging
      etude tasks list ./tasks --json
    """

    def verb() -> int:
        from etude.cli.tasks.listing import list_command

        return list_command(folder, split, category, as_json)

    finish(verb)


@tasks.command("show")
def show_task(task: TaskArgument, store: StoreOption = STORE) -> None:
    """Show one task on a page.

    What is asked, what the task is made of, how it is graded, and what its gate has found.

    \b
    Example:
      etude tasks show runs/tiny/tasks/dev/microrepo-dev-00003
    """

    def verb() -> int:
        from etude.cli.tasks.showing import show_command

        return show_command(task, store)

    finish(verb)


@tasks.command("make")
def make_some(
    source: Annotated[
        str, typer.Argument(help="microrepo, debugging, features, testing, documentation, review, migration, ...")
    ],
    dest: Annotated[Path, typer.Argument(help="Where tasks go: DEST/<split>/<task>.")],
    train: Annotated[int, typer.Option(help="How many to train on.", min=0)] = 10,
    dev: Annotated[int, typer.Option(help="How many for choices on the way.", min=0)] = 0,
    test: Annotated[int, typer.Option(help="How many to be measured with.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Another seed makes other tasks.")] = 1,
) -> None:
    """Make tasks from a source.

    The same words make the same tasks, and what is there already is not made again. An unknown source is answered with
    those there are.

    \b
    Examples:
      etude tasks make debugging ./tasks
      etude tasks make review ./tasks --train 40 --dev 10 --test 10 --seed 2
    """

    def verb() -> int:
        from etude.cli.tasks.making import make_command
        from etude.tasks import Split

        return make_command(source, dest, {Split.TRAIN: train, Split.DEV: dev, Split.TEST: test}, seed)

    finish(verb, when_interrupted="interrupted: what was made is kept, the same command goes on")


@tasks.command("check")
def check_tasks(
    tasks: Annotated[list[Path], typer.Argument(help="Tasks' directories, or folders of them.")],
    gate: Annotated[bool, typer.Option("--gate", help="Also run them: nothing must fail, the reference pass.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Gate those that passed once more: elsewhere, and 400 days later.")
    ] = False,
    runs: Annotated[int, typer.Option(help="With --gate: how often the reference must pass.", min=1)] = 3,
    egress: EgressOption = "",
    store: StoreOption = STORE,
) -> None:
    """Name every mistake in tasks.

    Nothing is run, unless by --gate: then doing nothing must fail, the reference solution must pass each time, and
    nothing of the solution may be found in the agent's box. A reference that is a script (solve.sh) is run once; what
    it changes is kept as solution/patch.diff. The exit code is 1 if a task is not sound.

    \b
    Examples:
      etude tasks check ./tasks
      etude tasks check ./tasks/hello --gate
      etude tasks check ./tasks --gate --runs 5 --egress pip
      etude tasks check ./tasks --again
    """

    def verb() -> int:
        from etude.cli.tasks.checking import check_command

        return check_command(tasks, gate, again, runs, egress, store)

    finish(verb, when_interrupted="interrupted: what was gated is kept, the same command goes on")


@tasks.command("grade")
def grade_task(
    task: TaskArgument,
    diff: Annotated[
        list[Path] | None,
        typer.Option("--diff", help="A change as a unified diff; of several steps, one for each in their order."),
    ] = None,
    solution: Annotated[bool, typer.Option("--solution", help="Grade the task's own reference solution.")] = False,
    nothing: Annotated[bool, typer.Option("--nothing", help="Grade an untouched workspace.")] = False,
    predictions: Annotated[
        Path | None, typer.Option(help="Grade predictions (.json, .jsonl) for the tasks below a folder.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="With --predictions: write SWE-bench's report here.")] = None,
    times: Annotated[int, typer.Option(help="Run the tests so often, each time in a fresh box.", min=1)] = 1,
    as_json: JsonOption = False,
    egress: EgressOption = "",
    store: StoreOption = STORE,
) -> None:
    """Grade a change.

    Prints the verdict, its reason, and whether it is sealed. The tests run in a fresh box of the task's own image, with
    the change in it. The exit code is 0 if it passes each time, and 1 else. Predictions are graded once; a grading that
    was stopped goes on where it was.

    \b
    Examples:
      etude tasks grade ./tasks/hello --diff change.diff
      etude tasks grade ./tasks/hello --solution --times 3
      etude tasks grade ./tasks/hello --nothing --json
      git diff | etude tasks grade ./tasks/hello --diff -
      etude tasks grade ./tasks --predictions preds.json --report report.json
    """

    def verb() -> int:
        from etude.cli.tasks.grading import grade_command, grade_predictions_command

        if predictions:
            return grade_predictions_command(task, predictions, report, as_json, egress, store)
        return grade_command(task, diff or [], solution, nothing, times, as_json, egress, store)

    finish(verb)


@tasks.command("cheat")
def cheat_tasks(
    tasks: Annotated[list[Path] | None, typer.Argument(help="Tasks' directories, or folders of them.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this cheat; again for more.")] = None,
    egress: EgressOption = "",
    store: StoreOption = STORE,
) -> None:
    """Try to be graded as solved without solving.

    Agents that cheat are let loose in the tasks' boxes, those that fit each task, and their changes are graded. Without
    a task, the cheats are listed. The exit code is 1 if one succeeds.

    \b
    Examples:
      etude tasks cheat
      etude tasks cheat ./tasks/hello
      etude tasks cheat ./tasks --only git-history --only forged-markers
    """

    def verb() -> int:
        from etude.cli.tasks.cheating import cheat_command

        return cheat_command(tasks or [], only or [], egress, store)

    finish(verb)


@tasks.command("import")
def import_tasks(
    source: Annotated[
        Path, typer.Argument(help="Harbor task directories, or SWE-bench rows (.jsonl, .json, .parquet).")
    ],
    dest: Annotated[Path, typer.Argument(help="Where tasks go: DEST/<split>/<task>.")],
    clones: Annotated[
        Path | None, typer.Option(help="SWE-bench: a local clone, or a folder of clones, to take workspaces from.")
    ] = None,
    image: Annotated[
        str, typer.Option(help="SWE-bench: where images are, with {id}, {repo} or {tag}: host.example/{id}:latest")
    ] = "",
    python: Annotated[str, typer.Option(help="SWE-bench: the interpreter in the image; else the usual one.")] = "",
    only: Annotated[list[str] | None, typer.Option(help="SWE-bench: only this instance; again for more.")] = None,
) -> None:
    """Bring in tasks of other formats.

    A hash of each one's origin decides whether it is for train, dev or test. All of them are read before one is
    written; tasks that are there already, and the same, stay.

    \b
    Examples:
      etude tasks import ~/harbor/my-tasks ./tasks
      etude tasks import rows.jsonl ./tasks --clones ~/clones
      etude tasks import rows.parquet ./tasks --image 'host.example/{id}:latest'
    """

    def verb() -> int:
        from etude.cli.tasks.moving import import_command

        return import_command(source, dest, clones, image, python, only or [])

    finish(verb)


@tasks.command("export")
def export_tasks(
    sources: Annotated[list[Path], typer.Argument(help="Tasks' directories, folders of them, or folders of traces.")],
    dest: Annotated[Path, typer.Argument(help="A folder for tasks; a .json or .jsonl file for predictions.")],
    model: Annotated[str, typer.Option(help="With predictions: the model's name.")] = "",
) -> None:
    """Write tasks or predictions for other tools.

    Tasks become Harbor task directories, side by side. Traces become SWE-bench predictions: the first finished one of
    each task.

    \b
    Examples:
      etude tasks export runs/tiny/tasks/dev ./for-harbor
      etude tasks export runs/tiny/traces/test preds.json --model tiny
    """

    def verb() -> int:
        from etude.cli.tasks.moving import export_command

        return export_command(sources, dest, model)

    finish(verb)


@tasks.command("overlap")
def overlap(
    first: Annotated[
        Path, typer.Argument(help="Tasks, documents, a corpus, traces or source files; PATH:dev for one split.")
    ],
    second: Annotated[Path, typer.Argument(help="What to compare it with.")],
    numbers: Annotated[
        bool, typer.Option("--numbers", help="Functions with other numbers are other functions.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find what two collections share.

    That is tasks, functions, code, or thirteen words of prose in a row. Functions are compared by their syntax trees
    and other code by its tokens, so that new names, numbers, comments and layout hide nothing. The exit code is 1 if
    anything is shared.

    \b
    Examples:
      etude tasks overlap runs/tiny/documents runs/tiny/tasks/test --numbers
      etude tasks overlap runs/tiny/tasks:train runs/tiny/tasks:dev --numbers
      etude tasks overlap ~/code ./benchmark --json
    """

    def verb() -> int:
        from etude.cli.tasks.overlap import overlap_command

        return overlap_command(first, second, as_json, numbers)

    finish(verb)
