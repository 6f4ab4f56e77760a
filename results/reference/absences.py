"""Absences of subscribers from their brokers, which explain gaps of a protocol that promises them.

A broker may end the subscriptions of a client that it has not heard of for `absence_ns`. What is
published until then, and until the client has a session with any broker again, may be lost to it.
"""

from collections.abc import Sequence

from results.rules.terms import Gap, Promises

SESSION_SLACK_NS = 1_000_000_000
"""A broker and its client see the end of a session no further apart than that."""

SessionRow = tuple[int, bool, str, int]
"""Time, whether the session begins, its broker, its number."""


class _Walk:
    """A walk through the sessions of a client: the brokers that it has left, and since when."""

    def __init__(self, promises: Promises) -> None:
        self.found_ns: list[int] = []
        self._absence_ns = promises.absence_ns
        self._at: dict[int, str] = {}
        self._left_ns: dict[str, int] = {}
        self._again_ns: dict[str, int] = {}

    def begin(self, at_ns: int, broker: str, session: int) -> None:
        """Begin a session, which ends the absence from its broker only."""
        for other in self._left_ns:
            self._again_ns.setdefault(other, at_ns)
        self._count(broker, at_ns)
        self._left_ns.pop(broker, None)
        self._at[session] = broker

    def end(self, at_ns: int, broker: str, session: int) -> None:
        """End a session; the absence begins with the last session at its broker."""
        self._at.pop(session, None)
        if broker not in self._at.values():
            self._left_ns[broker] = at_ns
            self._again_ns.pop(broker, None)
            if self._at:
                self._again_ns[broker] = at_ns

    def stop(self, at_ns: int) -> None:
        """Count the absences that last until the end of the walk."""
        for broker in self._left_ns:
            self._count(broker, at_ns)

    def _count(self, broker: str, at_ns: int) -> None:
        left_ns = self._left_ns.get(broker)
        if left_ns is not None and at_ns - left_ns + SESSION_SLACK_NS >= self._absence_ns:
            again_ns = self._again_ns.get(broker, at_ns)
            self.found_ns.append(max(left_ns + self._absence_ns, again_ns) + SESSION_SLACK_NS)


def explained_until_ns(gap: Gap, sessions: Sequence[SessionRow], promises: Promises) -> int | None:
    """Return the latest time of publications that an absence explains; None without an absence.

    Args:
        sessions: of the subscriber, in the order of time.
    """
    if gap.reason not in promises.absence_gaps:
        return None
    walk = _Walk(promises)
    for at_ns, is_up, broker, session in sessions:
        if at_ns > gap.received_ns:
            break
        (walk.begin if is_up else walk.end)(at_ns, broker, session)
    walk.stop(gap.received_ns)
    return min(max(walk.found_ns), gap.received_ns) if walk.found_ns else None
