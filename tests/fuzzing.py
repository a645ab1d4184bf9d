"""What the fuzzers share: how long they run, and commands run in this process.

A few examples in the fast tier, always the same; in `make fuzz` as many as it says. `make fuzz` runs the files
test_fuzz_*.py again and again, with seeds that it prints, until its minutes are over.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, settings

from inexact_muon import cli

EXAMPLES = int(os.environ.get("INEXACT_MUON_FUZZ", "0"))
"""Examples of each fuzzer in `make fuzz`; 0 in the fast tier."""

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


def said(*words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command; warnings are shown, as they are to a user."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    code: Any = 0
    arguments = mock.patch.object(sys, "argv", ["inexact-muon", *words])
    with arguments, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("default")
        try:
            cli.main()
        except SystemExit as error:
            code = error.code
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return code or 0, texts[0], texts[1]
