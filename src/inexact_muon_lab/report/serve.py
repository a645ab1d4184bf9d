"""Keeps the page up to date during a sweep, on disk and optionally on this machine's loopback address."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rich.console import Console

from inexact_muon_lab.report import tables
from inexact_muon_lab.report.build import FILES, PAGE, TEXT, build
from inexact_muon_lab.store import store
from inexact_muon_lab.store.pack import is_packed

HOST = "127.0.0.1"
EVERY = 10
"""Seconds between checks of the stores, and between reloads of the page."""
TYPES = {".html": "text/html", ".md": "text/plain", ".csv": "text/csv", ".svg": "image/svg+xml", ".png": "image/png"}


def stamp(folder: Path) -> tuple[tuple[str, int], ...]:
    """Changes when a run begins, records something or ends, and when a table is written."""
    files = tables.find(folder)
    for path in store.places(folder):
        files += (
            (path, path.parent)
            if is_packed(path)
            else (path / store.INDEX, path / f"{store.INDEX}-wal", *path.glob(f"runs/*/{store.CURVES}"))
        )
    # readers leave an empty log behind: ignore it
    return tuple((str(f), f.stat().st_mtime_ns) for f in files if f.is_file() and f.stat().st_size)


def watch(folder: Path, console: Console, out: Path, every: float = EVERY, rounds: int | None = None) -> None:
    """Rebuild the page whenever the stores change, until Ctrl-C; then once more, completely.

    Args:
        out: folder of the page.
        rounds: number of checks; None for no limit.
    """
    last_stamp: tuple[tuple[str, int], ...] | None = None
    console.print(f"watching {folder}; Ctrl-C to stop", highlight=False, soft_wrap=True)
    try:
        while rounds is None or rounds > 0:
            now = stamp(folder)
            if now != last_stamp:
                last_stamp = now
                build(folder, refresh=EVERY, pictures=False, out=out)
                console.print(f"{time.strftime('%H:%M:%S')} {out / PAGE}", highlight=False, soft_wrap=True)
            rounds = None if rounds is None else rounds - 1
            time.sleep(every)
    except KeyboardInterrupt:
        console.print("finishing the page")
    build(folder, console, out=out)


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[str]:
    """Serve only the report's files, to this machine only; yields the address."""
    server = ThreadingHTTPServer((HOST, port), _handler(folder))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def allowed(folder: Path, path: str) -> Path | None:
    """The file of an address: the page, report.md and report/*; None for anything else."""
    name = path.partition("?")[0].lstrip("/") or PAGE
    files = {PAGE: folder / PAGE, TEXT: folder / TEXT}
    files |= {f"{FILES}/{file.name}": file for file in (folder / FILES).glob("*")}
    return files.get(name)


def _handler(folder: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = self.headers.get("Host", "").partition(":")[0]
            file = allowed(folder, self.path) if host in (HOST, "localhost") else None  # prevents DNS rebinding
            if file is None or not file.is_file():
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

    return Handler
