"""The tools ask, web_search and web_fetch: ask the user a question, search the web, and fetch a page."""

from __future__ import annotations

from typing import Any

from etude.harness.external_services import Web, WebError
from etude.harness.tools.context import Output, ToolContext, ToolProblem

MOST_HITS = 8


async def ask(run: ToolContext, arguments: dict[str, Any]) -> Output:
    question = arguments["question"].strip()
    if run.outside.ask is None:
        raise ToolProblem(run.say("nobody_there"))
    answer = await run.outside.ask(question)
    return Output(answer.strip().split("\n") if answer.strip() else [run.say("no_answer")])


async def web_search(run: ToolContext, arguments: dict[str, Any]) -> Output:
    try:
        hits = await _web(run).search(arguments["query"].strip())
    except WebError as error:
        raise ToolProblem(run.say("web_failed", problem=error)) from None
    lines: list[str] = []
    for hit in hits[:MOST_HITS]:
        lines += [f"{hit.title} <{hit.url}>", *([f"  {' '.join(hit.excerpt.split())}"] if hit.excerpt else [])]
    return Output(lines or [run.say("no_page")])


async def web_fetch(run: ToolContext, arguments: dict[str, Any]) -> Output:
    try:
        text = await _web(run).fetch(arguments["url"])
    except WebError as error:
        raise ToolProblem(run.say("web_failed", problem=error)) from None
    return Output(text.strip("\n").split("\n"))


def _web(run: ToolContext) -> Web:
    if run.outside.web is None:
        raise ToolProblem(run.say("no_web"))
    return run.outside.web
