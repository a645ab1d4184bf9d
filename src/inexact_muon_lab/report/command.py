"""The command `report`: once, or live."""

from __future__ import annotations

import webbrowser
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.report import serve as live
from inexact_muon_lab.report.build import announce, build


def report(folder: Path, out: Path | None, console: Console, open_page: bool, watch: bool, serve: bool) -> None:
    """Write the page, into the folder or beside a packed file; open, watch or serve it on request."""
    if out is None:
        out = folder.with_suffix("") if folder.is_file() else folder
        if out == folder and folder.is_file():
            raise LabError(f"{folder} is a file without suffix: name a folder for the page with --out FOLDER")
    built = build(folder, console, out=out)
    announce(built, console)
    with ExitStack() as stack:
        address = built.page.resolve().as_uri()
        if serve:
            address = stack.enter_context(live.serving(out))
            console.print(f"serving {address} to this machine only", highlight=False, soft_wrap=True)
        if open_page:
            webbrowser.open(address)
        if watch or serve:
            live.watch(folder, console, out)
