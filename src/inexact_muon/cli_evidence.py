"""The commands `pack` and `decide`; like those of `cli` they import what they need inside their function."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro


def pack(words: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR... FILE")]) -> None:
    """Stores as one small file of plain data with a checksum, which list, show, report and sweep read.

    Several stores may be packed into one file; runs of one study are merged, each once.

    Example: inexact-muon pack runs/gpt gpt.pack

    Args:
        words: stores, folders of stores or packed files, and last the file to write.
    """
    from inexact_muon.lab import packing
    from inexact_muon.terminal import console

    if len(words) < 2:
        raise ValueError("pack wants a store and a file to write: inexact-muon pack runs/gpt gpt.pack")
    packing.pack_all(words[:-1], words[-1], console(120))


def decide(
    studies: Annotated[tuple[Path, ...], tyro.conf.Positional],
    out: Path = Path("runs/decide"),
    claims: tuple[str, ...] = (),
    budget: str = "",
    workers: int | None = None,
    engine: str = "local",
    address: str = "",
    packed: tuple[Path, ...] = (),
) -> None:
    """Pilot seeds, then the seeds and cells that verdicts need, cheapest first, within the budget; then the page.

    Says what each claim has, what it still needs and what that costs on this machine. Started again it goes on.

    Example: inexact-muon decide my_study.toml --budget 40m

    Args:
        studies: TOML files with a table [decide], which declares the family of claims and the widths wanted.
        out: folder of the stores, one for each study, and of the page.
        claims: decide only these.
        budget: time after which nothing more is begun: 40m, 2h, 1h30m, 90s; without one, as long as it takes.
        workers: runs at once; by default one for each core, or what the cluster has.
        engine: local, ray or slurm.
        address: of the Ray cluster; for slurm, submitit's cluster (slurm or local).
        packed: evidence to go on from.
    """
    from inexact_muon.decide import command
    from inexact_muon.lab.commands import engine_of
    from inexact_muon.lab.extras import require
    from inexact_muon.terminal import console

    for module in ("altair", "vl_convert", "jinja2"):
        require(module, "lab")
    start = engine_of(engine, workers, address, out / "submitit")
    command.decide(studies, out, start, console(160), claims, command.seconds(budget), packed)
