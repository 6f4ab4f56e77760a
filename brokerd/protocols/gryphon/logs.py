"""The log that a pubend's broker keeps, by name."""

from typing import Final

LOG: Final = "events"
