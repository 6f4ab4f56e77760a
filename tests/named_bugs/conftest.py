"""Fixtures that the stories of other folders obtain from their own folder."""

import signal
from collections.abc import Iterator

import pytest

from tests.pubsubctl.conftest import call, project

__all__ = ("call", "project")


@pytest.fixture(autouse=True)
def restored_handlers() -> Iterator[None]:
    """Restore the handlers of signals that stories of watchdogs replace."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
