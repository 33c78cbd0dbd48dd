"""Options that verbs share: `etude chat`, `etude agent` and, in part, `etude agents`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EndpointOption = Annotated[
    str | None, typer.Option(envvar="ETUDE_ENDPOINT", help="Any OpenAI-compatible endpoint, up to /chat/completions.")
]
ModelOption = Annotated[str, typer.Option(envvar="ETUDE_MODEL", help="The endpoint's name for the model.")]
KeyOption = Annotated[str, typer.Option(help="The environment variable that holds the endpoint's key.")]
ResumeOption = Annotated[str | None, typer.Option(help="Go on with a session, by its name, or the folder's `last`.")]
TurnsOption = Annotated[int, typer.Option(min=1, help="Turns that a request to an endpoint may take.")]
ContextOption = Annotated[
    int, typer.Option(min=1024, help="Tokens of the endpoint's context; at three quarters it summarises itself.")
]
ShellOption = Annotated[bool, typer.Option("--shell/--no-shell", help="Commands, in a box without network.")]
ToolSecondsOption = Annotated[float, typer.Option(min=0, help="Seconds its commands may run together; 0: no limit.")]
MoneyOption = Annotated[float, typer.Option(min=0, help="What its tokens may cost by --prices; 0: no limit.")]
PricesOption = Annotated[
    tuple[float, float, float], typer.Option(help="Of a million tokens: of input, of cached input, of output.")
]
ConsentOption = Annotated[
    bool, typer.Option("--consent", envvar="ETUDE_CONSENT", help="The session may be trained on.")
]
SessionsOption = Annotated[
    Path | None, typer.Option(help="Where sessions are kept; ~/.local/state/etude/sessions if not given.")
]
HereOption = Annotated[
    bool, typer.Option("--here", help="Work in the folder itself, commands on this machine; each needs a yes.")
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(help="With --here, what needs no yes: write, execute, fetch; 'write:src/**', 'execute:git status'."),
]
DenyOption = Annotated[list[str] | None, typer.Option(help="With --here, what is refused; it beats --allow.")]
StageOption = Annotated[
    str | None,
    typer.Option(help="Which stage's model: pretrain, long, mtp, sft, continued or rl; the latest if not given."),
]
