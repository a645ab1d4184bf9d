"""Runs the fuzzers (tests/test_fuzz_*.py) with new seeds until the time is over: `make fuzz MINUTES=30`.

A finding stops it; `python tools/fuzz.py --seed SEED --rounds 1` repeats the round in which it was found.
`--only oracles --page docs/guarantees.md` writes the table of worst ratios into the page.
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

from marks import between, page_file

ROOT = Path(__file__).parent.parent
COMMAND = "python tools/fuzz.py --only oracles --page docs/guarantees.md"


def table(worst: dict[str, tuple[int, float]], summary: str) -> str:
    """What was searched, evaluations and the worst ratio of error to promise, in Markdown."""
    rows = [f"| {what} | {count:,} | {ratio:.3f} |" for what, (count, ratio) in sorted(worst.items())]
    head = "| promise | evaluations | worst ratio |\n|---|---:|---:|\n"
    return f"{summary[0].upper()}{summary[1:]}.\n\n{head}" + "\n".join(rows) + "\n"


def main() -> int:
    """Exit code 0 if nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=sys.maxsize)
    parser.add_argument("--examples", type=int, default=100, help="of each fuzzer in a round")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="*", help="a fuzzer, such as oracles, the adversarial search")
    parser.add_argument("--page", type=page_file, help="writes the table of worst ratios between the marks of a page")
    arguments = parser.parse_args()
    files = sorted(map(str, (ROOT / "tests").glob(f"test_fuzz_{arguments.only}.py")))
    if not files:
        parser.error(f"there is no tests/test_fuzz_{arguments.only}.py")
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    tally = Path(tempfile.mkdtemp()) / "tally.json"
    environment = {**os.environ, "INEXACT_MUON_FUZZ": str(arguments.examples), "OMP_NUM_THREADS": "1"}
    environment["INEXACT_MUON_FUZZ_TALLY"] = str(tally)
    end, done = time.monotonic() + 60.0 * arguments.minutes, 0
    while done < arguments.rounds and (done == 0 or time.monotonic() < end):
        print(f"round {done + 1}: seed {seed}, {arguments.examples} examples of each fuzzer", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "--hypothesis-seed", str(seed), "-m", "not long"]
        if subprocess.run([*command, *files], cwd=ROOT, env=environment, check=False).returncode:
            print(f"found something: python tools/fuzz.py --seed {seed} --rounds 1 --examples {arguments.examples}")
            return 1
        seed, done = seed + 1, done + 1
    tallied = json.loads(tally.read_text())
    numbers = ", ".join(f"{count:,} {kind}" for kind, count in tallied["counts"].items())
    summary = f"nothing found in {done} rounds of {arguments.examples} examples of each fuzzer: {numbers}"
    print(summary)
    if tallied["worst"]:
        print(table(tallied["worst"], f"seeds {seed - done} to {seed - 1}"))
    if arguments.page is not None:
        text = table(tallied["worst"], f"seeds {seed - done} to {seed - 1}, {summary}")
        arguments.page.write_text(between(arguments.page.read_text(), {"worst ratios": text}, COMMAND))
    return 0


if __name__ == "__main__":
    sys.exit(main())
