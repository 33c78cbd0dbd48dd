"""The verbs of `etude tasks`: options, help and examples. The code of a verb is imported only when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.errors import verb
from etude.cli.options import STORE, JsonOption, StoreOption, group

tasks = group("Tasks for agents: list, make, check, grade, import and export them.")

TaskArgument = Annotated[Path, typer.Argument(help="A task directory.")]
EgressOption = Annotated[
    str,
    typer.Option(
        help="What RUN in a Dockerfile may reach: pip, npm, apt, hosts, FILE:TABLE, with commas; by default nothing."
    ),
]


@tasks.command("list")
@verb()
def list_tasks(
    folder: Annotated[Path, typer.Argument(help="Folder to search for tasks, at any depth.")],
    split: Annotated[str, typer.Option(help="Only train, dev or test.")] = "",
    category: Annotated[str, typer.Option(help="Only this category.")] = "",
    as_json: JsonOption = False,
) -> int:
    """List the tasks below a folder.

    Verdicts on a "sealed" task hold even against an agent that has read the grader's code; on an "open" task such an
    agent may fool the grader. The exit code is 1 if a task cannot be read.

    \b
    Examples:
      etude tasks list runs/tiny/tasks
      etude tasks list ./tasks --split dev --category debugging
      etude tasks list ./tasks --json
    """
    from etude.cli.tasks.listing import list_command

    return list_command(folder, split, category, as_json)


@tasks.command("show")
@verb()
def show_task(task: TaskArgument, store: StoreOption = STORE) -> int:
    """Show one task.

    Prints its instruction, files, limits, how it is graded, and the results of its gate.

    \b
    Example:
      etude tasks show runs/tiny/tasks/dev/microrepo-dev-00003
    """
    from etude.cli.tasks.showing import show_command

    return show_command(task, store)


@tasks.command("make")
@verb(when_interrupted="interrupted: finished tasks are kept, run the same command again to continue")
def make_some(
    source: Annotated[
        str, typer.Argument(help="microrepo, debugging, features, testing, documentation, review, migration, ...")
    ],
    dest: Annotated[Path, typer.Argument(help="Folder to write to: DEST/<split>/<task>.")],
    train: Annotated[int, typer.Option(help="Number of training tasks.", min=0)] = 10,
    dev: Annotated[int, typer.Option(help="Number of tasks for choosing between models.", min=0)] = 0,
    test: Annotated[int, typer.Option(help="Number of tasks for the final measurement.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Another seed makes other tasks.")] = 1,
) -> int:
    """Generate tasks from a source.

    The same arguments make the same tasks, and existing tasks are not made again. For an unknown source, the error
    names all sources.

    \b
    Examples:
      etude tasks make debugging ./tasks
      etude tasks make review ./tasks --train 40 --dev 10 --test 10 --seed 2
    """
    from etude.cli.tasks.making import make_command
    from etude.tasks import Split

    return make_command(source, dest, {Split.TRAIN: train, Split.DEV: dev, Split.TEST: test}, seed)


@tasks.command("check")
@verb(when_interrupted="interrupted: finished gates are kept, run the same command again to continue")
def check_tasks(
    tasks: Annotated[list[Path], typer.Argument(help="Task directories, or folders of them.")],
    gate: Annotated[
        bool, typer.Option("--gate", help="Also run them: an empty change must fail, the reference must pass.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Gate those that passed once more, under other conditions and 400 days later."),
    ] = False,
    runs: Annotated[int, typer.Option(help="With --gate: how many times the reference must pass.", min=1)] = 3,
    egress: EgressOption = "",
    store: StoreOption = STORE,
) -> int:
    """Report every mistake in tasks.

    By default nothing is run. With --gate an empty change must fail, the reference solution must pass each time, and
    no part of the solution may be visible in the agent's box. A reference that is a script (solve.sh) is run once; its
    change is kept as solution/patch.diff. The exit code is 1 if a task has a mistake or fails the gate.

    \b
    Examples:
      etude tasks check ./tasks
      etude tasks check ./tasks/hello --gate
      etude tasks check ./tasks --gate --runs 5 --egress pip
      etude tasks check ./tasks --again
    """
    from etude.cli.tasks.checking import check_command

    return check_command(tasks, gate, again, runs, egress, store)


@tasks.command("grade")
@verb()
def grade_task(
    task: TaskArgument,
    diff: Annotated[
        list[Path] | None,
        typer.Option(
            "--diff",
            help="A unified diff, or - for standard input. For a task of several steps, one per step in order.",
        ),
    ] = None,
    solution: Annotated[bool, typer.Option("--solution", help="Grade the task's own reference solution.")] = False,
    nothing: Annotated[bool, typer.Option("--nothing", help="Grade an untouched workspace.")] = False,
    predictions: Annotated[
        Path | None, typer.Option(help="Grade these predictions (.json, .jsonl) for the tasks below the folder TASK.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="With --predictions: write a report in SWE-bench's format to this file.")
    ] = None,
    times: Annotated[int, typer.Option(help="Run the tests this many times, each in a fresh box.", min=1)] = 1,
    as_json: JsonOption = False,
    egress: EgressOption = "",
    store: StoreOption = STORE,
) -> int:
    """Grade a change.

    Prints the verdict, its reason, and whether it is sealed. The tests run in a fresh box of the task's own image, with
    the change applied. The exit code is 0 if the change passes each time, else 1; with --predictions it is 1 if a
    prediction could not be graded. Predictions are graded once; after an interruption the same command continues.

    \b
    Examples:
      etude tasks grade ./tasks/hello --diff change.diff
      etude tasks grade ./tasks/hello --solution --times 3
      etude tasks grade ./tasks/hello --nothing --json
      git diff | etude tasks grade ./tasks/hello --diff -
      etude tasks grade ./tasks --predictions preds.json --report report.json
    """
    from etude.cli.tasks.grading import grade_command, grade_predictions_command
    from etude.tasks import TaskError

    if predictions:
        if diff or solution or nothing or times > 1:
            raise TaskError("--predictions are graded once: leave out --diff, --solution, --nothing and --times")
        return grade_predictions_command(task, predictions, report, as_json, egress, store)
    return grade_command(task, diff or [], solution, nothing, times, as_json, egress, store)


@tasks.command("cheat")
@verb()
def cheat_tasks(
    tasks: Annotated[list[Path] | None, typer.Argument(help="Task directories, or folders of them.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this cheat; repeatable.")] = None,
    egress: EgressOption = "",
    store: StoreOption = STORE,
) -> int:
    """Test whether cheating agents can pass tasks.

    Scripted agents that solve nothing try to pass: those that fit a task act in its box, and their changes are graded.
    Without a task, the cheats are listed. The exit code is 1 if a cheat succeeds or cannot be graded.

    \b
    Examples:
      etude tasks cheat
      etude tasks cheat ./tasks/hello
      etude tasks cheat ./tasks --only git-history --only forged-markers
    """
    from etude.cli.tasks.cheating import cheat_command

    return cheat_command(tasks or [], only or [], egress, store)


@tasks.command("import")
@verb()
def import_tasks(
    source: Annotated[
        Path, typer.Argument(help="Harbor task directories, or SWE-bench rows (.jsonl, .json, .parquet).")
    ],
    dest: Annotated[Path, typer.Argument(help="Folder to write to: DEST/<split>/<task>.")],
    clones: Annotated[
        Path | None, typer.Option(help="SWE-bench: a local clone, or a folder of clones, for the workspaces.")
    ] = None,
    image: Annotated[
        str, typer.Option(help="SWE-bench: name of the images, with {id}, {repo} or {tag}: host.example/{id}:latest")
    ] = "",
    python: Annotated[str, typer.Option(help="SWE-bench: path of Python in the image; by default the usual one.")] = "",
    only: Annotated[list[str] | None, typer.Option(help="SWE-bench: only this instance; repeatable.")] = None,
) -> int:
    """Import tasks from other formats.

    A hash of each task's origin decides its split: train, dev or test. All tasks are read before any is written;
    identical tasks that already exist are kept.

    \b
    Examples:
      etude tasks import ~/harbor/my-tasks ./tasks
      etude tasks import rows.jsonl ./tasks --clones ~/clones
      etude tasks import rows.parquet ./tasks --image 'host.example/{id}:latest'
    """
    from etude.cli.tasks.moving import import_command

    return import_command(source, dest, clones, image, python, only or [])


@tasks.command("export")
@verb()
def export_tasks(
    sources: Annotated[list[Path], typer.Argument(help="Task directories, folders of them, or folders of traces.")],
    dest: Annotated[Path, typer.Argument(help="A folder for tasks, or a .json or .jsonl file for predictions.")],
    model: Annotated[str, typer.Option(help="With predictions: the model's name.")] = "",
) -> int:
    """Export tasks or predictions for other tools.

    Tasks become Harbor task directories, side by side. Traces become SWE-bench predictions: the first finished trace of
    each task.

    \b
    Examples:
      etude tasks export runs/tiny/tasks/dev ./for-harbor
      etude tasks export runs/tiny/traces/test preds.json --model tiny
    """
    from etude.cli.tasks.moving import export_command

    return export_command(sources, dest, model)


@tasks.command("overlap")
@verb()
def overlap(
    first: Annotated[
        Path, typer.Argument(help="Tasks, documents, a corpus, traces or source files; PATH:dev for one split.")
    ],
    second: Annotated[Path, typer.Argument(help="What to compare it with.")],
    numbers: Annotated[
        bool, typer.Option("--numbers", help="Functions that differ in a number count as different.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Find what two collections share.

    It looks for equal tasks, functions, code, and thirteen equal words of prose in a row. Functions are compared by
    syntax tree and other code by tokens, so other names, numbers, comments and layout do not hide a copy. The exit code
    is 1 if anything is shared.

    \b
    Examples:
      etude tasks overlap runs/tiny/documents runs/tiny/tasks/test --numbers
      etude tasks overlap runs/tiny/tasks:train runs/tiny/tasks:dev --numbers
      etude tasks overlap ~/code ./benchmark --json
    """
    from etude.cli.tasks.overlap import overlap_command

    return overlap_command(first, second, as_json, numbers)
