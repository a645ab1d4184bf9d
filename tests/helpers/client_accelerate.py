"""A run under Accelerate, written as its documentation shows."""

from __future__ import annotations

from pathlib import Path

from accelerate import Accelerator
from torch.utils.data import DataLoader

from clients import ACCUMULATED, BATCH, CLIP, SCHEDULES, STEPS, Model, Recipe, Run, Tokens

CUT = 6
"""The step that is saved: within an epoch."""

CLIPS_BY_GROUP = False


def train(recipe: Recipe, schedule: str, folder: Path, resume: bool = False) -> Run:
    """From the start, or from what another run saved in the folder at step `CUT`."""
    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATED, cpu=True)
    model = Model()
    optimizer = recipe.build(model)
    run = Run(model, optimizer)
    run.watch(optimizer)
    loader = DataLoader(Tokens(), BATCH)
    prepared, wrapped, loader, scheduler = accelerator.prepare(model, optimizer, loader, SCHEDULES[schedule](optimizer))
    done = 0
    if resume:
        accelerator.load_state(str(folder / "state"))
        done = CUT
    while done < STEPS:
        seen = done * ACCUMULATED % len(loader)
        for batch in accelerator.skip_first_batches(loader, seen):
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(**batch)["loss"])
                if accelerator.sync_gradients:
                    run.norms.append(float(accelerator.clip_grad_norm_(prepared.parameters(), CLIP)))
                wrapped.step()
                scheduler.step()
                wrapped.zero_grad()
            done += accelerator.sync_gradients
            if accelerator.sync_gradients and done == CUT and not resume:
                accelerator.save_state(str(folder / "state"))
    return run
