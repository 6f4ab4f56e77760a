"""The log that a broker keeps, by name."""

from typing import Final

LOG: Final = "publications"
