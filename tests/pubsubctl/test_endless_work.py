"""Stories of endless work, which a signal ends: the normal exit for Ctrl-C alone."""

import os
import signal

import pytest
import trio

from pubsubctl.console.interruption import until_interrupted
from pubsubctl.errors import Terminated


def ended_by(number: int) -> list[str]:
    """Run endless work, send a signal to this process, and return the steps of the work."""
    steps: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), number)
        try:
            await trio.sleep_forever()
        finally:
            steps.append("cancelled")

    trio.run(until_interrupted, work)
    return steps


def test_ctrl_c_is_the_normal_exit() -> None:
    assert ended_by(signal.SIGINT) == ["cancelled"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_another_signal_is_an_error_with_its_name(number: int) -> None:
    with pytest.raises(Terminated, match=f"terminated by {signal.Signals(number).name}"):
        ended_by(number)


def test_work_may_end_and_its_error_is_its_own() -> None:
    async def end() -> None:
        await trio.lowlevel.checkpoint()

    async def fail() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_fail)

    async def _fail() -> None:
        raise KeyError("k")

    trio.run(until_interrupted, end)
    with pytest.raises(KeyError, match="k"):
        trio.run(until_interrupted, fail)
