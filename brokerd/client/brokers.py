"""Which broker of a list a client tries next, and when: what a line decides, without dialling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

RECONNECT_FIRST_S: Final = 0.1
RECONNECT_LIMIT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """What to do next: wait for `pause_s`, then try the broker at `address`."""

    address: str
    pause_s: float


@dataclass(frozen=True, slots=True)
class NobodyTakesUs:
    """Nothing is left to be tried; `reason` says what the brokers said."""

    reason: str


class Brokers:
    """The brokers of a client in the order they were given, each address once.

    It stays with the one it has. When an attempt there has come to nothing, and the client may
    leave, the next one follows at once; after each full round it pauses, longer each time.

    Attributes:
        address: of the broker that it has, or tries to reach.
        pinned: stay with that one for now, whatever happens.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(dict.fromkeys(addresses))
        self.address = self._addresses[0] if self._addresses else ""
        self.pinned = False
        self._tried = 0
        self._pause_s = RECONNECT_FIRST_S
        self._refusals: dict[str, str] = {}

    @property
    def is_list(self) -> bool:
        """Whether there is more than one."""
        return len(self._addresses) > 1

    @property
    def has_others(self) -> bool:
        """Whether there is another broker to go to."""
        return self.is_list and not self.pinned

    def beginning_with(self, address: str) -> "Brokers":
        """The same, but `address` is tried first; that one only, where there is no list."""
        if not self.is_list:
            return Brokers([address])
        at = self._addresses.index(address) if address in self._addresses else 0
        return Brokers([address, *self._addresses[at:], *self._addresses[:at]])

    def attached(self) -> None:
        """The broker knows the client: what went before counts no more."""
        self._tried = 0
        self._pause_s = RECONNECT_FIRST_S
        self._refusals.clear()

    def lost(self) -> Attempt:
        """A session on which the broker knew the client is over."""
        self.attached()
        return self._after_a_round()

    def failed(self, *, may_leave: bool, spoken: bool = False) -> Attempt:
        """An attempt has come to nothing; `spoken` where there was a session at least."""
        self._refusals.pop(self.address, None)
        if spoken:
            self._pause_s = RECONNECT_FIRST_S
        return self._next(may_leave)

    def refused(self, reason: str, *, may_leave: bool) -> Attempt | NobodyTakesUs:
        """The broker does not take the client, now or later.

        It is asked again in the next round, unless all the others have refused in this one.
        """
        if not (may_leave and self.has_others):
            return NobodyTakesUs(reason)
        self._refusals[self.address] = reason
        if len(self._refusals) == len(self._addresses):
            told = [f"{address}: {self._refusals[address]}" for address in self._addresses]
            return NobodyTakesUs("; ".join(told))
        return self._next(may_leave)

    def _next(self, may_leave: bool) -> Attempt:
        if not (may_leave and self.has_others):
            return self._after_a_round()
        place = self._addresses.index(self.address) + 1
        self.address = self._addresses[place % len(self._addresses)]
        self._tried += 1
        if self._tried % len(self._addresses):
            return Attempt(self.address, 0.0)
        return self._after_a_round()

    def _after_a_round(self) -> Attempt:
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, RECONNECT_LIMIT_S)
        return Attempt(self.address, pause_s)
