"""etude bench: models compared on a repository, endpoints that answer well, badly and with bad intent, and drafts."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.bench.test_file_versions import _code
from tests.cli import here
from tests.harness.chat_server import completion

from etude.bench import Rebuild, joined_text, read_questions, read_repository, rebuilds
from etude.bench.state_tracking import rebuild_prompt
from etude.journal import RunPaths
from etude.recipe import Recipe, save_recipe
from etude.text import Tokenizer
from etude.trace import ToolEvent, Trace, write_traces

etude = partial(here.etude, "bench", columns=200)
QUESTIONS = """
[[question]]
question = "Which port has https?"
answers = ["443"]
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    root = tmp_path / "app"
    root.mkdir()
    for name in ("one", "two", "three"):
        (root / f"{name}.py").write_text(f"# {name * 3}\n" + _code(name, 1))
    (tmp_path / "q.toml").write_text(QUESTIONS)
    return root


def items_of(code: Path) -> list[Rebuild]:
    return [item for one in rebuilds(read_repository(code), 2, [1, 3], 2000, 0) for item in one]


def exact(item: Rebuild) -> dict[str, Any]:
    (fence,) = re.findall(r"between two lines (`+),", rebuild_prompt(item).user)
    return completion(text=f"Here it is.\n{fence}python\n{item.final}\n{fence}")


def base(code: Path, *words: object) -> subprocess.CompletedProcess[str]:
    asked = ("--repository", code, "--files", 2, "--changes", "1,3", "--question-file", code.parent / "q.toml")
    return etude("base", *words, *asked, "--at-once", 1, "--dtype", "float32", "--out", code.parent / "out")


def found(code: Path) -> dict[str, dict[str, Any]]:
    read = json.loads((code.parent / "out/base.json").read_text())
    return {model["model"].split("@")[0]: model for model in read["models"]}


