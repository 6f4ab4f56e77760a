"""The name of the log of a pubend's broker."""

from typing import Final

LOG: Final = "events"
