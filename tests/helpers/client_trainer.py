"""A run in transformers' Trainer. Its schedule "cosine" is the Trainer's own, by TrainingArguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainingArguments

from clients import ACCUMULATED, BATCH, CLIP, SCHEDULES, STEPS, WARMUP, Model, Recipe, Run, Tokens

CUT = 6
"""The step that is saved: within an epoch."""

CLIPS_BY_GROUP = False


class Watch(TrainerCallback):
    """Records rates at each step and norms from the Trainer's log."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_train_begin(self, *_: Any, optimizer: Any, **__: Any) -> None:
        self.run.watch(optimizer.optimizer)

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        if "grad_norm" in logs:
            self.run.norms.append(logs["grad_norm"])


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    """Of a short run on the CPU; learning_rate and weight_decay are absurd, since they must not count."""
    given: dict[str, Any] = {
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATED,
        "max_grad_norm": CLIP,
        "lr_scheduler_type": "cosine",
        "warmup_steps": WARMUP,
        "learning_rate": 123.0,
        "weight_decay": 45.0,
        "logging_steps": 1,
        "save_steps": CUT,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(str(folder), **{**given, **more})


def train(recipe: Recipe, schedule: str, folder: Path, resume: bool = False) -> Run:
    """From the start, or from what another run saved in the folder at step `CUT`."""
    model = Model()
    if schedule == "cosine":
        given: dict[str, Any] = {"optimizer_cls_and_kwargs": (recipe.factory, recipe.options)}
    else:
        optimizer = recipe.build(model)
        given = {"optimizers": (optimizer, SCHEDULES[schedule](optimizer))}
    trainer = Trainer(model, arguments(folder), train_dataset=Tokens(), **given)
    run = Run(model, None)  # type: ignore[arg-type]
    trainer.add_callback(Watch(run))
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{CUT}") if resume else None)
    assert trainer.state.global_step == STEPS
    return run
