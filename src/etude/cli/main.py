"""The command `etude`: one verb per file, imported when it is called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from etude.cli.agents import agents
from etude.cli.doctor import doctors
from etude.cli.errors import finish
from etude.cli.options import (
    AllowOption,
    ConsentOption,
    ContextOption,
    DenyOption,
    EndpointOption,
    HereOption,
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
app.add_typer(sandboxes, name="sandbox")
app.add_typer(agents, name="agents")
app.add_typer(tasks, name="tasks")
app.add_typer(trace, name="trace")
app.add_typer(sessions, name="sessions")
app.add_typer(doctors, name="doctor")

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
    reuse: Annotated[
        Path | None,
        typer.Option(help="A run, or a folder of runs: stages are taken over where they would come out the same."),
    ] = None,
    until: Annotated[str | None, typer.Option(help="The last stage to run, for example sft.")] = None,
) -> None:
    """Run every stage of a recipe. Interrupt it at any moment: the same command goes on where it was.

    A stage that is done is not done again. What comes out lies in RUNS/NAME: report.html, summary.json, the models of
    all stages, and the recipe as it was run.

    \b
    Examples:
      etude run recipes/tiny.toml
      etude run recipes/tiny.toml --dry-run
      etude run recipes/tiny.toml seed=2 --name tiny-2
      etude run recipes/tiny.toml rl.steps=10 rl.optimizer.lr=2e-4 --name short --reuse runs/tiny
    """

    def verb() -> int:
        from etude.cli.run import run_command

        return run_command(recipe, overrides or [], runs, name, dry_run, reuse, until)

    finish(verb, when_interrupted=GOES_ON)


@app.command()
def chat(
    run_folder: Annotated[
        Path | None, typer.Argument(help="A run folder, for example runs/tiny; not with --endpoint.")
    ] = None,
    task: Annotated[str | None, typer.Argument(help="What to do; asked for if not given.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="What to do, with --endpoint.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="The folder to work on; if not given, a small sample, and with --endpoint this folder."),
    ] = None,
    stage: Annotated[str | None, typer.Option(help="Which stage's model: sft or rl; the latest if not given.")] = None,
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
    plain: Annotated[bool, typer.Option("--plain", help="Line by line, without a screen.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Apply the change without asking, and end.")] = False,
) -> None:
    """Talk to an agent: one that you trained, through the harness that trained it, or any OpenAI-compatible endpoint.

    The agent works on a copy-on-write view, its commands run in a box without network; your files change only when you
    say so. With --here it works in the folder itself, and asks before each change and command. Sessions are kept.

    \b
    Examples:
      etude chat runs/tiny
      etude chat runs/tiny "fix total" --folder ~/my/repository
      etude chat --endpoint http://localhost:8000/v1 --model qwen3-coder
      etude chat --endpoint http://localhost:8000/v1 --resume last
      etude chat --endpoint http://localhost:8000/v1 --here --allow 'execute:git status'
    """

    def verb() -> int:
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

    finish(verb, when_interrupted="interrupted: your folder has what you said yes to, and nothing else")


@app.command()
def agent(
    run_folder: Annotated[
        Path | None, typer.Argument(help="A run folder, for example runs/tiny; not with --endpoint.")
    ] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="What to do.")] = None,
    endpoint: EndpointOption = "http://localhost:8000/v1",
    model: ModelOption = "default",
    key: KeyOption = "ETUDE_API_KEY",
    folder: Annotated[Path, typer.Option(help="The folder to work on: a copy-on-write view of it.")] = Path(),
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
        bool, typer.Option("--background", help="Start it and return: `etude agents` lists, follows and applies.")
    ] = False,
    name: Annotated[str, typer.Option(help="With --background: a name beside its id.")] = "",
    tries: Annotated[int, typer.Option("-n", "--tries", min=1, help="With --background: so many of them.")] = 1,
    at_once: Annotated[
        int, typer.Option(envvar="ETUDE_AT_ONCE", min=1, help="With --background: it waits while so many work.")
    ] = 4,
) -> None:
    """Have an agent do something in a folder, with any model or that of a run. For scripts: the change goes to standard
    output.

    Your files change only with --apply. With --here they change as it works, but only as --allow says: nobody is asked,
    so the rest is refused, and the agent is told. What it does is kept as a session, turn by turn: killed at any
    moment, it goes on with --resume. The exit code is 0 if the agent came to an end of its own, 1 if it ran out of a
    budget or failed.

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

    def verb() -> int:
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

    kept = "`etude agents` lists those that were started" if background else "--resume last goes on"
    finish(verb, when_interrupted=f"interrupted: what was done is kept; {kept}")


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

    finish(verb)


@app.command()
def export(
    run_folder: RunFolder,
    folder: Annotated[Path, typer.Argument(help="Where the checkpoint goes: a folder that is new or empty.")],
    stage: StageOption = None,
    experts: Annotated[
        str | None,
        typer.Option(help="Quantise the routed experts: mxfp8, nvfp4, fp8_block or fp8_row; as they are if not given."),
    ] = None,
) -> None:
    """Write the model of a run as a Hugging Face checkpoint: weights, config.json, tokenizer.json.

    The layout is the published one (DeepSeek's; of quantised experts ModelOpt's, DeepSeek's or compressed-tensors').
    What is not sound is not written: one line names the tensor, and the exit code is 1.

    \b
    Examples:
      etude export runs/tiny tiny-agent
      etude export runs/tiny tiny-agent-mxfp8 --experts mxfp8
      etude export runs/tiny tiny-base --stage pretrain
    """

    def verb() -> int:
        from etude.cli.export import export_command

        return export_command(run_folder, folder, stage, experts)

    finish(verb)


def main() -> None:
    # Read by OpenMP when torch is loaded, here and in every service. Threads that spin for long at each barrier make a
    # step ten times slower as soon as anything else wants a core; threads that never spin cost half again when calm.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    app()


if __name__ == "__main__":
    main()
