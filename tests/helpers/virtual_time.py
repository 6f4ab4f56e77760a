"""Tests on trio with a clock that jumps to the next event."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import trio
import trio.testing

AsyncTest = Callable[..., Any]


def in_virtual_time(test: AsyncTest) -> AsyncTest:
    """Run an asynchronous test with a clock that never waits."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        async def run_bounded() -> None:
            with trio.fail_after(1_000):
                await test(**arguments)

        trio.run(run_bounded, clock=trio.testing.MockClock(autojump_threshold=0))

    return run
