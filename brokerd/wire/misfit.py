"""Checks of values that a peer has sent."""


class Misfit(ValueError):
    """A decoded value that does not fit; the text never contains the value itself."""


INTEGER_LIMIT = 1 << 63


def check_integer(value: object) -> int:
    """Return the value, which must be an integer from 0 to 2⁶³-1.

    Raises:
        Misfit: the value is something else.
    """
    if type(value) is not int or not 0 <= value < INTEGER_LIMIT:
        raise Misfit(f"expected an integer from 0 to 2^63-1, got {type(value).__name__}")
    return value


def check_integers(values: list[object]) -> None:
    """Check that all values are integers from 0 to 2⁶³-1.

    Raises:
        Misfit: a value is something else.
    """
    for value in values:
        if type(value) is not int or not 0 <= value < INTEGER_LIMIT:
            raise Misfit(f"expected integers from 0 to 2^63-1, got {type(value).__name__}")
