"""Versions that are too far ahead of the recorded version: no broker can have stated both.

A version is an incarnation of a broker, and a number within the incarnation. A version near the end
of the range would leave a broker no later version to answer with, so a peer that states such a
version is refused. From a recorded version a forger can only advance by one bound per message.
"""

from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import INCARNATION_LEAP, BrokerNumber, Peer, is_incarnation_leap

NUMBER_LEAP: Final = 1 << 32
"""No broker changes its statement this often between two statements."""


def is_leap(earlier: tuple[int, int], later: tuple[int, int]) -> bool:
    """Return True if a version is later than another one by more than a broker can advance."""
    begins_at = earlier[1] if later[0] == earlier[0] else 0
    is_ahead = later[0] - earlier[0] > INCARNATION_LEAP or later[1] - begins_at > NUMBER_LEAP
    return later > earlier and is_ahead


def check_generation(peer: Peer, number: int, known: int, stated: int) -> None:
    """Check that a counter in a peer's message does not leap from the recorded counter.

    Raises:
        RemoteProtocolError: the counter leaps.
    """
    if is_leap((0, known), (0, stated)):
        raise RemoteProtocolError(peer, f"generation {stated} of {number} leaps from {known}")


def check_incarnation(peer: Peer, broker: BrokerNumber, known: int, stated: int) -> None:
    """Check that an incarnation in a peer's message does not leap from an earlier incarnation.

    Raises:
        RemoteProtocolError: the incarnation leaps.
    """
    if is_incarnation_leap(known, stated):
        raise RemoteProtocolError(
            peer, f"incarnation {stated} of broker {broker} leaps from {known}"
        )
