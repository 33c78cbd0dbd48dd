"""The command `etude` and its verbs: options, help and examples. The code of a verb is imported only when it is
called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from etude import __version__
from etude.cli.agents import agents
from etude.cli.bench import bench
from etude.cli.doctor import doctors
from etude.cli.errors import finish, verb
from etude.cli.options import (
    AllowOption,
    ConsentOption,
    ContextOption,
    DenyOption,
    EndpointOption,
    HereOption,
    JsonOption,
    KeyOption,
    ModelOption,
    MoneyOption,
    PricesOption,
    ResumeOption,
    SessionsOption,
    ShellOption,
    StageOption,
    ToolSecondsOption,
    TurnsOption,
)
from etude.cli.sandboxes import sandboxes
from etude.cli.sessions import sessions
from etude.cli.tasks import tasks
from etude.cli.trace import trace

app = typer.Typer(
    name="etude",
    help="Turn an open base model into your own coding agent.\n\n"
    "Start with `etude run recipes/tiny.toml`: it trains a tiny agent through every stage, in minutes, without a GPU.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(bench, name="bench")
app.add_typer(sandboxes, name="sandbox")
app.add_typer(agents, name="agents")
app.add_typer(tasks, name="tasks")
app.add_typer(trace, name="trace")
app.add_typer(sessions, name="sessions")
app.add_typer(doctors, name="doctor")

GOES_ON = "interrupted: run the same command again to resume"

RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that contains the run folders.")]
RunFolder = Annotated[Path, typer.Argument(help="A run folder, for example runs/tiny.")]


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"etude {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command `etude` itself."""


@app.command()
@verb(when_interrupted=GOES_ON)
def run(
    recipe: Annotated[Path, typer.Argument(help="A recipe, for example recipes/tiny.toml.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides of recipe fields, as section.field=value: rl.steps=5 seed=2")
    ] = None,
    runs: RunsOption = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the run folder; by default the recipe's name.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved recipe, memory and seconds per stage; run nothing.")
    ] = False,
    reuse: Annotated[
        Path | None,
        typer.Option(
            help="A run, or a folder of runs. Finished stages that would come out the same are taken from there."
        ),
    ] = None,
    until: Annotated[str | None, typer.Option(help="The last stage to run, for example sft; by default all.")] = None,
) -> int:
    """Run every stage of a recipe. Interrupt it at any moment: the same command resumes it.

    Finished stages are not run again. The results are in RUNS/NAME: report.html, summary.json, the models of all
    stages, and the resolved recipe.

    \b
    Examples:
      etude run recipes/tiny.toml
      etude run recipes/tiny.toml --dry-run
      etude run recipes/tiny.toml seed=2 --name tiny-2
      etude run recipes/tiny.toml rl.steps=10 rl.optimizer.lr=2e-4 --name short --reuse runs/tiny
    """
    from etude.cli.run import run_command

    return run_command(recipe, overrides or [], runs, name, dry_run, reuse, until)


@app.command()
@verb(when_interrupted="interrupted: your folder has only the changes that you approved")
def chat(
    run_folder: Annotated[
        Path | None, typer.Argument(help="A run folder, for example runs/tiny; leave it out with --endpoint.")
    ] = None,
    task: Annotated[str | None, typer.Argument(help="What to do; by default you are asked.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="The same as TASK, for --endpoint.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="The folder to work on; by default a small sample, or with --endpoint the current folder."),
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="Stage whose model to use: sft, continued or rl; by default the latest.")
    ] = None,
    endpoint: EndpointOption = None,
    model: ModelOption = "default",
    key: KeyOption = "ETUDE_API_KEY",
    resume: ResumeOption = None,
    here: HereOption = False,
    allow: AllowOption = None,
    deny: DenyOption = None,
    turns: TurnsOption = 100,
    context: ContextOption = 128_000,
    tool_seconds: ToolSecondsOption = 0,
    money: MoneyOption = 0,
    prices: PricesOption = (0, 0, 0),
    shell: ShellOption = True,
    sessions: SessionsOption = None,
    consent: ConsentOption = False,
    plain: Annotated[bool, typer.Option("--plain", help="Line mode: no full-screen interface.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Apply the change without asking, then exit.")] = False,
) -> int:
    """Chat with an agent: one that you trained, in the harness that trained it, or any OpenAI-compatible endpoint.

    The agent works on a copy-on-write view of the folder and runs its commands in a sandbox without network. Your files
    change only when you approve. With --here it works in the folder itself and asks before each change and command.
    Sessions are kept, and --resume continues one.

    \b
    Examples:
      etude chat runs/tiny
      etude chat runs/tiny "fix total" --folder ~/my/repository
      etude chat --endpoint http://localhost:8000/v1 --model qwen3-coder
      etude chat --endpoint http://localhost:8000/v1 --resume last
      etude chat --endpoint http://localhost:8000/v1 --here --allow 'execute:git status'
    """
    from etude.cli.agent_setup import EndpointOptions, Rules, default_sessions
    from etude.cli.chat import ChatOptions, chat_command

    rules = Rules.given(here, allow, deny, shell)
    reached = None
    if endpoint and run_folder is None:
        reached = EndpointOptions(endpoint, model, key, context, turns, tool_seconds, money, prices)
    options = ChatOptions(
        run=run_folder,
        task=task or prompt,
        folder=folder,
        stage=stage,
        yes=yes,
        endpoint=reached,
        sessions=sessions or default_sessions(),
        shell=shell,
        resume=resume,
        rules=rules,
        plain=plain,
        consent=consent,
    )
    return chat_command(options)


