"""Listening to events, whatever a program in the same process has made of the logger."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from subnet.log import LOGGER


class _Ear(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.names.append(record.getMessage())


@contextmanager
def hearing() -> Iterator[list[str]]:
    """Names of events as they happen, from INFO on."""
    ear = _Ear()
    with same_logger():
        LOGGER.addHandler(ear)
        LOGGER.setLevel(logging.INFO)
        yield ear.names


@contextmanager
def same_logger() -> Iterator[None]:
    """Leaves the logger as it was."""
    handlers, level, propagate = list(LOGGER.handlers), LOGGER.level, LOGGER.propagate
    try:
        yield
    finally:
        LOGGER.handlers[:], LOGGER.propagate = handlers, propagate
        LOGGER.setLevel(level)
