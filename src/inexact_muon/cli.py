"""The command `inexact-muon`. Thin: each command imports what it needs inside its function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro


def demo(out: Path = Path("runs/demo"), oracles: bool = False) -> None:
    """Every oracle side by side, the tiny studies, and one page with the paper's figures and claims.

    Takes a few minutes on 2 cores; interrupted and started again, it goes on where it was.

    Example: inexact-muon demo --out runs/demo

    Args:
        out: folder for the stores, the page and its files.
        oracles: only the table and the picture of the oracles.
    """
    from rich.console import Console

    _need_lab()
    from inexact_muon import demo

    console = Console(width=None if sys.stdout.isatty() else 190)
    (demo.show_oracles if oracles else demo.demo)(out, console)


def report(
    folder: Annotated[Path, tyro.conf.Positional],
    open: bool = False,
    watch: bool = False,
    serve: bool = False,
) -> None:
    """One self-contained page about the stores of a folder: the paper's figures, and a verdict on each claim.

    Writes report.html, report.md and report/*.{csv,svg,png} there. Reads the stores only, also while a sweep runs.

    Example: inexact-muon report runs/demo --open

    Args:
        folder: a store, or a folder of stores.
        open: show the page in the browser.
        watch: write the page again whenever the stores change, until Ctrl-C.
        serve: the same, and serve it on this machine's loopback address.
    """
    from rich.console import Console

    _need_lab()
    from inexact_muon.report import command

    command.report(folder, Console(width=None if sys.stdout.isatty() else 160), open, watch, serve)


def delta(
    oracle: Annotated[str, tyro.conf.Positional],
    shape: str = "768x3072",
    spectrum: str = "log-uniform",
    checkpoint: Path | None = None,
) -> None:
    """How inexact an oracle is on a spectrum, or on every matrix of a checkpoint.

    Example: inexact-muon delta polar-express:5 --shape 768x3072 --spectrum power-law

    Args:
        oracle: text of a polar method, such as polar-express:5.
        shape: rows x columns, for the cost and the length of a named spectrum.
        spectrum: a name (gaussian, log-uniform, power-law) or a file of singular values (.npy or text).
        checkpoint: a torch file; its floating matrices are measured one by one instead.
    """
    from inexact_muon import tables

    tables.delta(oracle, shape, spectrum, checkpoint)


def run(
    spec: Annotated[Path, tyro.conf.Positional],
    out: Path | None = None,
    set: tuple[str, ...] = (),
    threads: int = 1,
    pick: str = "",
) -> None:
    """One training run; interrupted and started again, it goes on where it was.

    Example: inexact-muon run run.toml --set optimizer.lr=0.1 steps=100
    On several devices: torchrun --nproc-per-node 4 -m inexact_muon.cli run run.toml

    Args:
        spec: TOML file of the run, or of a study with --pick.
        out: folder of the store; by default runs/NAME-ID.
        set: field=value pairs that win over the file.
        threads: threads of this process; the last bits of the result depend on it.
        pick: the beginning of an id: that run of the study, into the study's store.
    """
    from inexact_muon.lab import commands

    commands.run_file(spec, out, set, threads, pick)


def sweep(
    study: Annotated[Path, tyro.conf.Positional],
    out: Path | None = None,
    workers: int | None = None,
    engine: str = "local",
    address: str = "",
    set: tuple[str, ...] = (),
    retry: bool = False,
) -> None:
    """Every run of a study; runs that have ended are never repeated, half-finished ones resume.

    Example: inexact-muon sweep studies/tiny/gpt-iterations.toml --out runs/gpt --workers 2

    Args:
        study: TOML file of the study.
        out: folder of the store; by default runs/NAME.
        workers: runs at once; by default one for each core, or what the cluster has.
        engine: local, ray or slurm.
        address: of the Ray cluster; for slurm, submitit's cluster (slurm or local).
        set: field=value pairs that win over base and grid.
        retry: try failed runs again.
    """
    from inexact_muon.lab import commands

    commands.sweep_file(study, out, set, engine, workers, address, retry)


def list_runs(folder: Annotated[Path, tyro.conf.Positional], json: bool = False) -> None:
    """The runs of a store and their state, also while a sweep runs.

    Example: inexact-muon list runs/gpt --json

    Args:
        folder: the store.
        json: machine-readable.
    """
    from rich.console import Console

    from inexact_muon.lab import listing

    listing.show_list(folder, json, Console(width=None if sys.stdout.isatty() else 160))


def show(folder: Annotated[Path, tyro.conf.Positional], run: Annotated[str, tyro.conf.Positional]) -> None:
    """One run: spec, curves, result, times, traceback.

    Example: inexact-muon show runs/gpt 8d96df

    Args:
        folder: the store.
        run: the beginning of the run's id.
    """
    from rich.console import Console

    from inexact_muon.lab import listing

    listing.show_run(folder, run, Console(width=None if sys.stdout.isatty() else 120))


def _need_lab() -> None:
    from inexact_muon.lab.extras import require

    for module in ("altair", "vl_convert", "jinja2"):
        require(module, "lab")


COMMANDS: dict[str, Callable[..., Any]] = {
    "demo": demo,
    "report": report,
    "delta": delta,
    "run": run,
    "sweep": sweep,
    "list": list_runs,
    "show": show,
}


def main() -> None:
    """Entry point: one clear sentence and a non-zero exit on bad input."""
    try:
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="inexact-muon")
    except (ValueError, TypeError, FileNotFoundError) as error:
        print(f"inexact-muon: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt as error:
        print(f"inexact-muon: interrupted{'; ' if str(error) else ''}{error}", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
