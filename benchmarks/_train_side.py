"""One side of benchmarks/train.py, in a process of its own. It reads its work as JSON, then takes a step per line.

Ours is what a stage does: `RowStream`, `next_token_losses`, `StageRunner`. The peer is transformers' Trainer.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

LR, BETAS, DECAY, CLIP = 3e-4, (0.9, 0.95), 0.1, 1.0
"""Both sides' AdamW, at a constant rate; norms do not decay."""


@dataclass(frozen=True, slots=True)
class Work:
    side: str
    """`etude`, or how the peer reads documents: our packed rows with attention in each document (`packed`) or across
    them (`joined`), or documents that are padded in random order (`padded`) or sorted by length (`by length`), or
    joined by the peer's own collator (`flat`)."""
    folder: str
    """The checkpoint that both sides start from."""
    dtype: str
    """`float32`, or `bfloat16` beside fp32 masters: autocast, for the peer."""
    length: int
    batch: int
    """Rows per step; for the peer with documents of many lengths, the documents that fill as many on average."""
    shortest: int
    """Documents have from `shortest` to `length` tokens."""
    steps: int
    threads: int

    def documents(self, vocab: int) -> list[NDArray[np.int64]]:
        made = np.random.default_rng(0)
        count = (self.steps + 2) * self.batch * self.length // (self.shortest + self.length) * 3
        # As in code, most documents are short: their lengths are even in the logarithm.
        low, high = np.log(self.shortest), np.log(self.length)
        lengths = np.exp(made.uniform(low, high, count)).round().astype(np.int64)
        return [np.minimum(made.zipf(1.2, n), vocab) - 1 for n in lengths]


class Clock:
    """Waits for a line of input before each step, and prints what the step took."""

    def __init__(self) -> None:
        self._begun = (0.0, 0.0)

    def wait(self) -> bool:
        if not sys.stdin.readline():
            return False
        self._begun = time.perf_counter(), time.process_time()
        return True

    def say(self, tokens: int, loss: float) -> None:
        seconds, cpu = time.perf_counter() - self._begun[0], time.process_time() - self._begun[1]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            json.dumps({"seconds": seconds, "cpu": cpu, "tokens": tokens, "loss": loss, "peak_gib": peak}), flush=True
        )


def main() -> None:
    work = Work(**json.loads(sys.stdin.readline()))
    torch.set_num_threads(work.threads)
    (ours if work.side == "etude" else peer)(work)


def stream_of(documents: list[NDArray[np.int64]], length: int) -> Any:
    from etude.corpus import RowStream

    lengths = np.array([len(document) for document in documents])
    return RowStream("b", np.arange(len(documents)), lengths, documents.__getitem__, length=length, seed=0)


def ours(work: Work) -> None:
    from etude.corpus import Mixture
    from etude.model import load_hf
    from etude.pretrain.context import Rows, next_token_losses
    from etude.recipe.training import OptimizerRecipe, StageRecipe
    from etude.training import MasterWeights, StageRunner, StepLoss, build_optimizer

    model = load_hf(Path(work.folder), torch.float32).train()
    optimizer = OptimizerRecipe(
        name="adamw", lr=LR, betas=BETAS, weight_decay=DECAY, grad_clip=CLIP, warmup_steps=0, final_lr_share=1.0
    )
    masters = MasterWeights(model, getattr(torch, work.dtype))
    optim = build_optimizer(model, optimizer, work.steps, masters=masters)
    mixture = Mixture.of({stream_of(work.documents(model.config.vocab_size), work.length): 1.0})
    recipe = StageRecipe(steps=work.steps, batch=work.batch, length=work.length, log_every=1, checkpoint_seconds=1e9)
    tokens = 0

    def losses(step: int) -> Iterator[StepLoss]:
        nonlocal tokens
        rows = Rows.of(mixture.batch(step, work.batch), "cpu")
        tokens = int(rows.weights.sum())
        return next_token_losses(model, rows, recipe.microbatch_tokens, [])

    clock, runner = Clock(), StageRunner(Path(work.folder) / "run", recipe, model, optim, losses)
    (Path(work.folder) / "run").mkdir(exist_ok=True)
    clock.wait()
    for progress in runner.run():
        clock.say(tokens, progress.loss)
        if not clock.wait():
            return


def peer(work: Work) -> None:
    import transformers
    from transformers import (
        AutoModelForCausalLM,
        DataCollatorWithFlattening,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(work.folder, dtype=torch.float32)
    documents = work.documents(model.config.vocab_size)
    by_rows, batch = work.side in ("packed", "joined"), work.batch
    examples: list[dict[str, Any]] = [{"input_ids": document.tolist()} for document in documents]
    if by_rows:
        stream = stream_of(documents, work.length)
        examples = [stream.row(number)._asdict() for number in range((work.steps + 1) * work.batch)]
    else:
        batch = round(work.batch * work.length / np.mean([len(document) for document in documents]))
    counted: list[int] = []
    """Trained tokens of each step; the peer reads a step ahead."""

    def rows_of(features: list[dict[str, NDArray[Any]]]) -> dict[str, torch.Tensor]:
        made = {name: torch.from_numpy(np.stack([feature[name] for feature in features])) for name in features[0]}
        targets = made["targets"].masked_fill(made["weights"] == 0, -100)
        row = {"input_ids": made["tokens"], "labels": targets, "shift_labels": targets}
        return row | ({"position_ids": made["positions"]} if work.side == "packed" else {})

    def padded(features: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        ids = [torch.tensor(feature["input_ids"]) for feature in features]
        filled = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-100)
        real = filled >= 0
        return {"input_ids": filled.clamp(min=0), "labels": filled, "attention_mask": real.long()}

    collate = rows_of if by_rows else DataCollatorWithFlattening() if work.side == "flat" else padded

    def counting(features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = collate(features)
        # A document's first token is no target; where targets are given, all that count are.
        counted.append(int((made["labels"] >= 0).sum()) - (len(features) if collate is padded else 0))
        return made

    class Stepwise(TrainerCallback):
        def __init__(self) -> None:
            self.clock = Clock()

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.clock.wait()

        def on_log(self, _args: Any, state: Any, control: Any, logs: dict[str, float], **__: Any) -> None:
            if "loss" in logs:
                self.clock.say(counted[state.global_step - 1], logs["loss"])
                if not self.clock.wait():
                    control.should_training_stop = True

    settings = TrainingArguments(
        output_dir=str(Path(work.folder) / "peer"),
        max_steps=work.steps,
        per_device_train_batch_size=batch,
        learning_rate=LR,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=DECAY,
        max_grad_norm=CLIP,
        lr_scheduler_type="constant",
        train_sampling_strategy="sequential"
        if by_rows
        else "group_by_length"
        if work.side == "by length"
        else "random",
        bf16=work.dtype == "bfloat16",
        use_cpu=True,
        remove_unused_columns=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=0,
    )
    trainer = Trainer(
        model=model, args=settings, train_dataset=examples, data_collator=counting, callbacks=[Stepwise()]
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


if __name__ == "__main__":
    main()
