"""Commands about oracles and statements: delta, transfer, theory, bench, plan."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

from inexact_muon_lab.cli.settings import File, Number, Settings, Word


def delta(
    oracle: Annotated[Word, tyro.conf.Positional, tyro.conf.arg(metavar="[ORACLE]")] = None,
    shape: str = "768x3072",
    spectrum: str = "log-uniform",
    checkpoint: File = None,
    json: bool = False,
    plot: File = None,
) -> None:
    """Inexactness of an oracle on a spectrum, or on the momentum of a saved optimizer.

    Examples: inexact-muon delta polar-express:5 --shape 768x3072 --spectrum gpt-late;
    inexact-muon delta --checkpoint checkpoint.pt

    Spectra are synthetic (gaussian, log-uniform, power-law), recorded (gpt-late, cnn-early, ...) or a file of singular
    values. A checkpoint is an optimizer's state_dict, saved by torch or safetensors, or a folder of
    torch.distributed.checkpoint. Checkpoints are read as data: no code in them is executed (SECURITY.md).

    Args:
        oracle: text of a polar method, such as polar-express:5; with a checkpoint, it replaces the one named there.
        shape: rows x columns, for the cost and the length of a synthetic spectrum.
        spectrum: gaussian, log-uniform, power-law, gpt-late, gpt-late/mlp, ..., or a file: .npz:label, .npy, text.
        checkpoint: saved optimizer (.pt, .safetensors, folder): which oracle to use, why, and every kind of layer.
        json: machine-readable, with the singular values; the explorer of the site opens it.
        plot: with a checkpoint, each kind of layer and what the oracle makes of it: .svg, .png, .html or .json.
    """
    from inexact_muon_lab.cli import tables

    tables.delta(oracle, shape, spectrum, checkpoint, json, plot)


def transfer(
    lr: float,
    momentum: float,
    source: Annotated[str, tyro.conf.arg(name="from")],
    target: Annotated[str, tyro.conf.arg(name="to")],
    rule: str = "descent",
    spectrum: Word = None,
    checkpoint: File = None,
    json: bool = False,
) -> None:
    """Transfer a tuned learning rate and momentum to another oracle: four rules compared, with the reason.

    Example: inexact-muon transfer --lr .05 --momentum .95 --from polar-express:5 --to polar-express:2

    Args:
        lr: learning rate tuned with the source oracle.
        momentum: momentum tuned with it; PyTorch's convention, 1 - alpha.
        source: the oracle they were tuned with.
        target: the new oracle.
        rule: descent, measured, paper or deterministic.
        spectrum: a name or a file, as for delta; default: gpt-late. The result depends on it strongly.
        checkpoint: saved optimizer, whose momentum has the spectra to judge on.
        json: machine-readable.
    """
    from inexact_muon_lab.cli import tables

    if checkpoint is not None and spectrum is not None:
        raise ValueError("--checkpoint has spectra of its own: leave --spectrum out")
    judged_on = str(checkpoint) if checkpoint is not None else spectrum
    tables.transfer(lr, momentum, source, target, rule, judged_on, json)


def theory(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = "list",
    set: Settings = (),
    plot: File = None,
    json: bool = False,
) -> None:
    """Statements of the paper and their two-number versions: `list` them, or evaluate one.

    Example: inexact-muon theory stochastic-optimal --set delta=0.1 --set K=1e5 --plot optimum.svg

    Args:
        name: list, or the name of a statement.
        set: name=value pairs, such as delta=0.1 deltas=[0.1,0.2]; other values are assumed, and marked as such.
        plot: plot it over delta, to an .svg, .png, .html or .json file.
        json: machine-readable.
    """
    from inexact_muon_lab.cli import statements
    from inexact_muon_lab.terminal import console

    if name == "list":
        statements.show_all(console(190), json)
    else:
        statements.show(name, set, plot, console(190), json)


def bench(
    peers: bool = False,
    rounds: int = 7,
    parts: tuple[str, ...] = ("oracles", "steps", "memory"),
    device: str = "cpu",
    out: File = None,
    json: bool = False,
) -> None:
    """Speed and accuracy of oracles and whole steps, interleaved in one process, as ratios with quartiles.

    Examples: inexact-muon bench --peers --out bench.json; inexact-muon bench --peers --device cuda --out gpu.json

    Args:
        peers: also time the installed packages of bench/peers.py: dion, heavyball, muon-optimizer, ...
        rounds: number of repetitions.
        parts: which of oracles, steps, memory; other parts of the file are kept.
        device: cpu, cuda, cuda:1, ...; times are taken from an idle device to an idle device.
        out: file for the numbers; a page (.md) is written beside it.
        json: the numbers on standard output instead of tables.
    """
    from inexact_muon_lab.bench import page
    from inexact_muon_lab.terminal import console as open_console
    from inexact_muon_lab.terminal import write_json

    if rounds < 2:
        raise ValueError(f"rounds must be at least 2, got {rounds}")
    if out is not None:
        page.check_file(out, device)
    console = open_console(190, stderr=json)
    report = page.run(peers, rounds, console, parts, device)
    if json:
        write_json(report)
    else:
        page.show(report, console)
    if out is not None:
        console.print("written: " + ", ".join(str(path) for path in page.save(report, out)), soft_wrap=True)


def plan(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    gpus: int = 8,
    tp: int = 1,
    link: float = 50.0,
    flops: float = 989.0,
    layout: Literal["fsdp", "ddp"] = "fsdp",
    copies: int = 1,
    tokens: Number = None,
    oracle: str = "auto",
    strategies: tuple[str, ...] = ("owner-rank", "replicated", "gram-reduced", "block-periodic:5", "low-rank:8"),
    efficiency: float = 0.4,
    memory: float = 80.0,
    plot: File = None,
    json: bool = False,
) -> None:
    """Modelled cost at scale: the optimizer's own step on fake ranks, counted and priced, and a recommendation.

    Example: inexact-muon plan llama3-8b --gpus 64 --tp 8 --link 50 --flops 989 --plot plan.svg

    Args:
        model: gpt2-124m, llama3-8b, llama3-70b, kimi-k2, or a config.json, a .safetensors file or folder, a run spec.
        gpus: ranks.
        tp: ranks that divide each matrix for tensor parallelism.
        link: GB/s that a rank sends.
        flops: peak TF of a rank in bfloat16.
        layout: fsdp divides weights and state over the other ranks, ddp replicates them.
        copies: replicas of the weights under fsdp (HSDP).
        tokens: tokens per step; default: the model's own.
        oracle: text of a polar method, such as auto, polar-express:6 or zolotarev:3.
        strategies: those to record: of Muon, or compressors of EF21Muon (low-rank:8, top-k:0.05, natural).
        efficiency: fraction of the peak that forward and backward reach.
        memory: GB of a rank.
        plot: picture, to an .svg, .png, .html or .json file.
        json: machine-readable.
    """
    from inexact_muon_lab.plan import files

    architecture = files.find(model, tokens)  # before torch is loaded
    from inexact_muon import polar
    from inexact_muon_lab.extras import check_picture
    from inexact_muon_lab.plan import choice, page, pricing, step
    from inexact_muon_lab.terminal import console as open_console
    from inexact_muon_lab.terminal import write_json

    machine = pricing.Machine(flops, link, efficiency, memory)
    where = step.Layout(gpus, tp, gpus // tp if layout == "ddp" and gpus % tp == 0 else copies)
    polar.parse(oracle)
    if plot is not None:
        check_picture(plot)
    console = open_console(190, stderr=json)
    with console.status("recording steps on fake ranks") as status:
        costs = choice.plan(architecture, where, machine, oracle, strategies, status.update)
    if json:
        write_json(page.record(costs))
    else:
        page.show(costs, console)
    if plot is not None:
        page.draw(costs, plot)
        console.print(f"written: {plot}", soft_wrap=True)
