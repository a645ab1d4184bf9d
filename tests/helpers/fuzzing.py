"""How long the fuzzers run: a few examples in the fast tier, always the same; in `make fuzz` as many as it says.

`make fuzz` runs the files test_fuzz_*.py again and again, with seeds that it prints, until its minutes are over.
"""

from __future__ import annotations

import atexit
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("INEXACT_MUON_FUZZ", "0"))
"""Examples of each fuzzer in `make fuzz`; 0 in the fast tier."""

TALLY: Counter[str] = Counter()
"""How many programs, kills, files and commands there were; added to the file that `make fuzz` names."""


WORST: dict[str, tuple[int, float]] = {}
"""What was searched -> evaluations and the largest ratio of error to promise."""


def worst(what: str, evaluations: int, ratio: float) -> None:
    """Count the evaluations and remember the ratio if it is the largest so far."""
    before, largest = WORST.get(what, (0, 0.0))
    WORST[what] = (before + evaluations, max(ratio, largest))


@atexit.register
def _write_tally() -> None:
    if (TALLY or WORST) and "INEXACT_MUON_FUZZ_TALLY" in os.environ:
        path = Path(os.environ["INEXACT_MUON_FUZZ_TALLY"])
        before = json.loads(path.read_text()) if path.exists() else {"counts": {}, "worst": {}}
        for what, (evaluations, ratio) in before["worst"].items():
            worst(what, evaluations, ratio)
        path.write_text(json.dumps({"counts": Counter(before["counts"]) + TALLY, "worst": WORST}))


SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example)


def fuzz(short: int, **more: Any) -> settings:
    """Settings of a fuzzer that has so many examples in the fast tier."""
    return settings(
        max_examples=EXAMPLES or short,
        deadline=None,
        database=None,
        derandomize=not EXAMPLES,
        suppress_health_check=SLOW,
        **more,
    )
