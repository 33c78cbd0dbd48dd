"""ask, web_search, web_fetch: questions to the user and the web."""

from __future__ import annotations

from typing import Any

from etude.harness.outside import Web, WebError
from etude.harness.toolbox import Output, Toolbox, ToolProblem

MOST_HITS = 8


async def ask(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    question = arguments["question"].strip()
    if toolbox.outside.ask is None:
        raise ToolProblem(toolbox.say("nobody_there"))
    answer = await toolbox.outside.ask(question)
    return Output(answer.strip().split("\n") if answer.strip() else [toolbox.say("no_answer")])


async def web_search(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    try:
        hits = await _web(toolbox).search(arguments["query"].strip())
    except WebError as error:
        raise ToolProblem(toolbox.say("web_failed", problem=error)) from None
    lines: list[str] = []
    for hit in hits[:MOST_HITS]:
        lines += [f"{hit.title} <{hit.url}>", *([f"  {' '.join(hit.excerpt.split())}"] if hit.excerpt else [])]
    return Output(lines or [toolbox.say("no_page")])


async def web_fetch(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    try:
        text = await _web(toolbox).fetch(arguments["url"])
    except WebError as error:
        raise ToolProblem(toolbox.say("web_failed", problem=error)) from None
    return Output(text.strip("\n").split("\n"))


def _web(toolbox: Toolbox) -> Web:
    if toolbox.outside.web is None:
        raise ToolProblem(toolbox.say("no_web"))
    return toolbox.outside.web
