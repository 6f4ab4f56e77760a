"""The history of a run, step by step: a digest of all steps, and the last steps in words."""

import hashlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from brokerd.model.client_messages import Deliveries, Publish
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import (
    Append,
    DeadlineReached,
    Effect,
    Event,
    Instant,
    MessageReceived,
    Persisted,
    RecordsRead,
)

LAST_STEPS = 40

_RECORDS = (Append, RecordsRead)

_kept_steps: int | None = LAST_STEPS


class TracedStep(NamedTuple):
    """A step of a run.

    Attributes:
        place: the broker; without an event, the text of a fault or of an action of a client.
    """

    now_ns: Instant
    place: str
    event: Event | None
    effects: list[Effect]


@contextmanager
def with_all_steps() -> Iterator[None]:
    """Make traces that begin in the meantime keep all steps, for pictures."""
    global _kept_steps
    before, _kept_steps = _kept_steps, None
    try:
        yield
    finally:
        _kept_steps = before


class Trace:
    """A digest of every step of a run; equal digests mean equal runs."""

    def __init__(self) -> None:
        self.steps = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._lines: list[str] = []
        self._last: deque[TracedStep] = deque(maxlen=_kept_steps)

    def step(self, now_ns: Instant, name: str, event: Event, effects: list[Effect]) -> None:
        """Record an event that a core has handled."""
        self.steps += 1
        self._last.append(TracedStep(now_ns, name, event, effects))
        self._lines.append(f"{now_ns} {name} {describe(event)} {len(effects)}")
        if len(self._lines) >= 512:
            self._fold()

    def note(self, now_ns: Instant, text: str) -> None:
        """Record an occurrence outside of the cores: a fault, or an action of a client."""
        self._last.append(TracedStep(now_ns, text, None, []))
        self._lines.append(f"{now_ns} {text}")

    @property
    def kept(self) -> tuple[TracedStep, ...]:
        """The last steps, oldest first."""
        return tuple(self._last)

    def digest(self) -> str:
        """Return 32 hex digits over all steps so far."""
        self._fold()
        return self._hash.hexdigest()

    def last_steps(self) -> list[str]:
        """Return the last steps in words, oldest first."""
        lines = []
        for now_ns, name, event, effects in self._last:
            if event is None:
                lines.append(f"{now_ns / 1e9:10.6f} {name}")
                continue
            lines.append(f"{now_ns / 1e9:10.6f} {name:>4} {describe(event)}")
            lines += [f"{'':15} > {describe(effect)}" for effect in effects]
        return lines

    def _fold(self) -> None:
        lines = "\n".join(self._lines)
        assert " at 0x" not in lines, f"an address, which differs: {lines.partition(' at 0x')[0]}"
        self._hash.update(lines.encode())
        self._lines.clear()


def describe(item: Any) -> str:
    """Return an event, effect or message on a short line that is equal on every machine."""
    kind = type(item)
    if kind is MessageReceived:
        return f"from {item.peer}/{item.session} {describe(item.message)}"
    if kind is DeadlineReached:
        return "DeadlineReached()"
    if kind is Persisted:
        return f"Persisted(token={item.token!r})"
    if kind in _RECORDS:
        count = len(item.records)
        return f"{type(item).__name__} {item.log} {count} record{'s' if count != 1 else ''}"
    run = getattr(item, "run", None)
    if isinstance(run, PublicationRun):
        extra = ""
        if isinstance(item, Deliveries):
            extra = f" for {item.subscriptions}"
        elif not isinstance(item, Publish):
            extra = f" path {getattr(item, 'path', '')}"
        return f"{type(item).__name__} {tuple(run.source)} {_numbers(run)}{extra}"
    message = getattr(item, "message", None) or getattr(item, "item", None)
    if message is not None:
        peer = getattr(item, "peer", None)
        peer = peer if peer is not None else getattr(item, "client", "")
        return f"to {peer} {describe(message)}"
    return repr(item)


def _numbers(run: PublicationRun) -> str:
    if isinstance(run.sequences, range) or run.last - run.first + 1 == len(run):
        return f"{run.first}-{run.last}"
    return ",".join(str(sequence) for sequence in run.sequences)
