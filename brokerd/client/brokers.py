"""Which broker of a list a client tries next, and when: what a line decides, without dialling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

RECONNECT_FIRST_S: Final = 0.1
RECONNECT_LIMIT_S: Final = 2.0
REDIRECTED_FOR_S: Final = 30.0
"""Who has gone where it was told to stays there for so long: so it goes in no circles."""


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

    Args:
        elsewhere: brokers that are tried only once its broker has told it to go there.

    Attributes:
        address: of the broker that it has, or tries to reach.
        pinned: stay with that one for now, whatever happens.
    """

    def __init__(self, addresses: Sequence[str], elsewhere: Sequence[str] = ()) -> None:
        self._addresses = list(dict.fromkeys(addresses))
        self._elsewhere = tuple(elsewhere)
        self.address = self._addresses[0] if self._addresses else ""
        self.pinned = False
        self._is_redirected = False
        self._redirected_s: float | None = None
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
            return Brokers([address], self._elsewhere)
        at = self._addresses.index(address) if address in self._addresses else 0
        return Brokers([address, *self._addresses[at:], *self._addresses[:at]], self._elsewhere)

    def redirected(self, addresses: Sequence[str], now_s: float) -> bool:
        """Its broker tells it to go to one of these, the best first; whether it is to go.

        It goes to those only that it was given itself, and not again within `REDIRECTED_FOR_S`.
        Then the session is to end; `lost` says where the next one is.
        """
        came_s = self._redirected_s
        if self.pinned or (came_s is not None and now_s - came_s < REDIRECTED_FOR_S):
            return False
        known = (*self._addresses, *self._elsewhere)
        found = [each for each in addresses if each in known and each != self.address]
        if not found:
            return False
        self.address = found[0]
        if self.address not in self._addresses:
            self._addresses.append(self.address)
        self._is_redirected, self._redirected_s = True, now_s
        return True

    def attached(self) -> None:
        """The broker knows the client: what went before counts no more."""
        self._tried = 0
        self._pause_s = RECONNECT_FIRST_S
        self._refusals.clear()

    def lost(self) -> Attempt:
        """A session on which the broker knew the client is over."""
        self.attached()
        if self._is_redirected:
            self._is_redirected = False
            return Attempt(self.address, 0.0)
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
