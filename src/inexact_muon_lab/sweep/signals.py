"""Ctrl-C and SIGTERM as a flag to poll."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Set by the first signal; the second one interrupts immediately, unless `patient`."""

    def __init__(self, patient: bool = False) -> None:
        self.asked, self.patient = False, patient

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked and not self.patient:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def interrupts(patient: bool = False) -> Iterator[Stop]:
    """Handle Ctrl-C and SIGTERM by a `Stop`, within the context."""
    stop = Stop(patient)
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
