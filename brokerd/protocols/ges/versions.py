"""Versions of the statements of brokers, and of statements in their place.

A broker skips every other number. The skipped number is for brokers that make a statement in its
place when it seems to have failed for ever, all under the same version; any later statement of the
broker itself has a later version.
"""

Version = tuple[int, int]
"""The incarnation of the broker, and a counter within it."""

FIRST = 0
_STEP = 2


def after(number: int) -> int:
    """Return the number of the next own statement of a broker, after any number."""
    return number + _STEP - number % _STEP


def in_its_place(version: Version) -> Version:
    """Return the version of a statement in the place of a broker with this latest version."""
    incarnation, number = version
    return incarnation, number + 1


def is_its_own(version: Version) -> bool:
    """Return True if the broker itself made the statement."""
    return version[1] % _STEP == 0