def test_endpoints_are_ranked_and_hostile_ones_harm_nothing(code: Path) -> None:
    items = items_of(code)
    copies = [completion(text=item.first) for item in items]
    evil: list[Any] = [
        completion(text="\x1b[2J\u202e[bold red]x[/] \ud800"),
        completion(text="`" * 500_000),
        completion(finish="length", reasoning_content="hm"),
        {"choices": [{"message": {"content": ["no", "text"]}, "finish_reason": "stop"}]},
        completion(text="[link=file:///etc/passwd]443[/link]\n" + "443 " * 60),
    ]
    servers = [[*map(exact, items), completion(text="It is `443`.")], [*copies, completion(text="80")], evil]
    with ExitStack() as stack:
        good, copy, bad = (stack.enter_context(here.serving(answers)) for answers in servers)
        words = [f"good@{good.url}", f"copy@{copy.url}", f"[red]\x1b[31mbad@{bad.url}"]
        done = base(code, *words)
        assert done.returncode == 1, done.stderr
        assert done.stderr.splitlines()[-1] == "etude: 1 prompt got no answer: the same command asks again"
        bad.answers.append(exact(items[3]))
        again = base(code, *words)
        assert (again.returncode, bad.answers) == (0, []), again.stderr
        assert (len(good.requests), len(copy.requests), len(bad.requests)) == (5, 5, 6)
    assert good.requests[0]["temperature"] == 0
    assert not set("\x1b\u202e") & set(done.stdout + done.stderr + again.stdout)
    rows = found(code)
    assert rows["good"]["state_tracking"]["wrong"] == 0
    assert rows["[red]\x1b[31mbad"]["state_tracking"]["wrong"] == pytest.approx(0.75, abs=0.02), "one of four is right"
    assert 0 < rows["copy"]["state_tracking"]["wrong"] < 0.5
    assert [rows[name]["questions"]["right"] for name in rows] == [1, 0, 0]
    assert rows["good"]["state_tracking"]["answers"][0]["answer"].startswith("Here it is.")
    lines = again.stdout.splitlines()
    assert lines[1].split()[1:] == ["0.0%", "±0.0", "100.0%", "±0.0"]
    assert lines[6].split()[1:] == lines[8].split()[4:], "copying scores as the first version unchanged"
    assert "bad@127.0.0.1" in lines[9]
    assert lines[9].endswith(": 1 cut off")
    assert (code.parent / "out/base.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (["app"], "cannot read tokenizer"),
        (["m@http://h/v1", "--repository", "nowhere"], "--repository nowhere: there is no such folder"),
        (["m@http://h/v1", "--revision", "v9", "--repository", "{repo}"], "has no revision 'v9'"),
        (["m@http://h/v1", "--language", "latin"], "--language latin: expected one of python"),
        (["m@http://h/v1", "--language", "go"], "has no files of code in go"),
        (["m@http://h/v1", "--file-bytes", "200"], "has no file of 200 to 200 bytes: raise --file-bytes"),
        (["m@http://h/v1", "--changes", "1,x"], "--changes 1,x: expected numbers"),
        (["m@ftp://h/v1"], "expected an endpoint as NAME@http://HOST/v1"),
        (["m@http://h/v1", "m@http://h/v1"], "named twice"),
        (["m@http://h/v1", "n@http://g/v1", "--key", "K"], "--key: expected one for each of the 2 endpoints"),
        (["m@http://h/v1", "--files", "0"], "an endpoint tells no perplexity"),
        (["m@http://h/v1", "--files", "0", "--budget", "0"], "nothing to measure"),
        (["m@http://h/v1", "--question-file", "app/one.py"], "expected a file of questions"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    code: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    if "{repo}" in words:
        subprocess.run(["git", "init", "-q", "repo"], check=True)
        words = [word.format(repo=tmp_path / "repo") for word in words]
    done = etude("base", *words, *([] if "--repository" in words else ["--repository", code]))
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("etude: ")]
    assert said in line


def test_questions_are_drafted_from_lookups_and_never_written_over(code: Path) -> None:
    page = "Port 443 is the port of https. Key: ghp_" + "a1B2c3D4e5" * 4
    trace = Trace("t", "task", "train", "", 0, "m", 0, messages=[{"role": "user", "content": "serve it"}])
    trace.tools = [
        ToolEvent(0, n, "web_fetch", f'{{"url": "https://docs/{n}"}}', True, True, 0.1, f"{page}\n{n}", 9)
        for n in range(3)
    ]
    write_traces(code.parent / "traces.parquet", [trace])
    draft = '{"question": "Which port has %s?", "answers": ["443"]}'
    answers = [completion(text=draft % name) for name in ("https", "TLS")]
    target = code.parent / "drafts.toml"
    words = ("questions", code.parent / "traces.parquet", "--to", target, "--at-once", 1)
    with here.serving([*answers, *[completion(text="no")] * 3]) as server:
        server.statuses = [200, 200, *[401] * 3]
        done = etude(*words, "--model", f"m@{server.url}")
        assert done.returncode == 0, done.stderr
        assert "2 drafts; 1 dropped: the model did not answer" in done.stdout
        assert all("ghp_" not in str(request) for request in server.requests)
    found = read_questions(target)
    assert [question.question for question in found] == ["Which port has https?", "Which port has TLS?"]
    assert [path.name for path in code.parent.iterdir() if "drafts" in path.name] == ["drafts.toml"]
    again = etude(*words, "--model", "m@http://h/v1")
    assert (again.returncode, "is there already, perhaps edited" in again.stderr) == (2, True)
    trace.tools = []
    write_traces(code.parent / "none.parquet", [trace])
    none = etude("questions", code.parent / "none.parquet", "--to", "x.toml", "--model", "m@http://h/v1")
    assert (none.returncode, "no agent looked anything up" in none.stderr) == (2, True)


@pytest.mark.slow
def test_a_run_takes_part_with_its_latest_stage_and_a_stage_before_sft_continues_plain_text(code: Path) -> None:
    import torch
    from tests.cli.by_heart import RECIPE

    from etude.model import Transformer, config_from_recipe, save_hf

    paths, recipe = RunPaths(code.parent / "run"), Recipe.model_validate(RECIPE)
    paths.root.mkdir()
    save_recipe(recipe, paths.recipe)
    Tokenizer.train([joined_text(read_repository(code).files)], 500).save(paths.tokenizer)
    for stage in ("pretrain", "sft"):
        paths.model(stage).mkdir(parents=True)
        network = Transformer(config_from_recipe(recipe.model, 500)).initialise(1)
        save_hf(network.to(torch.bfloat16), paths.model(stage))
    done = base(code, paths.root, paths.stage("pretrain"), "--budget", 1, "--context", 128, "--thinking", 5)
    assert done.returncode == 0, done.stderr
    after, before = (found(code)[name] for name in ("run/sft", "run/pretrain"))
    assert (after["format"], before["format"]) == ("compact", "plain")
    assert after["perplexity"] == before["perplexity"], "the same weights"
    assert after["perplexity"]["bytes"] <= 1000
    texts = [[row["answer"] for row in model["questions"]["answers"]] for model in (after, before)]
    assert texts[0] != texts[1], "asked in other ways"
    unfinished = base(code, paths.stage("rl"))
    assert (unfinished.returncode, "there is no such folder" in unfinished.stderr) == (2, True)


def make_folders(folder: Path, text: str) -> None:
    """Two networks of one shape and vocabulary, as `transformers` writes them: one random, one trained on the text; and
    one of another shape and a smaller vocabulary, with a chat template."""
    import torch
    import transformers
    from tokenizers import Tokenizer as Published
    from tokenizers import decoders, models, pre_tokenizers, trainers

    def tokenizer(size: int) -> Published:
        made = Published(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        letters = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator(
            [text], trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=letters)
        )
        return made

    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048}
    torch.manual_seed(0)
    large, small = tokenizer(400), tokenizer(300)
    config = transformers.Qwen3Config(
        vocab_size=large.get_vocab_size(), hidden_size=64, intermediate_size=128, num_hidden_layers=2, **shape
    )
    model = transformers.Qwen3ForCausalLM(config)

    def save(name: str, network: Any, vocabulary: Published) -> None:
        network.save_pretrained(folder / name)
        vocabulary.save(str(folder / name / "tokenizer.json"))

    save("random", model, large)
    ids = torch.tensor(large.encode(text).ids)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(30):
        rows = torch.stack([ids[at : at + 128] for at in torch.randint(len(ids) - 129, (4,)).tolist()])
        model(rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    save("trained", model, large)
    config = transformers.LlamaConfig(
        vocab_size=small.get_vocab_size(), hidden_size=32, intermediate_size=64, num_hidden_layers=1, **shape
    )
    save("chat", transformers.LlamaForCausalLM(config), small)
    (folder / "chat/chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


@pytest.mark.slow
def test_folders_are_ranked_by_what_they_learnt_and_agree_with_transformers(code: Path) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer as Published

    repository = read_repository(code)
    text = joined_text(repository.files)
    make_folders(code.parent, text)
    folders = [code.parent / name for name in ("random", "trained", "chat")]
    done = base(code, *folders, "--thinking", 0, "--threads", 1)
    assert done.returncode == 0, done.stderr
    rows = found(code)
    assert [rows[name]["format"] for name in rows] == ["plain", "plain", "chatml"]
    bits = {name: row["perplexity"]["bits_per_byte"] for name, row in rows.items()}
    assert bits["trained"] < 0.7 * min(bits["random"], bits["chat"])
    for name in bits:
        tokenizer = Published.from_file(str(code.parent / name / "tokenizer.json"))
        ids = torch.tensor([0, *tokenizer.encode(text).ids])[None]
        assert ids.shape[1] < 2048, "one window"
        with torch.no_grad():
            loss = transformers.AutoModelForCausalLM.from_pretrained(code.parent / name)(ids, labels=ids).loss
        expected = float(loss) * (ids.shape[1] - 1) / math.log(2) / len(text.encode())
        assert bits[name] == pytest.approx(expected, rel=1e-4)
        assert rows[name]["perplexity"]["perplexity_per_token"] == pytest.approx(math.exp(float(loss)), rel=1e-4)
        assert rows[name]["state_tracking"]["wrong"] > 0.3
        assert all(answer["tokens"] > 0 for answer in rows[name]["questions"]["answers"])
    short = base(code, *folders, "--files", 0, "--context", 64, "--threads", 1)
    assert short.returncode == 0, short.stderr
    theirs = transformers.AutoModelForCausalLM.from_pretrained(code.parent / "trained")
    tokenizer = Published.from_file(str(code.parent / "trained/tokenizer.json"))
    ids, nats, at = torch.tensor([0, *tokenizer.encode(text).ids]), 0.0, 1
    while at < len(ids):
        end = min(len(ids), 64 if at == 1 else at + 32)
        window = ids[max(0, end - 64) : end]
        with torch.no_grad():
            logs = theirs(window[None]).logits[0, :-1].log_softmax(-1).gather(1, window[1:, None])[:, 0]
        nats -= float(logs[at - end :].sum())
        at = end
    assert found(code)["trained"]["perplexity"]["bits_per_byte"] == pytest.approx(
        nats / math.log(2) / len(text.encode()), rel=1e-4
    )
    for words, said in (
        (("--context", 4096), "chat has 2048 positions; lower it"),
        (("--format", "qwen9"), "--format qwen9: expected plain or one of"),
    ):
        wrong = base(code, *folders[::-1], *words)
        assert (wrong.returncode, said in wrong.stderr) == (2, True), wrong.stderr
    (code.parent / "random/model.safetensors").write_bytes(b"half")
    damaged = base(code, folders[0])
    assert (damaged.returncode, damaged.stderr.count("etude: ")) == (2, 1)


@pytest.mark.slow
def test_an_interrupted_bench_goes_on_and_ends_with_the_same_bytes(code: Path) -> None:
    make_folders(code.parent, joined_text(read_repository(code).files))
    words = [
        *(sys.executable, "-m", "etude", "bench", "base", code.parent / "random", code.parent / "trained"),
        *("--repository", code),
        *("--files", "2", "--changes", "1,3", "--context", "64", "--dtype", "float32", "--threads", "1"),
    ]
    kept = code.parent / "cut/kept.jsonl"

    def rows() -> int:
        return kept.read_bytes().count(b"\n") if kept.exists() else 0

    def run(out: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*words, "--out", code.parent / out], stderr=subprocess.PIPE, text=True)

    for enough in (3, 45, 70):
        process = run("cut")
        while process.poll() is None and rows() < enough:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT if enough != 45 else signal.SIGTERM)
        _, said = process.communicate()
        assert process.returncode in (130, 0), said
        if process.returncode:
            assert said.splitlines()[-1] == "etude: interrupted: what was measured is kept, the same command goes on"
    for out in ("cut", "whole"):
        process = run(out)
        _, said = process.communicate()
        assert process.returncode == 0, said
    assert (code.parent / "cut/base.json").read_bytes() == (code.parent / "whole/base.json").read_bytes()
    assert (
        len(set(kept.read_text().splitlines()))
        == rows()
        == (code.parent / "whole/kept.jsonl").read_bytes().count(b"\n")
    )
