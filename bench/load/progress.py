"""The display of a run's progress, and the error of a failed run."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol


class Progress(Protocol):
    """A display of the progress of a run."""

    def phase(self, name: str, expected_s: float | None = None) -> None:
        """Show a new phase, with its expected duration if known."""

    def update(self, numbers: Mapping[str, Any]) -> None:
        """Show numbers; later values replace earlier values of the same name."""

    def say(self, text: str) -> None:
        """Show a permanent line."""


class RunFailed(Exception):
    """A run that could not be completed; the message names the awaited or failed step."""

    exit_status: ClassVar[int] = 3
