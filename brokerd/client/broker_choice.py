"""The choice of the broker that a client tries next, and of the pause before, without dialling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

RECONNECT_FIRST_S: Final = 0.1
RECONNECT_LIMIT_S: Final = 2.0
REDIRECTED_FOR_S: Final = 30.0
"""Time for which a client stays after a redirect, so that redirects form no circle."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The next step: wait for `pause_s`, then try the broker at `address`."""

    address: str
    pause_s: float


@dataclass(frozen=True, slots=True)
class AllRefused:
    """The end of all attempts; `reason` contains the replies of the brokers."""

    reason: str


class Brokers:
    """The brokers of a client in the given order, without repeated addresses.

    The client stays with its broker. When an attempt has failed, and the client may leave, the next
    broker follows at once; after each full round the client pauses, longer each time.

    Args:
        elsewhere: brokers that are tried only after a redirect to them.

    Attributes:
        address: address of the present broker, or of the broker that is tried.
        pinned: True while the client must stay with that broker in every case.
    """

    def __init__(self, addresses: Sequence[str], elsewhere: Sequence[str] = ()) -> None:
        self._addresses = list(dict.fromkeys(addresses))
        self._other_brokers = tuple(elsewhere)
        self.address = self._addresses[0] if self._addresses else ""
        self.pinned = False
        self._is_redirected = False
        self._redirected_s: float | None = None
        self._tried = 0
        self._pause_s = RECONNECT_FIRST_S
        self._refusals: dict[str, str] = {}

    @property
    def is_list(self) -> bool:
        """Return True if there is more than one broker."""
        return len(self._addresses) > 1

    @property
    def has_others(self) -> bool:
        """Return True if there is another broker to try."""
        return self.is_list and not self.pinned

    def starting_with(self, address: str) -> "Brokers":
        """Return the same brokers with `address` first; only `address`, if there is no list."""
        if not self.is_list:
            return Brokers([address], self._other_brokers)
        at = self._addresses.index(address) if address in self._addresses else 0
        return Brokers([address, *self._addresses[at:], *self._addresses[:at]], self._other_brokers)

    def on_redirect(self, addresses: Sequence[str], now_s: float) -> bool:
        """Handle a redirect to one of these addresses, best first; return True if the client moves.

        The client moves only to addresses that it was given itself, and not again within
        `REDIRECTED_FOR_S`. Then the session must end; `lost` returns the next broker.
        """
        came_s = self._redirected_s
        if self.pinned or (came_s is not None and now_s - came_s < REDIRECTED_FOR_S):
            return False
        known = (*self._addresses, *self._other_brokers)
        found = [each for each in addresses if each in known and each != self.address]
        if not found:
            return False
        self.address = found[0]
        if self.address not in self._addresses:
            self._addresses.append(self.address)
        self._is_redirected, self._redirected_s = True, now_s
        return True

    def attached(self) -> None:
        """Record an attachment: earlier failures no longer count."""
        self._tried = 0
        self._pause_s = RECONNECT_FIRST_S
        self._refusals.clear()

    def on_lost(self) -> Attempt:
        """Return the next attempt after the end of an attached session."""
        self.attached()
        if self._is_redirected:
            self._is_redirected = False
            return Attempt(self.address, 0.0)
        return self._next_round()

    def failed(self, *, may_leave: bool, spoken: bool = False) -> Attempt:
        """Return the next attempt after a failure.

        `spoken` is True if there was a session at least.
        """
        self._refusals.pop(self.address, None)
        if spoken:
            self._pause_s = RECONNECT_FIRST_S
        return self._next(may_leave)

    def on_refusal(self, reason: str, *, may_leave: bool) -> Attempt | AllRefused:
        """Return the next attempt after a broker refused the client, now or later.

        The broker is tried again in the next round, unless all others have refused in this round.
        """
        if not (may_leave and self.has_others):
            return AllRefused(reason)
        self._refusals[self.address] = reason
        if len(self._refusals) == len(self._addresses):
            refusals = [f"{address}: {self._refusals[address]}" for address in self._addresses]
            return AllRefused("; ".join(refusals))
        return self._next(may_leave)

    def _next(self, may_leave: bool) -> Attempt:
        if not (may_leave and self.has_others):
            return self._next_round()
        place = self._addresses.index(self.address) + 1
        self.address = self._addresses[place % len(self._addresses)]
        self._tried += 1
        if self._tried % len(self._addresses):
            return Attempt(self.address, 0.0)
        return self._next_round()

    def _next_round(self) -> Attempt:
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, RECONNECT_LIMIT_S)
        return Attempt(self.address, pause_s)
