"""The verbs of `etude bench`: options, help and examples. The code of a verb is imported only when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.errors import verb
from etude.cli.options import SessionsOption, group

bench = group("Benchmarks made from your own repository: which base model to begin with.")

_GOES_ON = "interrupted: what was measured is kept, the same command goes on"
KeysOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        help="Name of the environment variable with an endpoint's key, by default ETUDE_API_KEY. Endpoints on several "
        "hosts need one each, in their order.",
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Chat format of the folders, or `plain`. By default each folder's chat template decides; without a "
        "template a model continues plain text.",
    ),
]
ThinkingOption = Annotated[
    int, typer.Option(min=0, help="Tokens that a chat model may think, besides those of its answer.")
]
DtypeOption = Annotated[str, typer.Option(help="auto, float32 or bfloat16; auto takes the faster one here.")]
ThreadsOption = Annotated[int, typer.Option(min=0, help="CPU threads; 0: one per core.")]
AtOnceOption = Annotated[int, typer.Option(min=1, help="Requests to an endpoint at the same time.")]
SeedOption = Annotated[int, typer.Option(help="Decides which code, files and questions are drawn.")]


@bench.command("base")
@verb(when_interrupted=_GOES_ON)
def bench_base(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Hugging Face folders, runs (runs/tiny), their stages (runs/tiny/stages/sft), or endpoints: NAME@URL.",
        ),
    ],
    repository: Annotated[
        Path,
        typer.Option("--repository", help="Your code: a git repository, with or without a working tree, or a folder."),
    ],
    revision: Annotated[str, typer.Option(help="The commit, branch or tag to read.")] = "HEAD",
    language: Annotated[
        list[str] | None, typer.Option(help="Languages to read, by default nine programming languages.")
    ] = None,
    budget: Annotated[int, typer.Option(min=0, help="Thousands of bytes of code to predict; 0: none.")] = 40,
    context: Annotated[
        int | None,
        typer.Option(min=16, help="Tokens of the rolling window; by default 2048, or the least that a model has."),
    ] = None,
    files: Annotated[int, typer.Option(min=0, help="Files to rebuild; 0: none.")] = 3,
    changes: Annotated[str, typer.Option(help="Numbers of diffs after which each file is rebuilt.")] = "1,2,4,8",
    file_bytes: Annotated[int, typer.Option(min=200, help="Largest file to rebuild, in bytes.")] = 2000,
    question_file: Annotated[
        Path | None,
        typer.Option(help="Questions with accepted answers, .toml or .jsonl; `etude bench questions` drafts them."),
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="Questions to ask, at most.")] = 50,
    thinking: ThinkingOption = 1024,
    form: FormatOption = None,
    key: KeysOption = None,
    at_once: AtOnceOption = 4,
    dtype: DtypeOption = "auto",
    threads: ThreadsOption = 0,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results; by default runs/bench/ and the repository's name.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be measured, with memory and time; measure nothing.")
    ] = False,
) -> int:
    """Compare models on your own code, to choose the one to begin with.

    Three measures tell what training will build on. Agent benchmarks do not: RL changes those scores most.

    \b
    1. Perplexity: files of the repository, in the order of their imports, under
       a rolling window. Bits per byte compare models with different tokenizers.
    2. State tracking: each file is rebuilt from an earlier version and the diffs
       since, out of git's history; where that is too short, changes are made up.
       The score is the share of wrong characters.
    3. Fresh knowledge: questions of yours that models answer from memory.

    An endpoint takes part in 2 and 3. Prompts hold your code, without secrets. Prints tables; writes FOLDER/base.json
    with every answer, and base.png. Interrupt it at any moment: the same command goes on.

    \b
    Examples:
      etude bench base models/qwen3-0.6b models/llama-1b --repository ~/src/app
      etude bench base runs/app runs/app/stages/base --repository ~/src/app
      etude bench base models/qwen3 coder@http://localhost:8000/v1 \\
        --repository ~/src/app --question-file questions.toml
      etude bench base models/* --repository ~/src/app --budget 400 --dry-run
    """
    from etude.cli.bench.base import BaseOptions, base_command
    from etude.cli.bench.find_models import ModelOptions

    opened = ModelOptions(form, tuple(key or ()), thinking, at_once, dtype, threads, seed)
    options = BaseOptions(
        models=models,
        repository=repository,
        revision=revision,
        languages=tuple(language or ()),
        budget=budget * 1000,
        context=context,
        files=files,
        changes=changes,
        file_bytes=file_bytes,
        question_file=question_file,
        questions=questions,
        out=out,
        dry_run=dry_run,
    )
    return base_command(options, opened)


@bench.command("questions")
@verb(when_interrupted=_GOES_ON)
def bench_questions(
    traces: Annotated[
        list[str],
        typer.Argument(metavar="WHAT...", help="Trace files, folders of them, or sessions (an id, or `last`)."),
    ],
    model: Annotated[
        str, typer.Option("--model", help="The model that drafts: a folder, run, stage, or endpoint NAME@URL.")
    ],
    to: Annotated[Path, typer.Option("--to", help="The .toml file to write; it must be new.")],
    lookups: Annotated[int, typer.Option(min=1, help="Lookups to read, at most.")] = 50,
    tool: Annotated[
        list[str] | None, typer.Option(help="Further tools that look things up, beside web_search and web_fetch.")
    ] = None,
    thinking: ThinkingOption = 1024,
    form: FormatOption = None,
    key: KeysOption = None,
    at_once: AtOnceOption = 4,
    dtype: DtypeOption = "auto",
    threads: ThreadsOption = 0,
    seed: SeedOption = 0,
    sessions: SessionsOption = None,
) -> int:
    """Draft questions of fresh knowledge, from what your agents had to look up.

    Reads the calls with which an agent searched or read the web, or read the source of a library. From each, the model
    drafts one question. A draft is dropped if its answer does not occur in what was looked up, or occurs in the
    question. What the model reads is without secrets. Edit the drafts: only you know which ones matter.

    \b
    Examples:
      etude bench questions last --model runs/app --to questions.toml
      etude bench questions runs/app/rl/traces \\
        --model coder@http://localhost:8000/v1 --to questions.toml
    """
    from etude.cli.bench.find_models import ModelOptions
    from etude.cli.bench.questions import questions_command

    opened = ModelOptions(form, tuple(key or ()), thinking, at_once, dtype, threads, seed)
    return questions_command(traces, model, to, lookups, tuple(tool or ()), sessions, opened)
