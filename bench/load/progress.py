"""Whom to tell how far a run has come, and how a run says that it came no further."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol


class Progress(Protocol):
    """Whom to tell how far a run has come."""

    def phase(self, name: str, expected_s: float | None = None) -> None:
        """A new phase begins, which will take about so long (None: nobody knows)."""

    def update(self, numbers: Mapping[str, Any]) -> None:
        """What is known now; later values replace earlier ones of the same name."""

    def say(self, text: str) -> None:
        """One line that stays."""


class RunFailed(Exception):
    """A run could not be carried out to its end; says what was waited for, or what failed."""

    exit_status: ClassVar[int] = 3
