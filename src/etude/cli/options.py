"""Command-line options and groups of verbs, shared by several files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def group(help: str) -> typer.Typer:
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None)


EndpointOption = Annotated[
    str | None,
    typer.Option(envvar="ETUDE_ENDPOINT", help="An OpenAI-compatible endpoint's URL, without /chat/completions."),
]
ModelOption = Annotated[str, typer.Option(envvar="ETUDE_MODEL", help="The model's name at the endpoint.")]
KeyOption = Annotated[str, typer.Option(help="Name of the environment variable that holds the endpoint's key.")]
ResumeOption = Annotated[
    str | None, typer.Option(help="Resume a session: its name, or `last` for this folder's newest.")
]
TurnsOption = Annotated[
    int, typer.Option(min=1, help="Turns that a request may take. A run's agent has the budgets of its recipe instead.")
]
ContextOption = Annotated[
    int,
    typer.Option(min=1024, help="The model's context length in tokens. At three quarters of it the agent summarises."),
]
ShellOption = Annotated[
    bool,
    typer.Option(
        "--shell/--no-shell",
        help="Whether the agent may run commands: in a sandbox without network, or with --here on this machine.",
    ),
]
ToolSecondsOption = Annotated[
    float, typer.Option(min=0, help="Seconds that the commands of a request may run in total; 0: no limit.")
]
MoneyOption = Annotated[
    float, typer.Option(min=0, help="What the tokens of a request may cost, by --prices; 0: no limit.")
]
PricesOption = Annotated[
    tuple[float, float, float], typer.Option(help="Prices per million tokens: of input, of cached input, of output.")
]
ConsentOption = Annotated[
    bool, typer.Option("--consent", envvar="ETUDE_CONSENT", help="Allow training on this session.")
]
SessionsOption = Annotated[
    Path | None, typer.Option(help="Folder of the sessions; by default ~/.local/state/etude/sessions.")
]
HereOption = Annotated[
    bool,
    typer.Option(
        "--here",
        help="Work in the folder itself, with commands on this machine. Each change and command needs approval.",
    ),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        help="With --here, what needs no approval: write, execute, fetch, or 'write:src/**', 'execute:git status'."
    ),
]
DenyOption = Annotated[
    list[str] | None, typer.Option(help="With --here, what is always refused, even if --allow names it.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StoreOption = Annotated[Path, typer.Option("--store", help="Folder that holds images and boxes.")]
STORE = Path("runs/boxes")
StageOption = Annotated[
    str | None,
    typer.Option(help="Stage whose model to use: pretrain, long, mtp, sft, continued or rl; by default the latest."),
]
