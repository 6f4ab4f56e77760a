"""The name of the log of a storage."""

from typing import Final

LOG: Final = "storage"
