"""Violations of the rules of a simulated run."""

from typing import Final

_FIRST: Final = 10
"""The number of violations of each rule that are kept in words."""


class InvariantViolated(Exception):
    """A promise was broken.

    Attributes:
        rule: the short name of the rule, e.g. "gap".
    """

    def __init__(self, rule: str, text: str) -> None:
        self.rule = rule
        super().__init__(f"{rule}: {text}")


class Violations:
    """The violations of one run.

    Args:
        strict: raise each violation; otherwise violations are counted, for protocols that promise
            less.

    Attributes:
        counts: number of violations by rule.
        first: the first few violations of each rule, in words.
    """

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self.counts: dict[str, int] = {}
        self.first: list[str] = []

    def add(self, rule: str, text: str) -> None:
        """Count a violation.

        Raises:
            InvariantViolated: the run is strict.
        """
        self.counts[rule] = self.counts.get(rule, 0) + 1
        if self.counts[rule] <= _FIRST:
            self.first.append(f"{rule}: {text}")
        if self._strict:
            raise InvariantViolated(rule, text)
