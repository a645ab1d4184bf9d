"""Commands of the lab: run, sweep, list, show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from inexact_muon_lab.cli.settings import Folder, Number, Settings


def run(
    spec: Annotated[Path, tyro.conf.Positional],
    out: Folder = None,
    set: Settings = (),
    threads: int = 1,
    pick: str = "",
) -> None:
    """One training run; an interrupted run resumes.

    Example: inexact-muon run run.toml --set optimizer.lr=0.1 steps=100; on several devices:
    torchrun --nproc-per-node 4 -m inexact_muon_lab.cli run run.toml

    Args:
        spec: TOML file of the run, or of a study with --pick.
        out: folder of the store; default: runs/NAME-ID.
        set: field=value pairs that override the file.
        threads: threads of this process; the last bits of the result depend on it.
        pick: the beginning of an id: that run of the study, into the study's store.
    """
    from inexact_muon_lab.sweep import commands

    commands.run_file(spec, out, set, threads, pick)


def sweep(
    study: Annotated[Path, tyro.conf.Positional],
    out: Folder = None,
    workers: Number = None,
    engine: str = "local",
    address: str = "",
    set: Settings = (),
    retry: bool = False,
    packed: tuple[Path, ...] = (),
) -> None:
    """All runs of a study; ended runs are not repeated, unfinished ones resume.

    Example: inexact-muon sweep studies/tiny/gpt-iterations.toml --out runs/gpt --workers 2

    Args:
        study: TOML file of the study.
        out: folder of the store; default: runs/NAME.
        workers: concurrent runs; default: one per core, or what the cluster has.
        engine: local, ray or slurm.
        address: of the Ray cluster; for slurm, submitit's cluster (slurm or local).
        set: field=value pairs that override base and grid; a list is an axis of the grid: optimizer.lr=[0.01,0.02].
        retry: retry failed runs.
        packed: evidence to start from: its ended runs of this study are not repeated.
    """
    from inexact_muon_lab.sweep import commands

    commands.sweep_file(study, out, set, engine, workers, address, retry, packed)


def list_runs(folder: Annotated[Path, tyro.conf.Positional], json: bool = False) -> None:
    """The runs of a store and their states, also during a sweep.

    Example: inexact-muon list runs/gpt --json

    Args:
        folder: the store, or packed evidence (FILE, or FILE/STUDY of several).
        json: machine-readable.
    """
    from inexact_muon_lab.sweep import listing
    from inexact_muon_lab.terminal import console

    listing.show_list(folder, json, console(160))


def show(
    folder: Annotated[Path, tyro.conf.Positional],
    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ID")],
    json: bool = False,
) -> None:
    """One run: spec, curves, result, times, traceback.

    Example: inexact-muon show runs/gpt 8d96df

    Args:
        folder: the store, or packed evidence.
        run: the beginning of the run's id.
        json: machine-readable, with all records of its curves.
    """
    from inexact_muon_lab.sweep import listing
    from inexact_muon_lab.terminal import console

    listing.show_run(folder, run, console(120), json)
