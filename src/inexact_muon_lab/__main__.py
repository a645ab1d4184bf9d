"""`python -m inexact_muon_lab` is the command `inexact-muon`.

Ctrl-C during the import of the command line also exits with one line.
"""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Entry point."""
    before = signal.signal(signal.SIGINT, _leave)
    try:
        from inexact_muon_lab.cli import main as command
    except ModuleNotFoundError as error:
        if error.name != "tyro":
            raise
        sys.exit("inexact-muon: the command needs the extra `cli`: pip install 'inexact-muon[cli]'")
    signal.signal(signal.SIGINT, before)
    command()


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"inexact-muon: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
