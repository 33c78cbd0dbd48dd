"""Keys, limits, slow and vanishing clients, an engine that is lost, and the end of the server: over real sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.serve.running import NAME, QWEN, Running, running, scripted

from etude.engine.protocol import EngineError, StreamsLost
from etude.serve import server as serving
from etude.serve.limits import Keys, Limits, ServeError
from etude.serve.responding import Patience

LONG = [*QWEN.render_turn("", "word " * 2000, [])]
SHORT = QWEN.render_turn("", "It does.", [])
PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/messages"]
CHAT = PATHS[0]


def body(path: str = CHAT, **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "say"}]
    asked: dict[str, Any] = {"model": NAME, "input" if path == "/v1/responses" else "messages": said, **more}
    return asked | ({"max_tokens": 20_000} if path == "/v1/messages" else {})


def error_of(path: str, answer: httpx.Response) -> Any:
    found = answer.json()
    return found["error"]["type" if path == "/v1/messages" else "code"]


@contextmanager
def scripted_server(said: list[int] = SHORT, **options: Any) -> Iterator[Running]:
    with running(scripted(lambda request: said, context=20_000, max_tokens=15_000), **options) as found:
        yield found


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def idle(server: Running) -> bool:
    return server.call(lambda: server.app.admission.in_flight) == 0


def test_keys() -> None:
    keys = Keys({"ci": "a-key-of-sixteen-letters"})
    with scripted_server(keys=keys) as server, httpx.Client(base_url=server.url) as client:
        right = {"authorization": "Bearer a-key-of-sixteen-letters"}, {"x-api-key": "a-key-of-sixteen-letters"}
        wrong: list[dict[str, str]] = [{}, {"authorization": "Bearer other"}, {"x-api-key": "a-key-of-sixteen-letter"}]
        for path, expected in zip(PATHS, ("invalid_api_key", "invalid_api_key", "authentication_error"), strict=True):
            assert [client.post(path, json=body(path), headers=one).status_code for one in right] == [200, 200]
            refused = [client.post(path, json=body(path), headers=one) for one in wrong]
            assert {(answer.status_code, error_of(path, answer)) for answer in refused} == {(401, expected)}
        for page in ("/v1/models", "/metrics", "/etude/v1/info"):
            assert [client.get(page, headers=one).status_code for one in (right[0], wrong[1])] == [200, 401]
        assert client.get("/health").status_code == client.head("/").status_code == 200
    assert b"sixteen" not in repr(vars(keys)).encode()


@pytest.mark.parametrize(
    "text",
    ["", "short", "one two-is-long-enough-here three", "same a-key-of-sixteen-letters\nsame b-key-of-sixteen-letters"],
)
def test_a_file_that_is_none_of_keys(text: str, tmp_path: Any) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ServeError, match="keys"):
        Keys.read(file)


def test_a_full_queue() -> None:
    with scripted_server(limits=Limits(in_flight=2)) as server, httpx.Client(base_url=server.url) as client:
        server.call(server.engine.go.clear)
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(client.post, CHAT, json=body()) for _ in range(2)]
            until(lambda: len(server.engine.requests) == 2)
            refused = {path: client.post(path, json=body(path)) for path in PATHS}
            server.call(server.engine.go.set)
            assert [answer.result().status_code for answer in waiting] == [200, 200]
        found = [(answer.status_code, error_of(path, answer)) for path, answer in refused.items()]
        assert found == [(429, "queue_full"), (429, "queue_full"), (529, "overloaded_error")]
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused.values())
        assert client.post(CHAT, json=body()).status_code == 200


def test_one_key_cannot_take_all() -> None:
    keys = Keys({"one": "a-key-of-sixteen-letters", "two": "b-key-of-sixteen-letters"})
    with scripted_server(limits=Limits(per_key=1), keys=keys) as server, httpx.Client(base_url=server.url) as client:
        headers = [{"x-api-key": f"{letter}-key-of-sixteen-letters"} for letter in "ab"]
        server.call(server.engine.go.clear)
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(client.post, CHAT, json=body(), headers=one) for one in headers]
            until(lambda: len(server.engine.requests) == 2)
            refused = client.post(CHAT, json=body(), headers=headers[0])
            server.call(server.engine.go.set)
            assert [answer.result().status_code for answer in waiting] == [200, 200]
        assert (refused.status_code, error_of(CHAT, refused)) == (429, "too_many_requests")


def test_requests_that_are_too_large_are_not_read() -> None:
    limit = 1 << 20
    with scripted_server(limits=Limits(body_bytes=limit)) as server, httpx.Client(base_url=server.url) as client:
        declared = client.post(CHAT, content=b"a" * (limit + 1))
        assert (declared.status_code, error_of(CHAT, declared)) == (413, "request_too_large")
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.settimeout(10)
            raw.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            part, sent = b"10000\r\n" + b"a" * 65536 + b"\r\n", 0
            try:
                while sent < 100 << 20:
                    raw.sendall(part)
                    sent += 65536
            except OSError:
                pass
            assert limit <= sent < 32 << 20, "it does not read what it refuses"
        assert client.post(CHAT, json=body()).status_code == 200
        assert client.post(CHAT, content=b"{}", headers={"content-encoding": "gzip"}).status_code == 400


def test_heads_that_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_HEAD_SECONDS", 0.3)
    with scripted_server() as server:
        host, port = server.url.removeprefix("http://").split(":")

        began = time.monotonic()

        def ends_with(sent: bytes, more: bytes = b"") -> bytes:
            """What the server says to a client that never ends its head."""
            with socket.create_connection((host, int(port))) as raw:
                raw.settimeout(9)
                raw.sendall(sent)
                try:
                    while more and time.monotonic() - began < 9:
                        raw.sendall(more)
                        time.sleep(0.05)
                    return raw.recv(4096)
                except OSError:
                    return b"closed"

        assert ends_with(b"") in (b"", b"closed")
        assert ends_with(b"POST / HTTP/1.1\r\n", more=b"a: b\r\n") in (b"", b"closed")
        assert time.monotonic() - began < 8
        assert ends_with(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000)[:12] in (b"HTTP/1.1 400", b"closed")
        with httpx.Client(base_url=server.url) as client:
            for _ in range(2):
                assert client.post(CHAT, json=body()).status_code == 200
                time.sleep(0.5)  # a connection that is kept may be silent for longer than a head


def test_who_does_not_read_is_left() -> None:
    patience = Patience(write_seconds=0.5)
    with scripted_server(LONG, patience=patience, send_buffer=8192) as server:
        server.engine.step = 50
        host, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            raw.connect((host, int(port)))
            sent = json.dumps(body(stream=True, logprobs=True)).encode()
            raw.sendall(
                b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(sent)) + sent
            )
            until(lambda: bool(server.engine.aborted) and idle(server), 60)


def test_who_leaves_before_the_first_token_ends_the_sampling() -> None:
    with scripted_server() as server, httpx.Client(base_url=server.url) as client:
        server.call(server.engine.go.clear)
        for stream in (False, True):
            with pytest.raises(httpx.ReadTimeout):
                client.post(CHAT, json=body(stream=stream), timeout=0.3)
        until(lambda: len(server.engine.aborted) == 2 and idle(server))


def test_silence_is_told() -> None:
    """While nothing comes from the engine, a stream has comments, and a whole answer leading spaces."""
    with (
        scripted_server(patience=Patience(alive_seconds=0.1)) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        server.call(server.engine.go.clear)
        whole, streamed = (pool.submit(client.post, CHAT, json=body(stream=stream)) for stream in (False, True))
        until(lambda: len(server.engine.requests) == 2)
        time.sleep(0.5)
        server.call(server.engine.go.set)
        assert whole.result().text.startswith("  ")
        assert whole.result().json()["choices"][0]["message"]["content"] == "It does."
        assert streamed.result().text.count(": waiting\n\n") >= 2
        assert streamed.result().text.endswith("data: [DONE]\n\n")


def test_an_engine_that_is_lost_before_the_first_token_is_asked_again() -> None:
    with scripted_server() as server, httpx.Client(base_url=server.url, timeout=30) as client:
        engine = server.engine

        def script(request: Any) -> list[int]:
            engine.refuses = StreamsLost("gone") if len(engine.requests) < 3 else None
            return SHORT

        engine.script = script
        answer = client.post(CHAT, json=body(seed=5)).json()
        assert answer["choices"][0]["message"]["content"] == "It does."
        assert [request.sampling.seed for request in engine.requests] == [5, 5, 5]


@pytest.mark.parametrize("path", PATHS)
def test_an_engine_that_fails(path: str) -> None:
    """A whole answer is refused; a stream that has begun ends with the error: it neither stops nor begins again."""

    def recovers(request: Any) -> list[int]:
        server.engine.refuses = None
        return SHORT

    with scripted_server(LONG) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        server.engine.refuses = EngineError("out of order")
        refused = client.post(path, json=body(path))
        assert refused.status_code == 503
        assert "out of order" in refused.text
        server.engine.refuses = None
        with client.stream("POST", path, json=body(path, stream=True)) as stream:
            lines = stream.iter_lines()
            for line in lines:
                if '"wor"' in line:
                    break
            server.engine.script = recovers
            server.engine.refuses = StreamsLost("gone")
            last = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")][-1]
        assert "engine was lost: gone" in json.dumps(last)
        assert last.get("type") in (None, "error", "response.failed")
        assert "[DONE]" not in json.dumps(last)


def test_the_end_of_the_server() -> None:
    """Requests in flight finish, new ones are refused, and what takes too long ends with an error."""
    for drain in (20.0, 0.5):
        with scripted_server(drain=drain) as server, httpx.Client(base_url=server.url, timeout=30) as client:
            server.call(server.engine.go.clear)
            with ThreadPoolExecutor(2) as pool:
                streamed = pool.submit(client.post, CHAT, json=body(stream=True))
                until(lambda: len(server.engine.requests) == 1)
                server.end()
                until(lambda: server.call(lambda: server.app.admission.ending))
                refused = client.post(CHAT, json=body())
                assert (refused.status_code, error_of(CHAT, refused)) == (503, "shutting_down")
                assert client.get("/health").status_code == 503
                if drain > 1:
                    server.call(server.engine.go.set)
                text = streamed.result().text
            assert text.endswith("data: [DONE]\n\n") == (drain > 1)
            assert ("the streams were closed" in text) == (drain < 1)
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.url)


def test_metrics() -> None:
    with scripted_server() as server, httpx.Client(base_url=server.url) as client:
        client.post(CHAT, json=body())
        client.post(CHAT, json=body(n=2))
        tools = [{"type": "web_search"}]
        client.post("/v1/responses", json=body("/v1/responses", tools=tools))
        prompt = sum(len(request.prompt) for request in server.engine.requests)
        until(lambda: "etude_answer_seconds_count 2" in client.get("/metrics").text)
        lines = client.get("/metrics").text.splitlines()
        for line in (
            f'etude_requests_total{{path="{CHAT}",ended="stop"}} 1',
            f'etude_requests_total{{path="{CHAT}",ended="invalid"}} 1',
            f'etude_tokens_total{{kind="prompt"}} {prompt}',
            f'etude_tokens_total{{kind="sampled"}} {2 * len(SHORT)}',
            'etude_left_out_total{path="/v1/responses"} 1',
            "etude_answer_seconds_count 2",
            "etude_in_flight 0",
            "etude_engine_up 1",
            "etude_engine_version 3",
        ):
            assert line in lines, lines


def test_token_ids_in_and_out() -> None:
    with scripted_server() as server, httpx.Client(base_url=server.url) as client:
        info = client.get("/etude/v1/info").json()
        assert (info["version"], info["context"], info["models"]) == (3, 20_000, [NAME])
        asked = {"prompt_token_ids": [5, 6, 7], "stop_token_ids": [3], "seed": 9, "max_tokens": 8}
        whole = client.post("/etude/v1/generate", json=asked).json()
        request = server.engine.requests[-1]
        assert (request.prompt.tolist(), request.sampling.stop, request.sampling.seed) == ([5, 6, 7], (3,), 9)
        assert (whole["token_ids"], whole["versions"], whole["finish_reason"]) == (SHORT[:8], [3] * 8, "length")
        streamed = client.post("/etude/v1/generate", json=asked | {"stream": True}).text
        events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        for field in ("token_ids", "logprobs"):
            assert [value for event in events for value in event[field]] == whole[field]
        assert (
            "is not in the vocabulary"
            in client.post("/etude/v1/generate", json=asked | {"stop_token_ids": [9999]}).text
        )
