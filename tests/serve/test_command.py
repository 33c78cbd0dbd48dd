"""`etude serve` itself: what it refuses, and a server that loses its engine and is told to stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from tests.cli.here import etude
from tests.engine.tiny import tiny_model
from tests.text.formats.tiny import merged, merged_file

from etude.model import save_hf


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["FOLDER", "--host", "0.0.0.0"], "--host 0.0.0.0: whoever reaches this address could use the model"),
        (["FOLDER", "--keys", "absent"], "cannot read the keys in absent"),
        (["http://127.0.0.1:9"], "there is no such folder; expected a model's folder, or a run's"),
        (["FOLDER", "--stage", "rl"], "FOLDER is not a run folder"),
        (["FOLDER", "--format", "latin"], "format latin: expected auto, compact or one of qwen3"),
        (["FOLDER"], "tokenizer"),
    ],
)
def test_what_it_refuses(words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "--format" in words:
        (tmp_path / "tokenizer.json").write_text(json.dumps(merged_file()))
    monkeypatch.chdir(tmp_path.parent)
    answer = etude("serve", *[word.replace("FOLDER", tmp_path.name) for word in words])
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert told.replace("FOLDER", tmp_path.name) in answer.stderr


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    folder = tmp_path / "tiny-model"
    save_hf(tiny_model(vocab_size=merged().vocab_size), folder)
    (folder / "tokenizer.json").write_text(json.dumps(merged_file()))
    command = [sys.executable, "-m", "etude", "serve", str(folder), "--port", "0", "--slots", "2", "--drain", "60"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready: "), process.stderr.read() if process.stderr else ""
        yield process, re.findall(r"http://[0-9.:]+", ready)[0]
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_server_that_loses_its_engine_and_is_told_to_stop(served: tuple[subprocess.Popen[str], str]) -> None:
    process, url = served
    asked = {"model": "tiny-model", "messages": [{"role": "user", "content": "hello"}], "seed": 1, "max_tokens": 20}
    with httpx.Client(base_url=url, timeout=120) as client:
        first = client.post("/v1/chat/completions", json=asked).json()
        assert first["usage"]["completion_tokens"] >= 1
        engine = _engine_of(process.pid)
        os.kill(engine, signal.SIGKILL)
        again = client.post("/v1/chat/completions", json=asked).json()
        assert again["choices"] == first["choices"]
        assert _engine_of(process.pid) != engine

        streamed: list[str] = []

        def stream() -> None:
            with client.stream("POST", "/v1/chat/completions", json=asked | {"stream": True}) as answer:
                begun.set()
                streamed.extend(answer.iter_lines())

        begun = threading.Event()
        asking = threading.Thread(target=stream)
        asking.start()
        assert begun.wait(60)
        process.send_signal(signal.SIGTERM)
        asking.join(60)
        assert streamed[-2:] == ["data: [DONE]", ""]
    assert process.wait(30) == 0
    assert process.stderr is not None
    assert "the engine was restarted: engine was found dead" in process.stderr.read()


def _engine_of(server: int) -> int:
    """The process of the only service: a child of the server's fork server."""
    children = psutil.Process(server).children()
    (engine,) = {service.pid for child in children for service in child.children() if service.ppid() != server}
    return engine
