"""The name of the log of a server."""

from typing import Final

LOG: Final = "topics"
