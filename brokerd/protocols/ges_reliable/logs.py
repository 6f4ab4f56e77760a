"""The log that a storage keeps, by name."""

from typing import Final

LOG: Final = "storage"
