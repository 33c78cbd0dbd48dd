"""Starting vLLM's process, with programs in the place of its interpreter that end at each phase."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from etude.engine.protocol import EngineError, EngineOutOfMemory, NumericsRefused
from etude.engine.vllm.child import Child, ChildDied, checked_interpreter
from etude.engine.vllm.settings import Settings

SETTINGS = Settings({}, 61, 32, False)
ECHO = """
import asyncio, json, os, sys
from pathlib import Path
sys.path.insert(0, os.environ["PYTHONPATH"])
from etude.cluster.direct_calls import serve
from etude.engine.protocol import NumericsRefused
from etude.engine.wire import pack, unpack
class Session:
    async def reply(self, body):
        method, arguments = unpack(body)
        if method == "die":
            print("the worker", arguments[0], file=sys.stderr, flush=True)
            os._exit(7)
        return pack(NumericsRefused(method) if method == "refuse" else arguments)
    def end(self): pass
async def main():
    async with await serve(json.loads(Path(sys.argv[-1]).read_text())["socket"], Session):
        print("ready", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture
def interpreter(tmp_path):
    def make(program: str) -> Path:
        (tmp_path / "program.py").write_text(program)
        script = tmp_path / "python"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "program.py"} "$@"\n')
        script.chmod(0o755)
        return script

    return make


def start(interpreter: Path, seconds: float = 20.0) -> Child:
    return Child(interpreter, SETTINGS, 0, "reset", 1, seconds)


@pytest.mark.parametrize(
    ("program", "kind", "named"),
    [
        ("import sys; sys.exit('no such module: vllm')", ChildDied, r"starting, with code 1.*no such module: vllm"),
        ("print('importing vLLM', flush=True); raise SystemExit(3)", ChildDied, "importing vLLM, with code 3"),
        ("print('loading the model', flush=True); raise MemoryError", EngineOutOfMemory, "(?s)loading.*MemoryError"),
    ],
)
def test_a_process_that_ends_at_its_start_says_where_and_why(interpreter, program, kind, named):
    with pytest.raises(kind, match=named):
        start(interpreter(program))


def test_a_start_has_a_deadline(interpreter):
    began = time.monotonic()
    with pytest.raises(EngineError, match="not ready within 1 s, still importing vLLM"):
        start(interpreter("import time; print('importing vLLM', flush=True); time.sleep(60)"), 1)
    assert time.monotonic() - began < 20


def test_calls_in_one_loop_after_the_other_and_the_death_in_between(interpreter):
    child = start(interpreter(ECHO))

    async def call() -> None:
        assert await child.call("echo", 1, "two") == [1, "two"]
        with pytest.raises(NumericsRefused, match="refuse"):
            await child.call("refuse")

    async def death() -> None:
        with pytest.raises(EngineOutOfMemory, match=r"code 7.*is out of memory"):
            await child.call("die", "is out of memory")
        with pytest.raises(EngineOutOfMemory):
            await child.call("echo")

    asyncio.run(call())
    asyncio.run(call())
    asyncio.run(death())
    assert not child.alive
    child.end()


def test_the_end_takes_its_processes_and_its_folder(interpreter, tmp_path):
    child = start(
        interpreter(
            "import os, subprocess, time\n"
            f"subprocess.Popen(['sh', '-c', 'echo $$ > {tmp_path}/pid; echo ready; sleep 60'])\n"
            "time.sleep(60)"
        )
    )
    folder = child.folder
    assert (folder / "etude").exists()
    child.end()
    (pid,) = (int(word) for word in (tmp_path / "pid").read_text().split())
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("program", "named"),
    [("", "has no vLLM"), ("print('0.31.7')", "0.31.7 is there"), ("raise SystemExit(1)", "does not run")],
)
def test_an_interpreter_that_cannot_be_used_is_refused_by_name(interpreter, program, named):
    with pytest.raises(EngineError, match=named):
        checked_interpreter(str(interpreter(program)))


def test_another_version_can_be_allowed_and_no_interpreter_cannot(interpreter, tmp_path):
    named = interpreter("print('0.31.7')")
    assert checked_interpreter(str(named), any_version=True) == named
    with pytest.raises(EngineError, match=r"make vllm"):
        checked_interpreter(str(tmp_path / "nowhere"))
