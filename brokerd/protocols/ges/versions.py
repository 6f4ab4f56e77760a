"""Versions of what brokers say of themselves, and of what is said in their place.

A broker leaves out every other number. It is taken by those who speak for it when it seems to be
gone for ever, all of them alike; whatever it says later is a later version.
"""

Version = tuple[int, int]
"""The incarnation of the broker that it is of, and a counter within it."""

FIRST = 0
_STEP = 2


def after(number: int) -> int:
    """The number of the next thing that a broker says of itself, after any."""
    return number + _STEP - number % _STEP


def in_its_place(version: Version) -> Version:
    """That of what is said for a broker whose latest version is this one."""
    incarnation, number = version
    return incarnation, number + 1


def is_its_own(version: Version) -> bool:
    """Whether the broker itself said it."""
    return version[1] % _STEP == 0
