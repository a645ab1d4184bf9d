"""Runs the fuzzers (tests/test_fuzz_*.py) with new seeds until the time is over: `make fuzz MINUTES=30`.

A finding stops it; `python tools/fuzz.py --seed SEED --rounds 1` repeats the round in which it was found.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> int:
    """Exit code 0 if nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=sys.maxsize)
    parser.add_argument("--examples", type=int, default=100, help="of each fuzzer in a round")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    files = sorted(map(str, (ROOT / "tests").glob("test_fuzz_*.py")))
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    tally = Path(tempfile.mkdtemp()) / "tally.json"
    environment = {**os.environ, "INEXACT_MUON_FUZZ": str(given.examples), "OMP_NUM_THREADS": "1"}
    environment["INEXACT_MUON_FUZZ_TALLY"] = str(tally)
    end, done = time.monotonic() + 60.0 * given.minutes, 0
    while done < given.rounds and (done == 0 or time.monotonic() < end):
        print(f"round {done + 1}: seed {seed}, {given.examples} examples of each fuzzer", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "--hypothesis-seed", str(seed), "-m", "not long"]
        if subprocess.run([*command, *files], cwd=ROOT, env=environment, check=False).returncode:
            print(f"found something: python tools/fuzz.py --seed {seed} --rounds 1 --examples {given.examples}")
            return 1
        seed, done = seed + 1, done + 1
    numbers = ", ".join(f"{count:,} {kind}" for kind, count in json.loads(tally.read_text()).items())
    print(f"nothing found in {done} rounds of {given.examples} examples of each fuzzer: {numbers}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
