"""Commands about runs and their evidence: run, sweep, list, show, demo, report, pack, decide."""

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
    torchrun --nproc-per-node 4 -m inexact_muon_lab run run.toml

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


def demo(out: Path = Path("runs/demo"), oracles: bool = False, budget: str = "") -> None:
    """All oracles, the tiny studies, and one page with the paper's figures and claims.

    Takes less than five minutes on 2 idle cores. An interrupted demo resumes.

    Example: inexact-muon demo --out runs/demo

    Args:
        out: folder for the stores, the page and its files.
        oracles: only the table of the oracles.
        budget: continue for this long with what open claims need, cheapest first: 10m, 1h.
    """
    _need_lab()
    from inexact_muon_lab.cli import demo
    from inexact_muon_lab.terminal import console

    if oracles:
        demo.show_oracles(out, console(190))
    else:
        demo.demo(out, console(190), budget)


def report(
    folder: Annotated[Path, tyro.conf.Positional],
    out: Folder = None,
    open: bool = False,
    watch: bool = False,
    serve: bool = False,
    json: bool = False,
) -> None:
    """One self-contained page from the stores of a folder: the paper's figures, and a verdict on each claim.

    Writes report.html, report.md and report/*.{csv,svg,png} there. Reads files only, also during a sweep.

    Example: inexact-muon report runs/demo --open

    Args:
        folder: a store, a folder of stores and tables (theory.json, cotuning.json), or packed evidence.
        out: folder for the page; default: the same folder; for a packed file, its name without suffix.
        open: show the page in the browser.
        watch: rewrite the page whenever the stores change, until Ctrl-C.
        serve: the same, and serve it on this machine's loopback address.
        json: verdicts and their numbers, machine-readable, instead of sentences.
    """
    _need_lab()
    from inexact_muon_lab.report import command
    from inexact_muon_lab.terminal import console, write_json

    command.report(folder, out, console(160, stderr=json), open, watch, serve, write_json if json else None)


def _need_lab() -> None:
    from inexact_muon_lab.extras import require

    for module in ("vl_convert", "jinja2"):
        require(module, "lab")


def pack(words: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR... FILE")]) -> None:
    """Stores as one small file of plain data with a checksum, which list, show, report and sweep can read.

    Several stores may be packed into one file; runs of the same study are merged.

    Example: inexact-muon pack runs/gpt gpt.pack

    Args:
        words: stores, folders of stores or packed files, and last the file to write.
    """
    from inexact_muon_lab.store import packing
    from inexact_muon_lab.terminal import console

    if len(words) < 2:
        raise ValueError("pack needs a store and a file to write: inexact-muon pack runs/gpt gpt.pack")
    packing.pack_all(words[:-1], words[-1], console(120))


def decide(
    studies: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[PATH ...]")],
    out: Path = Path("runs/decide"),
    claims: tuple[str, ...] = (),
    budget: str = "",
    workers: Number = None,
    engine: str = "local",
    address: str = "",
    packed: tuple[Path, ...] = (),
    json: bool = False,
) -> None:
    """Pilot seeds, then the seeds and cells that verdicts need, cheapest first, within the budget; then the page.

    Shows what each claim has, what it still needs and what that costs on this machine. Run it again to continue.

    Example: inexact-muon decide my_study.toml --budget 40m

    Args:
        studies: TOML files with a table [decide], which declares the family of claims and the target widths.
        out: folder of the stores, one per study, and of the page.
        claims: decide only these.
        budget: time after which nothing more is started: 40m, 2h, 1h30m, 90s; default: no limit.
        workers: concurrent runs; default: one per core, or what the cluster has.
        engine: local, ray or slurm.
        address: of the Ray cluster; for slurm, submitit's cluster (slurm or local).
        packed: evidence to start from: its ended runs that a study has are not repeated.
        json: at the end, what each claim has and needs, machine-readable; everything else on standard error.
    """
    from inexact_muon_lab.decide import command
    from inexact_muon_lab.sweep.commands import engine_of
    from inexact_muon_lab.terminal import console, write_json

    _need_lab()
    start = engine_of(engine, workers, address, out / "submitit")
    spoken = console(160, stderr=json)
    needs = command.decide(studies, out, start, spoken, claims, command.seconds(budget), packed)
    if json:
        write_json([need.record for need in needs])
