"""The HTTP application: routes, keys, limits, and the way of a request from its bytes to its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from etude.engine.protocol import EngineError
from etude.serve.answer import Answer
from etude.serve.dialects import openai
from etude.serve.dialects.anthropic import AnthropicDialect, CountRequest
from etude.serve.dialects.chat import ChatDialect
from etude.serve.dialects.completions import CompletionDialect
from etude.serve.dialects.exchange import Dialect
from etude.serve.dialects.responses import ResponsesDialect
from etude.serve.dialects.tokens import TokensDialect
from etude.serve.gateway import Gateway
from etude.serve.limits import Admission, Keys, Limits, read_body
from etude.serve.metrics import CONTENT_TYPE, Metrics
from etude.serve.openapi import document
from etude.serve.refusal import Problem, Refused
from etude.serve.responding import AnswerResponse, Patience

_PAGES = {
    "/v1/models": "The models by name.",
    "/v1/models/{name}": "One model.",
    "/etude/v1/info": "The engine's version, context and vocabulary.",
    "/metrics": "Metrics in the text format of Prometheus.",
    "/health": "Whether the server takes requests.",
}


class App:
    """The application around one gateway. `drain` lets it end."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        keys: Keys | None = None,
        limits: Limits | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._gateway, self._keys = gateway, keys or Keys({})
        self._limits, self._patience = limits or Limits(), patience or Patience()
        self._metrics = Metrics()
        self.admission = Admission(self._limits, time.monotonic)
        self._anthropic = AnthropicDialect(gateway.served)
        dialects: list[Dialect] = [
            ChatDialect(gateway.served),
            CompletionDialect(gateway.served),
            ResponsesDialect(gateway.served),
            self._anthropic,
            TokensDialect(gateway.served),
        ]
        routes = [Route(dialect.path, self._answering(dialect), methods=["POST"]) for dialect in dialects]
        routes += [
            Route(f"{self._anthropic.path}/count_tokens", self._count, methods=["POST"]),
            Route("/v1/models", self._guarded(self._models), methods=["GET"]),
            Route("/v1/models/{name:path}", self._guarded(self._model), methods=["GET"]),
            Route("/etude/v1/info", self._guarded(self._info), methods=["GET"]),
            Route("/metrics", self._guarded(self._measured), methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
            Route("/openapi.json", self._document, methods=["GET"]),
            Route("/", self._alive, methods=["GET"]),
        ]
        asked = {dialect.path: dialect.request for dialect in dialects}
        counted = {f"{self._anthropic.path}/count_tokens": CountRequest}
        self._openapi = document(asked | counted, _PAGES, asked)
        self.routes = routes
        self.asgi: ASGIApp = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _http_error, Refused: _refused},
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await self._gateway.close()

    async def drain(self, seconds: float) -> None:
        """Take no more requests, wait so long for those in flight, then end them with an error."""
        self.admission.ending = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.admission.idle()
        await self._gateway.close()

    def _answering(self, dialect: Dialect) -> Callable[[Request], Awaitable[Any]]:
        async def answer(request: Request) -> Any:
            began = time.monotonic()
            try:
                client = self._keys.client(request)
                exchange = dialect.read(await read_body(request, self._limits.body_bytes))
                self.admission.enter(client)
                try:
                    prompt = await self._gateway.prompt(exchange.question)
                except BaseException:
                    self.admission.leave(client)
                    raise
            except Refused as refused:
                self._metrics.ended(dialect.path, refused)
                return refusal_response(dialect.refusal(refused), refused)
            except ClientDisconnect:
                self._metrics.ended(dialect.path, None)
                return Response(status_code=400)
            if exchange.warnings:
                self._metrics.left_out(dialect.path)

            def ended(outcome: Answer | Refused | None, first: float | None) -> None:
                self.admission.leave(client)
                self._metrics.ended(
                    dialect.path,
                    outcome,
                    seconds=time.monotonic() - began,
                    first=None if first is None else first - began,
                )

            events = self._gateway.answer(exchange.question, prompt)
            return AnswerResponse(
                exchange,
                len(prompt),
                events,
                self._patience,
                dialect.refusal,
                ended,
            )

        return answer

    def _guarded(self, page: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            self._keys.client(request)
            return await page(request)

        return guarded

    async def _count(self, request: Request) -> Response:
        """Anthropic's count of a prompt's tokens."""
        try:
            self._keys.client(request)
            question = self._anthropic.read_count(await read_body(request, self._limits.body_bytes))
            return JSONResponse({"input_tokens": len(await self._gateway.prompt(question, any_length=True))})
        except Refused as refused:
            return refusal_response(self._anthropic.refusal(refused), refused)
        except ClientDisconnect:
            return Response(status_code=400)

    async def _models(self, request: Request) -> Response:
        entries = [self._entry(name) for name in self._gateway.served.names]
        names = self._gateway.served.names
        return JSONResponse(
            {"object": "list", "data": entries, "has_more": False, "first_id": names[0], "last_id": names[-1]}
        )

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._gateway.served.names:
            raise Refused(Problem.UNKNOWN_MODEL, f"the model {name!r} is not served here", field="model")
        return JSONResponse(self._entry(name))

    def _entry(self, name: str) -> dict[str, Any]:
        """Return a model as OpenAI's and Anthropic's lists have it."""
        context = self._gateway.served.context
        of_openai = {"id": name, "object": "model", "created": 0, "owned_by": "etude", "max_model_len": context}
        return of_openai | {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}

    async def _health(self, request: Request) -> Response:
        """Answer 200 if the engine answers and the server takes requests."""
        if self.admission.ending:
            return JSONResponse({"status": "ending"}, status_code=503)
        try:
            stats = await self._gateway.engine.stats()
        except EngineError as error:
            return JSONResponse({"status": "engine lost", "error": str(error)}, status_code=503)
        return JSONResponse({"status": "ok", "version": stats.version, "running": stats.running})

    async def _info(self, request: Request) -> Response:
        """Answer what a client of token ids must know: the engine's version, context and vocabulary."""
        try:
            info = await self._gateway.engine.info()
        except EngineError as error:
            raise Refused(Problem.ENGINE, str(error)) from error
        return JSONResponse(asdict(info) | {"models": list(self._gateway.served.names)})

    async def _measured(self, request: Request) -> Response:
        try:
            stats = await self._gateway.engine.stats()
        except EngineError:
            stats = None
        return Response(self._metrics.text(self.admission.in_flight, stats), media_type=CONTENT_TYPE)

    async def _document(self, request: Request) -> Response:
        return JSONResponse(self._openapi)

    async def _alive(self, request: Request) -> Response:
        return JSONResponse({"etude": "serve", "models": list(self._gateway.served.names)})


def refusal_response(told: tuple[int, dict[str, Any]], refused: Refused) -> Response:
    headers = {"retry-after": str(round(refused.retry_after))} if refused.retry_after else {}
    if refused.problem in (Problem.TOO_LARGE, Problem.TOO_SLOW, Problem.KEY):
        headers["connection"] = "close"  # the rest of the body is not read
    return JSONResponse(told[1], status_code=told[0], headers=headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refusal_response(openai.refusal(error), error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = {"message": f"{request.method} {request.url.path}: {error.detail}", "type": "invalid_request_error"}
    return JSONResponse(
        {"error": told | {"param": None, "code": "not_found"}}, status_code=error.status_code, headers=error.headers
    )
