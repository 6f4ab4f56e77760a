"""The state of a broker: names of logs, and facts that parts report to the core."""

from typing import Final

LOG: Final = "storage"
