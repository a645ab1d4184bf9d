"""Commands run in this process, which saves the seconds of starting another one."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from typing import Any
from unittest import mock

from inexact_muon_lab import cli


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


def refused(*words: str) -> str:
    """The one sentence with which a command ends that cannot do what it was asked."""
    code, _, err = said(*words)
    assert code == 2
    assert err.count("\n") == 1, err
    return err
