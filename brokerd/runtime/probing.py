"""Probes of the surrounding brokers, each repeated until the broker was reached once."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import trio

from brokerd.model.identity import BrokerNumber
from brokerd.runtime.links import Links

FIRST_RETRY_S: Final = 0.25
RETRY_LIMIT_S: Final = 4.0
"""Longest interval between probes of an unreachable broker.

Without growing intervals, of hundreds of brokers that start together each would dial all brokers
around it again and again, and none would finish its start.
"""
_UNTRIED: Final = "not tried yet"


class PeerProbes:
    """The probes of each surrounding broker until it was reached.

    Args:
        around: the brokers to reach.
        is_near: returns True if a broker that reached this broker can be reached in turn, because
            both are on one machine.
    """

    def __init__(
        self,
        links: Links,
        around: Iterable[BrokerNumber],
        is_near: Callable[[BrokerNumber], bool] = lambda _peer: False,
    ) -> None:
        self._links = links
        self._is_near = is_near
        self._missing: dict[BrokerNumber, str] = dict.fromkeys(around, _UNTRIED)
        self._answered: dict[BrokerNumber, None] = {}
        self._changed = trio.Event()

    def missing(self) -> Mapping[BrokerNumber, str]:
        """Return the brokers that were not reached yet, with the obstacle."""
        return self._missing

    def keep(self, around: Collection[BrokerNumber]) -> None:
        """Replace the surrounding brokers; all of them are to be reached."""
        self._missing = {peer: self._missing.get(peer, _UNTRIED) for peer in around}
        self._changed.set()

    def on_reached(self, peer: BrokerNumber) -> None:
        """Record that a broker has reached this broker, so the other broker is up."""
        if peer not in self._missing:
            return
        if self._is_near(peer) and not [*self._links.faults]:
            del self._missing[peer]
        else:
            self._answered[peer] = None
            self._changed.set()

    async def run(self) -> None:
        """Probe for ever: missing brokers, and brokers that have just reached this broker."""
        wait_s = FIRST_RETRY_S
        while True:
            self._changed = trio.Event()
            answered, self._answered = self._answered, {}
            await self._try_missing(answered or self._missing)
            if not self._missing:
                wait_s = FIRST_RETRY_S
            with trio.move_on_after(wait_s if self._missing else float("inf")) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                wait_s = min(2 * wait_s, RETRY_LIMIT_S)

    async def try_all(self, around: Iterable[BrokerNumber]) -> None:
        """Probe all given brokers again, once."""
        self._missing = dict.fromkeys(around, _UNTRIED)
        await self._try_missing(self._missing)

    async def _try_missing(self, peers: Collection[BrokerNumber]) -> None:
        """Probe the missing ones of some brokers; a broker with a session is not missing."""
        for peer in self._links.session_peers():
            if isinstance(peer, int):
                self._missing.pop(peer, None)
        async with trio.open_nursery() as nursery:
            for peer in [peer for peer in peers if peer in self._missing]:
                nursery.start_soon(self._try_one, peer)

    async def _try_one(self, peer: BrokerNumber) -> None:
        why = await self._links.probe(peer)
        if why is None:
            self._missing.pop(peer, None)
        elif peer in self._missing:
            self._missing[peer] = why
