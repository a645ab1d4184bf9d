"""The command `report`: once, or live: rewritten while a sweep goes on, and served to this machine alone."""

from __future__ import annotations

import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Console

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.report import tables
from inexact_muon_lab.report.build import FILES, PAGE, TEXT, announce, build
from inexact_muon_lab.report.shown import Shown
from inexact_muon_lab.store import store
from inexact_muon_lab.store.pack import is_packed

HOST = "127.0.0.1"
EVERY = 10
"""Seconds between checks of the stores, and between reloads of the page."""
TYPES = {".html": "text/html", ".md": "text/plain", ".csv": "text/csv", ".svg": "image/svg+xml", ".png": "image/png"}


def report(
    folder: Path,
    out: Path | None,
    console: Console,
    open_page: bool,
    live: bool,
    serve: bool,
    write: Callable[[Any], None] | None = None,
) -> None:
    """Write the page, into the folder or beside a packed file; open it, keep it up to date or serve it on request.

    Args:
        write: gets the verdicts as plain data, instead of the console.
    """
    if out is None:
        out = folder.with_suffix("") if folder.is_file() else folder
        if out == folder and folder.is_file():
            raise LabError(f"{folder} is a file without suffix: name a folder for the page with --out FOLDER")
    built = build(folder, console, out=out)
    if write is not None:
        write(record(built))
    else:
        announce(built, console)
    with ExitStack() as stack:
        address = built.page.resolve().as_uri()
        if serve:
            address = stack.enter_context(serving(out))
            console.print(f"serving {address} to this machine only", highlight=False, soft_wrap=True)
        if open_page:
            webbrowser.open(address)
        if live or serve:
            watch(folder, console, out)


def record(built: Shown) -> dict[str, Any]:
    """Page, problems, advice and every verdict with its numbers, in the units of the statistics."""
    verdicts = [
        item.record
        | {
            "sentence": item.claim.sentence,
            "counted": item.claim.id in built.counted,
            "evidence": item.finding.evidence,
            "n": item.finding.interval.n,
            "paper": item.claim.paper,
            "note": item.finding.note,
        }
        for item in built.judged
    ]
    return {"page": str(built.page), "problems": built.problems, "advice": built.advice, "claims": verdicts}


def stamp(folder: Path) -> tuple[tuple[str, int], ...]:
    """Changes when a run begins, records something or ends, and when a table is written."""
    files = tables.find(folder)
    for path in store.places(folder):
        if is_packed(path):
            files += [path, path.parent]
        else:
            files += [path / store.INDEX, path / f"{store.INDEX}-wal", *path.glob(f"runs/*/{store.CURVES}")]
    # readers leave an empty log behind: ignore it
    return tuple((str(f), f.stat().st_mtime_ns) for f in files if f.is_file() and f.stat().st_size)


def watch(folder: Path, console: Console, out: Path, every: float = EVERY, rounds: int | None = None) -> None:
    """Rebuild the page whenever the stores change, until Ctrl-C; then once more, completely.

    Args:
        out: folder of the page.
        rounds: number of checks; None for no limit.
    """
    last: tuple[tuple[str, int], ...] | None = None
    console.print(f"watching {folder}; Ctrl-C to stop", highlight=False, soft_wrap=True)
    try:
        while rounds is None or rounds > 0:
            if (now := stamp(folder)) != last:
                last = now
                build(folder, refresh=EVERY, pictures=False, out=out)
                console.print(f"{time.strftime('%H:%M:%S')} {out / PAGE}", highlight=False, soft_wrap=True)
            rounds = None if rounds is None else rounds - 1
            time.sleep(every)
    except KeyboardInterrupt:
        console.print("finishing the page")
    build(folder, console, out=out)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the page, report.md and report/*, nothing else, to this machine only; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files = {PAGE: folder / PAGE, TEXT: folder / TEXT}
            files |= {f"{FILES}/{file.name}": file for file in (folder / FILES).glob("*")}
            file = files.get(self.path.partition("?")[0].lstrip("/") or PAGE)
            host = self.headers.get("Host", "").partition(":")[0]
            if host not in (HOST, "localhost") or file is None or not file.is_file():  # prevents DNS rebinding
                self.send_error(404)
                return
            content = file.read_bytes()
            self.send_response(200)
            self.send_header("Content-Type", f"{TYPES.get(file.suffix, 'application/octet-stream')}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((HOST, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
