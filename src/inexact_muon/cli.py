"""The command `inexact-muon`. Thin: each command imports what it needs inside its function."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import inexact_muon
from inexact_muon.cli_evidence import decide, pack
from inexact_muon.process import prepare

Settings = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
"""`--set a=1 b=2`, `--set a=1 --set b=2`, or both: see `separate_settings`."""


def demo(out: Path = Path("runs/demo"), oracles: bool = False, budget: str = "") -> None:
    """Every oracle side by side, the tiny studies, and one page with the paper's figures and claims.

    Takes less than five minutes on 2 idle cores; interrupted and started again, it goes on where it was.

    Example: inexact-muon demo --out runs/demo

    Args:
        out: folder for the stores, the page and its files.
        oracles: only the table and the picture of the oracles.
        budget: go on for so long with what open claims need, cheapest first: 10m, 1h.
    """
    _need_lab()
    from inexact_muon import demo
    from inexact_muon.terminal import console as open_console

    console = open_console(190)
    if oracles:
        demo.show_oracles(out, console)
    else:
        demo.demo(out, console, demo.seconds(budget))


def report(
    folder: Annotated[Path, tyro.conf.Positional],
    out: Path | None = None,
    open: bool = False,
    watch: bool = False,
    serve: bool = False,
) -> None:
    """One self-contained page about the stores of a folder: the paper's figures, and a verdict on each claim.

    Writes report.html, report.md and report/*.{csv,svg,png} there. Reads files only, also while a sweep runs.

    Example: inexact-muon report runs/demo --open

    Args:
        folder: a store, a folder of stores and tables (theory.json, cotuning.json, precision.json), or packed evidence.
        out: folder for the page, if not the same; for a packed file, by default its name without suffix.
        open: show the page in the browser.
        watch: write the page again whenever the stores change, until Ctrl-C.
        serve: the same, and serve it on this machine's loopback address.
    """
    _need_lab()
    from inexact_muon.report import command
    from inexact_muon.terminal import console

    command.report(folder, out, console(160), open, watch, serve)


def delta(
    oracle: Annotated[str | None, tyro.conf.Positional] = None,
    shape: str = "768x3072",
    spectrum: str = "log-uniform",
    checkpoint: Path | None = None,
) -> None:
    """How inexact an oracle is on a spectrum, or on the momentum of a saved optimizer.

    Examples: inexact-muon delta polar-express:5 --shape 768x3072 --spectrum gpt-late;
    inexact-muon delta --checkpoint checkpoint.pt

    Spectra are synthetic (gaussian, log-uniform, power-law), recorded (gpt-late, cnn-early, ...) or a file of singular
    values. A checkpoint is an optimizer's state_dict, saved by torch or safetensors, or a folder of
    torch.distributed.checkpoint. Checkpoints are read as data: nothing in them is run
    (SECURITY.md).

    Args:
        oracle: text of a polar method, such as polar-express:5; with a checkpoint, instead of the one it names.
        shape: rows x columns, for the cost and the length of a synthetic spectrum.
        spectrum: gaussian, log-uniform, power-law, gpt-late, gpt-late/mlp, ..., or a file: .npz:label, .npy, text.
        checkpoint: saved optimizer (.pt, .safetensors, folder): each matrix, the bottleneck and what to use.
    """
    from inexact_muon import tables

    tables.delta(oracle, shape, spectrum, checkpoint)


def transfer(
    lr: float,
    momentum: float,
    source: Annotated[str, tyro.conf.arg(name="from")],
    target: Annotated[str, tyro.conf.arg(name="to")],
    rule: str = "descent",
    spectrum: str | None = None,
) -> None:
    """Carry a tuned learning rate and momentum to another oracle: four rules side by side, and why.

    Example: inexact-muon transfer --lr .05 --momentum .95 --from polar-express:5 --to polar-express:2

    Args:
        lr: tuned with the first oracle.
        momentum: tuned with it; PyTorch's convention, 1 - alpha.
        source: the oracle they were tuned with.
        target: the oracle to go to.
        rule: descent, measured, paper or deterministic.
        spectrum: a name or a file, as for delta; by default gpt-late. The answer depends on it strongly.
    """
    from inexact_muon import tables

    tables.transfer(lr, momentum, source, target, rule, spectrum)


def theory(
    name: Annotated[str, tyro.conf.Positional] = "list",
    set: Settings = (),
    plot: Path | None = None,
) -> None:
    """Every statement of the paper and its two-number version: `list` them, or evaluate one.

    Example: inexact-muon theory stochastic-optimal --set delta=0.1 --set K=1e5 --plot optimum.svg

    Args:
        name: list, or the name of a statement.
        set: name=value pairs, such as delta=0.1 deltas=[0.1,0.2]; what is not set is assumed, and shown as such.
        plot: draw it over delta, to an .svg, .png, .html or .json file.
    """
    from inexact_muon import statements
    from inexact_muon.terminal import console as open_console

    console = open_console(190)
    if name == "list":
        statements.show_all(console)
    else:
        statements.show(name, set, plot, console)


def bench(
    peers: bool = False,
    rounds: int = 7,
    parts: tuple[str, ...] = ("oracles", "steps", "growth", "memory"),
    device: str = "cpu",
    json: Path | None = None,
) -> None:
    """Speed and accuracy of oracles and whole steps, side by side in one process, as ratios with quartiles.

    Examples: inexact-muon bench --peers --json bench.json; inexact-muon bench --peers --device cuda --json gpu.json

    Args:
        peers: also time what is installed of the packages in bench/peers.py: dion, heavyball, muon-optimizer, ...
        rounds: how often everything takes its turn.
        parts: which of oracles, steps, growth, memory; the file's other parts stay.
        device: cpu, cuda, cuda:1, ...; times are taken from an idle device to an idle device.
        json: file for the numbers; a page (.md) and a picture (.svg) are written beside it.
    """
    from inexact_muon.bench import page
    from inexact_muon.terminal import console as open_console

    if rounds < 2:
        raise ValueError(f"rounds must be at least 2, got {rounds}")
    if json is not None:
        page.check_file(json, device)
    console = open_console(190)
    report = page.run(peers, rounds, console, parts, device)
    page.show(report, console)
    if json is not None:
        console.print("written: " + ", ".join(str(path) for path in page.save(report, json)), soft_wrap=True)


def run(
    spec: Annotated[Path, tyro.conf.Positional],
    out: Path | None = None,
    set: Settings = (),
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
    set: Settings = (),
    retry: bool = False,
    packed: tuple[Path, ...] = (),
) -> None:
    """Every run of a study; runs that have ended are never repeated, half-finished ones resume.

    Example: inexact-muon sweep studies/tiny/gpt-iterations.toml --out runs/gpt --workers 2

    Args:
        study: TOML file of the study.
        out: folder of the store; by default runs/NAME.
        workers: runs at once; by default one for each core, or what the cluster has.
        engine: local, ray or slurm.
        address: of the Ray cluster; for slurm, submitit's cluster (slurm or local).
        set: field=value pairs that win over base and grid; a list is an axis of the grid: optimizer.lr=[0.01,0.02].
        retry: try failed runs again.
        packed: evidence to go on from: its runs of this study that have ended are not repeated.
    """
    from inexact_muon.lab import commands

    commands.sweep_file(study, out, set, engine, workers, address, retry, packed)


def list_runs(folder: Annotated[Path, tyro.conf.Positional], json: bool = False) -> None:
    """The runs of a store and their state, also while a sweep runs.

    Example: inexact-muon list runs/gpt --json

    Args:
        folder: the store, or packed evidence (FILE, or FILE/STUDY of several).
        json: machine-readable.
    """
    from inexact_muon.lab import listing
    from inexact_muon.terminal import console

    listing.show_list(folder, json, console(160))


def show(folder: Annotated[Path, tyro.conf.Positional], run: Annotated[str, tyro.conf.Positional]) -> None:
    """One run: spec, curves, result, times, traceback.

    Example: inexact-muon show runs/gpt 8d96df

    Args:
        folder: the store, or packed evidence.
        run: the beginning of the run's id.
    """
    from inexact_muon.lab import listing
    from inexact_muon.terminal import console

    listing.show_run(folder, run, console(120))


def plan(
    model: Annotated[str, tyro.conf.Positional],
    gpus: int = 8,
    tp: int = 1,
    link: float = 50.0,
    flops: float = 989.0,
    layout: Literal["fsdp", "ddp"] = "fsdp",
    tokens: int | None = None,
    oracle: str = "polar-express:5",
    efficiency: float = 0.4,
    memory: float = 80.0,
    period: int = 5,
    rank: int = 8,
    top: float = 0.05,
    plot: Path | None = None,
) -> None:
    """Cost on paper at scale: flops, bytes and memory of the oracle on many devices, and what to do.

    Example: inexact-muon plan llama3-8b --gpus 64 --tp 8 --link 50 --flops 989 --plot plan.svg

    Args:
        model: gpt2-124m, llama3-8b, llama3-70b, kimi-k2, or a config.json, a .safetensors file or folder, a run spec.
        gpus: ranks.
        tp: ranks that divide each matrix for tensor parallelism.
        link: GB/s that a rank sends.
        flops: peak TF of a rank in bfloat16.
        layout: fsdp divides weights and state over the rest of the ranks, ddp repeats them.
        tokens: of a step; by default the model's own.
        oracle: text of a polar method, such as polar-express:6, "polar-express(6, dtype=float32)" or zolotarev:3.
        efficiency: share of the peak that products reach.
        memory: GB of a rank.
        period: of block-periodic (MuonBP).
        rank: of the low-rank compressor (EF21).
        top: share of entries that the top-k compressor keeps (EF21).
        plot: picture, to an .svg, .png, .html or .json file.
    """
    from inexact_muon.plan import estimate, files, page
    from inexact_muon.plan.layout import Layout
    from inexact_muon.plan.strategies import all_strategies
    from inexact_muon.schedules import oracles
    from inexact_muon.terminal import console as open_console

    machine = estimate.Machine(flops, link, efficiency, memory)
    where = Layout(gpus, tp, sharded=layout == "fsdp")
    tried = all_strategies(period, rank, top)
    reader: Any = oracles
    if oracles.parts(oracle).family not in oracles.FAMILIES:  # from elsewhere, or around another: that loads torch
        from inexact_muon import polar as reader
    made = estimate.plan(files.find(model, tokens), where, machine, reader.parse(oracle), tried)
    console = open_console(190)
    page.show(made, console)
    if plot is not None:
        page.draw(made, plot)
        console.print(f"written: {plot}", soft_wrap=True)


def _need_lab() -> None:
    from inexact_muon.lab.extras import require

    for module in ("altair", "vl_convert", "jinja2"):
        require(module, "lab")


COMMANDS: dict[str, Callable[..., Any]] = {
    "demo": demo,
    "report": report,
    "delta": delta,
    "transfer": transfer,
    "theory": theory,
    "bench": bench,
    "run": run,
    "sweep": sweep,
    "list": list_runs,
    "show": show,
    "pack": pack,
    "decide": decide,
    "plan": plan,
}


DESCRIPTION = """Muon with an oracle whose error is known, measured and chosen.

`inexact-muon COMMAND --help` has an example of each command, `inexact-muon --version` says which version this is, and
`inexact-muon --tyro-write-completion bash FILE` writes a script that completes commands and options in a shell."""


def overview() -> str:
    """What `--help` alone prints, without building the parser of every command."""
    wide = shutil.get_terminal_size((120, 24)).columns
    said = [f"  {name:10}{str(command.__doc__).partition(chr(10))[0]}" for name, command in COMMANDS.items()]
    lines = [textwrap.fill(line, wide, subsequent_indent=" " * 12) for line in said]
    return "\n".join((f"usage: inexact-muon [-h] {{{','.join(COMMANDS)}}}\n", DESCRIPTION, "\ncommands:", *lines))


def separate_settings(words: Sequence[str]) -> list[str]:
    """`--set a=1 b=2` as `--set a=1 --set b=2`: words with an equals sign that follow a setting are settings too."""
    found: list[str] = []
    setting = False
    for word in words:
        if setting and found[-1] != "--set" and not word.startswith("-"):
            if "=" in word:
                found.append("--set")
            else:
                setting = False
        elif word.startswith("-"):
            setting = word == "--set" or word.startswith("--set=")
        found.append(word)
    return found


def main() -> None:
    """Entry point: one clear sentence and a non-zero exit on bad input."""
    words = sys.argv[1:]
    interrupts = prepare()
    if words in (["--version"], ["--help"], ["-h"]):
        print(f"inexact-muon {inexact_muon.__version__}" if words == ["--version"] else overview())
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="inexact-muon", description=DESCRIPTION, args=separate_settings(words)
        )
    except KeyboardInterrupt as error:
        print(f"inexact-muon: interrupted{'; ' if str(error) else ''}{error}", file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        if interrupts.seen and not isinstance(error, ValueError):  # an import turns Ctrl-C into errors of its own
            print("inexact-muon: interrupted", file=sys.stderr)
            raise SystemExit(130) from None
        if not isinstance(error, ValueError | TypeError | OSError):
            raise
        path = getattr(error, "filename", None)  # of the system's own, which say "[Errno 17] File exists: 'x'"
        print(f"inexact-muon: {path}: {error.args[1]}" if path else f"inexact-muon: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
