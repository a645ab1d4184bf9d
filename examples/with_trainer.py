"""transformers' Trainer: a small GPT-2 with random weights learns Python's own source, stops, and goes on.

    pip install 'inexact-muon[clients]'

The options of the optimizer stand in `optimizer_cls_and_kwargs`; the schedule and clipping in TrainingArguments.
"""

import inspect
import tempfile
import textwrap

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from inexact_muon import explain
from inexact_muon.integrations.transformers import MuonFactory

LENGTH, STEPS = 64, 60
text = torch.tensor(list(inspect.getsource(textwrap).encode()))
pieces = text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)
examples = [{"input_ids": piece, "labels": piece} for piece in pieces]
sizes = {"vocab_size": 256, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4}


def trainer(folder: str) -> Trainer:
    """A new model and a new Trainer, as a new process would make them."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        logging_steps=5,
        save_steps=STEPS // 2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    options = {"lr": 0.02, "weight_decay": 0.01, "adamw": {"lr": 3e-3}}  # learning_rate above would have no effect
    return Trainer(model, arguments, train_dataset=examples, optimizer_cls_and_kwargs=(MuonFactory, options))


with tempfile.TemporaryDirectory() as folder:
    first = trainer(folder)
    print(explain(first.create_optimizer()))  # before training; `train` uses the same object
    first.train()
    resumed = trainer(folder)
    resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-{STEPS // 2}")

pairs = zip(first.model.parameters(), resumed.model.parameters(), strict=True)
assert all(torch.equal(one, other) for one, other in pairs), "the resumed run is not the same"
losses = [row["loss"] for row in first.state.log_history if "loss" in row]
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