@app.command()
def agent(
    run_folder: Annotated[
        Path | None, typer.Argument(help="A run folder, for example runs/tiny, whose agent replaces the endpoint.")
    ] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="What to do.")] = None,
    endpoint: EndpointOption = "http://localhost:8000/v1",
    model: ModelOption = "default",
    key: KeyOption = "ETUDE_API_KEY",
    folder: Annotated[
        Path, typer.Option(help="The folder to work on. Without --here the agent works on a copy-on-write view of it.")
    ] = Path(),
    apply: Annotated[bool, typer.Option("--apply", help="Write the change into the folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    resume: ResumeOption = None,
    turns: TurnsOption = 100,
    context: ContextOption = 128_000,
    tool_seconds: ToolSecondsOption = 0,
    money: MoneyOption = 0,
    prices: PricesOption = (0, 0, 0),
    shell: ShellOption = True,
    sessions: SessionsOption = None,
    consent: ConsentOption = False,
    here: HereOption = False,
    allow: AllowOption = None,
    deny: DenyOption = None,
    background: Annotated[
        bool,
        typer.Option("--background", help="Start it and return at once: `etude agents` lists, follows and applies."),
    ] = False,
    name: Annotated[str, typer.Option(help="With --background: a name to use instead of the id.")] = "",
    tries: Annotated[
        int, typer.Option("-n", "--tries", min=1, help="With --background: start this many agents on the same prompt.")
    ] = 1,
    at_once: Annotated[
        int,
        typer.Option(
            envvar="ETUDE_AT_ONCE", min=1, help="With --background: wait in a queue while this many agents run."
        ),
    ] = 4,
) -> None:
    """Give an agent one request, for scripts. The change is printed as a diff.

    The model is that of an endpoint or of a run folder. Your files change only with --apply. With --here the agent
    changes them while it works, but may do only what --allow names: nobody is asked, so anything else is refused, and
    the agent is told so. The session is saved turn by turn: killed at any moment, it continues with --resume. The exit
    code is 0 if the agent ended by itself, 1 if a budget ran out or something failed.

    \b
    Examples:
      etude agent -p "make the tests pass" --endpoint http://localhost:8000/v1 --model qwen3-coder
      etude agent runs/tiny -p "fix total" --folder ~/my/repository
      etude agent -p "now the docs" --resume last
      etude agent --resume last --apply
      etude agent -p "what does this do?" --no-shell --json | jq -r .text
      etude agent -p "update the docs" --here --allow 'write:docs/**' --allow 'execute:make docs'
      etude agent -p "speed up the parser" --background -n 3 --name parser
    """

    def command() -> int:
        from etude.cli.agent import AgentOptions, agent_command
        from etude.cli.agent_setup import EndpointOptions, Rules, default_sessions
        from etude.harness.sessions import SessionError

        place = sessions or default_sessions()
        reached = EndpointOptions(endpoint or "", model, key, context, turns, tool_seconds, money, prices)
        rules = Rules.given(here, allow, deny, shell)
        options = AgentOptions(
            prompt, folder, reached, shell, apply, as_json, place, resume, rules, consent, run_folder
        )
        if background:
            from etude.cli.agents.start import start_command

            return start_command(options, name, tries, at_once)
        if name or tries > 1:
            raise SessionError("--name and --tries go with --background")
        return agent_command(options)

    kept = "`etude agents` lists the agents that were started" if background else "--resume last continues it"
    finish(command, when_interrupted=f"interrupted: what was done is kept; {kept}")


@app.command()
@verb(when_interrupted="interrupted")
def serve(
    model: Annotated[Path, typer.Argument(help="A run folder, or the folder of a Hugging Face checkpoint.")],
    stage: Annotated[
        str | None, typer.Option(help="Of a run: the stage whose model to serve; by default the latest.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. One that others can reach needs --keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.")] = 8000,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Name by which clients ask for the model; repeatable. By default the folder's name."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="Chat format; by default that of the run, or of the folder's template.")
    ] = "auto",
    keys: Annotated[
        Path | None, typer.Option(help="File with a key on each line, before which a client's name may stand.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Answers that are sampled at the same time.")] = 16,
    queue: Annotated[
        int, typer.Option(min=0, help="Requests that may wait for a slot; further ones are refused.")
    ] = 64,
    per_key: Annotated[int, typer.Option(min=0, help="Requests of one key in flight; 0: no limit.")] = 0,
    context: Annotated[
        int | None, typer.Option(min=32, help="Longest prompt and answer together, in tokens; by default at most 8192.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16; by default the run's, or the faster one.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="Threads of the engine; 0: all cores but one.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds that requests in flight have to finish, once it is told to stop.")
    ] = 30.0,
) -> int:
    """Serve a model to clients of OpenAI's and Anthropic's protocols.

    \b
    It answers at http://HOST:PORT:
      /v1/chat/completions, /v1/completions, /v1/responses, /v1/models   OpenAI
      /v1/messages, /v1/messages/count_tokens                            Anthropic
      /etude/v1/generate, /etude/v1/info                                 token ids
      /health, /metrics, /openapi.json                                   for operators

    It prints its address and a line for curl once it is ready. Ctrl-C ends it after the requests in flight; a second
    one at once.

    \b
    Examples:
      etude serve runs/tiny
      etude serve models/Qwen3-0.6B --port 9000 --context 32768
      etude serve runs/tiny --host 0.0.0.0 --keys keys.txt --name tiny --name default
      etude agent -p "fix total" --endpoint http://127.0.0.1:8000/v1 --model tiny
    """
    from etude.cli.serve import ServeOptions, serve_command

    return serve_command(
        ServeOptions(
            model=model,
            stage=stage,
            form=form,
            names=name or [],
            host=host,
            port=port,
            keys=keys,
            queue=queue,
            per_key=per_key,
            slots=slots,
            context=context,
            max_tokens=max_tokens,
            dtype=dtype,
            threads=threads,
            device=device,
            drain=drain,
        )
    )


@app.command()
@verb()
def report(run_folder: RunFolder) -> int:
    """Write summary.json, report.html and the plots of a run again.

    It only reads the run's files, so it also works while the run is in progress: what does not exist yet is left out.

    \b
    Example:
      etude report runs/tiny
    """
    from etude.cli.report import report_command

    return report_command(run_folder)


@app.command()
@verb()
def export(
    run_folder: RunFolder,
    folder: Annotated[Path, typer.Argument(help="Folder to write the checkpoint to; it must be new or empty.")],
    stage: StageOption = None,
    experts: Annotated[
        str | None,
        typer.Option(help="Quantise the routed experts: mxfp8, nvfp4, fp8_block or fp8_row; by default they are not."),
    ] = None,
    adapter: Annotated[
        bool,
        typer.Option("--adapter", help="Write the trained adapters alone, as a PEFT folder; else they are merged."),
    ] = False,
) -> int:
    """Write the model of a run as a Hugging Face checkpoint: weights, config.json, tokenizer.json.

    Adapters (lora.rank) are merged into the weights. --adapter writes them alone, as PEFT's adapter_config.json and
    adapter_model.safetensors, and says what PEFT cannot load of them.

    The layout is DeepSeek's published one; that of quantised experts is ModelOpt's, DeepSeek's or
    compressed-tensors'. A model with non-finite or clipped weights is not written: one line names the tensor, and the
    exit code is 1.

    \b
    Examples:
      etude export runs/tiny tiny-agent
      etude export runs/tiny tiny-agent-mxfp8 --experts mxfp8
      etude export runs/tiny tiny-base --stage pretrain
      etude export runs/ours ours-lora --adapter
    """
    from etude.cli.export import export_command

    return export_command(run_folder, folder, stage, experts, adapter)


@app.command()
@verb(when_interrupted=GOES_ON)
def corpus(
    source: Annotated[
        Path, typer.Argument(help="A recipe (.toml), or code: a git repository, a folder, a .jsonl or .parquet file.")
    ],
    folder: Annotated[Path, typer.Argument(help="Folder to write to.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Recipe fields, as corpus.field=value; of code also revision=value.")
    ] = None,
    tasks: Annotated[
        Path | None, typer.Option(help="Folder of tasks. Documents that hold code of one are dropped.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json, or its folder: write token shards instead of texts.")
    ] = None,
    processes: Annotated[int, typer.Option(min=0, help="Number of processes; 0: one per core.")] = 0,
    as_json: JsonOption = False,
) -> int:
    """Build a corpus of code outside of a run, and see what is dropped and why.

    Code is filtered (by path, language, size, licence, generated or minified files, syntax), secrets and personal data
    are redacted, exact and near duplicates dropped. A run does the same with its recipe's [corpus].

    \b
    Writes FOLDER/train.jsonl.zst and valid.jsonl.zst, or token shards, and report.json.

    \b
    Examples:
      etude corpus ~/src/app /tmp/app
      etude corpus ~/src/app /tmp/app revision=v2.1 "languages=['go']" join_bytes=1000000
      etude corpus rows.parquet /tmp/rows "licences=['permissive']" --processes 8
      etude corpus recipes/mine.toml /tmp/corpus --tasks runs/mine/tasks --tokenizer models/qwen3
    """
    from etude.cli.corpus import corpus_command

    return corpus_command(source, folder, overrides or [], tasks, tokenizer, processes, as_json)


def main() -> None:
    # OpenMP reads this when torch is loaded, in this process and in every service, which inherits it. Threads that spin
    # long at each barrier make a step ten times slower once another process needs a core; threads that never spin make
    # it half again as slow on an idle machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    app()


if __name__ == "__main__":
    main()
