"""A shared timer for all short delays in a process.

A timer per connection would cost as much per connection as a publication.
"""

from collections.abc import Callable

import trio

from brokerd.units import SECOND_NS

Due = Callable[[int], None]
"""A callback for an instant; called with the time, and may request another instant."""

_process: trio.lowlevel.RunVar["Sweeper | None"] = trio.lowlevel.RunVar("sweeper", default=None)


class Sweeper:
    """A timer that calls callbacks at their instants, or soon after."""

    def __init__(self) -> None:
        self._instants: dict[Due, int] = {}
        self._earlier = trio.Event()
        self._wakes_ns = 0

    def call(self, due: Due, at_ns: int) -> None:
        """Schedule `due` for `at_ns`, in place of any earlier instant."""
        self._instants[due] = at_ns
        if not self._wakes_ns or at_ns < self._wakes_ns:
            self._earlier.set()

    def forget(self, due: Due) -> None:
        """Cancel the call of `due`."""
        self._instants.pop(due, None)

    async def run(self) -> None:
        """Call for ever."""
        while True:
            self._earlier = trio.Event()
            if not self._instants:
                self._wakes_ns = 0
                await self._earlier.wait()
                continue
            self._wakes_ns = min(self._instants.values())
            with trio.move_on_at(self._wakes_ns / SECOND_NS):
                await self._earlier.wait()
            now_ns = round(trio.current_time() * SECOND_NS)
            for due in [due for due, at_ns in self._instants.items() if at_ns <= now_ns]:
                self._instants.pop(due, None)
                due(now_ns)


def process_sweeper() -> Sweeper:
    """Return the sweeper of this process, which runs as long as its event loop."""
    sweeper = _process.get()
    if sweeper is None:
        sweeper = Sweeper()
        _process.set(sweeper)
        trio.lowlevel.spawn_system_task(sweeper.run)
    return sweeper
