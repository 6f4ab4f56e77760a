"""The log that a server keeps, by name."""

from typing import Final

LOG: Final = "topics"
