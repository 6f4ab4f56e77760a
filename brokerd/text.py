"""Values as messages show them."""

from typing import Any


def shown(value: Any, limit: int = 80) -> str:
    """A value for a message: quoted, one line, not endless."""
    text = ascii(value) if not str(value).isprintable() else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
