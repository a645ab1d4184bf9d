"""The table of commands; each imports what it needs inside its function."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import tyro

import inexact_muon
from inexact_muon_lab.cli.evidence import decide, demo, pack, report
from inexact_muon_lab.cli.oracles import bench, delta, plan, theory, transfer
from inexact_muon_lab.cli.process import discard_output, prepare, say
from inexact_muon_lab.cli.runs import list_runs, run, show, sweep
from inexact_muon_lab.cli.settings import separate_settings

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


LEAST = 30
"""Narrowest width of the overview: the names of the commands take 12."""

NARROWEST = 20
"""Narrowest width of the help of a command, as of all tables: in less than 4 columns tyro finds no layout, for ever."""

DESCRIPTION = """Muon with an oracle whose error is known, measured and chosen.

`inexact-muon COMMAND --help` has an example of each command, `inexact-muon --version` says which version this is, and
`inexact-muon --tyro-write-completion bash FILE` writes a script that completes commands and options in a shell."""


def overview() -> str:
    """The output of `--help`, without building the parser of every command."""
    wide = max(LEAST, shutil.get_terminal_size((120, 24)).columns)
    rows = [f"  {name:10}{str(command.__doc__).partition(chr(10))[0]}" for name, command in COMMANDS.items()]
    lines = [textwrap.fill(line, wide, subsequent_indent=" " * 12) for line in rows]
    return "\n".join((f"usage: inexact-muon [-h] {{{','.join(COMMANDS)}}}\n", DESCRIPTION, "\ncommands:", *lines))


def _run(words: list[str]) -> None:
    """What the words after `inexact-muon` ask for."""
    if words in (["--version"], ["--help"], ["-h"]):
        print(f"inexact-muon {inexact_muon.__version__}" if words == ["--version"] else overview())
        return
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
    description, args = DESCRIPTION, separate_settings(words)
    tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="inexact-muon", description=description, args=args)


def main() -> None:
    """Entry point: one clear sentence and a non-zero exit code on bad input."""
    words = sys.argv[1:]
    interrupts = prepare()
    try:
        _run(words)
        sys.stdout.flush()
    except BrokenPipeError:  # a reader such as `head` has seen enough
        discard_output()
    except KeyboardInterrupt as error:
        say(f"interrupted{'; ' if str(error) else ''}{error}")
        raise SystemExit(130) from None
    except Exception as error:
        if interrupts.triggered and not isinstance(error, ValueError):  # imports may turn Ctrl-C into other errors
            say("interrupted")
            raise SystemExit(130) from None
        if not isinstance(error, ValueError | TypeError | OSError):
            raise
        path = getattr(error, "filename", None)  # an OSError prints "[Errno 17] File exists: 'x'"
        if isinstance(error, OSError) and not path:  # of the output itself, which Python would repeat as it ends
            discard_output()
        say(f"{path}: {error.args[1]}" if path else str(error) or f"{type(error).__name__} without a message")
        raise SystemExit(2) from None
