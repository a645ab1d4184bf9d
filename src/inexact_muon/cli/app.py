"""The table of commands; each imports what it needs inside its function."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import tyro

import inexact_muon
from inexact_muon.cli.evidence import decide, demo, pack, report
from inexact_muon.cli.oracles import bench, delta, plan, theory, transfer
from inexact_muon.cli.process import prepare
from inexact_muon.cli.runs import list_runs, run, show, sweep
from inexact_muon.cli.settings import separate_settings

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
    """The output of `--help`, without building the parser of every command."""
    wide = shutil.get_terminal_size((120, 24)).columns
    rows = [f"  {name:10}{str(command.__doc__).partition(chr(10))[0]}" for name, command in COMMANDS.items()]
    lines = [textwrap.fill(line, wide, subsequent_indent=" " * 12) for line in rows]
    return "\n".join((f"usage: inexact-muon [-h] {{{','.join(COMMANDS)}}}\n", DESCRIPTION, "\ncommands:", *lines))


def main() -> None:
    """Entry point: one clear sentence and a non-zero exit code on bad input."""
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
        if interrupts.triggered and not isinstance(error, ValueError):  # imports may turn Ctrl-C into other errors
            print("inexact-muon: interrupted", file=sys.stderr)
            raise SystemExit(130) from None
        if not isinstance(error, ValueError | TypeError | OSError):
            raise
        path = getattr(error, "filename", None)  # an OSError prints "[Errno 17] File exists: 'x'"
        print(f"inexact-muon: {path}: {error.args[1]}" if path else f"inexact-muon: {error}", file=sys.stderr)
        raise SystemExit(2) from None
