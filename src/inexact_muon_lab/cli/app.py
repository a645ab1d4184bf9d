"""The command `inexact-muon`: the table of commands, Ctrl-C, errors and warnings as sentences.

Each command imports what it needs inside its function.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import tyro

import inexact_muon
from inexact_muon._text import printable
from inexact_muon_lab.cli.oracles import bench, delta, plan, theory, transfer
from inexact_muon_lab.cli.runs import decide, demo, list_runs, pack, report, run, show, sweep
from inexact_muon_lab.cli.settings import separate_settings
from inexact_muon_lab.errors import LabWarning

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

others = warnings.showwarning
"""Prints warnings of other kinds."""

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


def prepare() -> Interrupts:
    """Set up streams, warnings and Ctrl-C of this process."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # paths and exceptions may contain lone surrogates
    warnings.showwarning = show_warning
    return Interrupts()


def discard_output() -> None:
    """Nothing more is written to standard output, also not what is left in its buffer when Python ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(sentence: str) -> None:
    """A sentence of this command on standard error; text from files does not control the terminal."""
    print(f"inexact-muon: {printable(sentence)}", file=sys.stderr)


class Interrupts:
    """Records Ctrl-C before Python raises it: extension modules may swallow the exception during import."""

    def __init__(self) -> None:
        self.triggered = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.triggered = True
        raise KeyboardInterrupt


def show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Print a LabWarning as one sentence, other warnings as Python does."""
    if issubclass(category, LabWarning):
        say(f"warning: {message}")
    else:
        others(message, category, *where, **more)


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
