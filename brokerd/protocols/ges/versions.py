"""Versions of what brokers say of themselves, and of what is said in their place.

A broker leaves out every other number. It is taken by those who speak for it when it seems to be
gone for ever, all of them alike; whatever it says later is a later version.
"""

Version = tuple[int, int]
"""The incarnation of the broker that it is of, and a counter within it."""

INCARNATION_LEAP = 1 << 16
NUMBER_LEAP = 1 << 32
"""No broker restarts, or changes what it states, so often between two of its statements."""

FIRST = 0
_STEP = 2


def after(number: int) -> int:
    """The number of the next thing that a broker says of itself, after any."""
    return number + _STEP - number % _STEP


def in_its_place(version: Version) -> Version:
    """That of what is said for a broker whose latest version is this one."""
    incarnation, number = version
    return incarnation, number + 1


def is_leap(earlier: Version, later: Version) -> bool:
    """Return True if no broker can have stated both: the later is too far ahead of the earlier.

    A version that leaps is forged or damaged. Taken, it would leave its broker no later version to
    answer with.
    """
    begins_at = earlier[1] if later[0] == earlier[0] else FIRST
    is_ahead = later[0] - earlier[0] > INCARNATION_LEAP or later[1] - begins_at > NUMBER_LEAP
    return later > earlier and is_ahead


def is_its_own(version: Version) -> bool:
    """Whether the broker itself said it."""
    return version[1] % _STEP == 0
