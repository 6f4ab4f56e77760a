"""Downstream messages of a broker, compared with a model that checks every tick on its own.

Paper: [GD02] §2.1, §3.1 (ostreams).
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.messages import (
    EVERYWHERE,
    Done,
    Events,
    FilterChange,
    FilterSet,
    FilterVersion,
    FilterVersions,
    Nack,
    Named,
    Silent,
)
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.wire.attributes import encode_attributes
from tests.helpers.stream_runs import STREAM, run_at
from tests.protocols.gryphon.test_questions import B1, P1, S1, S2, One

MUTANTS = bugs_of("gryphon")

KINDS = "abc"
TICKS = 40
Said = dict[int, list[tuple[bool, int, str]]]
"""Per child, in order: whether the tick was requested, the tick, and the kind or ""."""


class Twin:
    """A model of the middle broker of p1-b1, b1-s1, b1-s2 that caches nothing."""

    def __init__(self) -> None:
        self.known: dict[int, str] = {0: ""}
        self.final = 0
        self.done = {S1: 0, S2: 0}
        self.told = {S1: 0, S2: 0}
        self.requested: dict[int, set[int]] = {S1: set(), S2: set()}
        self.filters: dict[int, dict[int, str] | None] = {S1: None, S2: None}
        self.said: Said = {S1: [], S2: []}

    def wants(self, child: int, tick: int) -> bool:
        kind, wanted = self.known[tick], self.filters[child]
        return bool(kind) and (wanted is None or kind in wanted.values())

    def receives_from(
        self, final: int, start: int, end: int, kinds: dict[int, str], again: bool
    ) -> None:
        self._finish(final)
        for child in (S1, S2):
            self._tell_again(child, {tick for tick in self.requested[child] if tick <= self.final})
        for tick in range(start, end):
            self.known.setdefault(tick, kinds.get(tick, ""))
        for child in (S1, S2):
            if not again:
                self._forward(child, end, kinds)
            self._tell_again(child, self.requested[child] & {*range(start, end)})
        self.settle()

    def _forward(self, child: int, end: int, kinds: dict[int, str]) -> None:
        after = max(self.done[child], self.final)
        ticks = [tick for tick in kinds if tick > after and self.wants(child, tick)]
        if not ticks:
            return
        start = ticks[0]
        while start - 1 > self.final and start - 1 in self.known:
            is_old = self.told[child] <= ticks[0] and start - 1 < self.told[child]
            if is_old or self.wants(child, start - 1):
                break
            start -= 1
        for tick in range(start, end):
            self.said[child].append((False, tick, self.known[tick] if tick in ticks else ""))
        self.told[child] = max(self.told[child], end)
        self.requested[child] -= {*range(start, end)}

    def _tell_again(self, child: int, ticks: set[int]) -> None:
        for tick in sorted(ticks):
            kind = self.known[tick] if self.wants(child, tick) else ""
            self.said[child].append((True, tick, kind))
        self.requested[child] -= ticks

    def is_asked(self, child: int, start: int, end: int) -> None:
        ticks = {*range(start, end)}
        self._tell_again(child, ticks & self.known.keys())
        self.requested[child] |= ticks - self.known.keys()

    def is_done(self, child: int, through: int) -> None:
        self.requested[child] = {tick for tick in self.requested[child] if tick > through}
        self.done[child] = max(self.done[child], through)
        self.settle()

    def settle(self) -> None:
        for child in (S1, S2):
            done = max(self.done[child], self.final)
            while done + 1 in self.known and not self.wants(child, done + 1):
                done += 1
            self.done[child] = done
        self._finish(min(self.done.values()))
        for child in (S1, S2):
            self.requested[child] = {tick for tick in self.requested[child] if tick > self.final}

    def _finish(self, through: int) -> None:
        self.final = max(self.final, through)
        self.known.update(dict.fromkeys(range(self.final + 1), ""))


def ticks_told(messages: Sequence[Any]) -> Iterator[tuple[bool, int, str]]:
    """Yield the contents of messages tick by tick."""
    for message in messages:
        if type(message) is Silent:
            assert message.again
            yield from (
                (True, tick, "") for low, high in message.ranges for tick in range(low, high)
            )
        elif type(message) is Events:
            run = message.run
            blobs = [run.attribute_table[place] for place in run.attribute_index]
            kinds = {tick: chr(blob[-1]) for tick, blob in zip(run.sequences, blobs, strict=True)}
            for tick in range(message.start, message.end):
                yield message.again, tick, kinds.get(tick, "")


def run_of(kinds: dict[int, str]) -> PublicationRun:
    """Return events of these kinds at these ticks."""
    run = run_at([*kinds])
    used = sorted({*kinds.values()})
    return PublicationRun(
        run.source,
        run.sequences,
        tuple(encode_attributes({"kind": kind}) for kind in used),
        bytes(used.index(kind) for kind in kinds.values()),
        run.payload_lengths,
        run.payload,
        run.origins,
    )


class Pair:
    """A broker and its model, with the same inputs."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.one = One(B1, filters=True)
        self.twin = Twin()
        self.truth = {tick: random.choice(["", "", *KINDS]) for tick in range(1, TICKS + 1)}
        self.next = 1
        self.numbers = {S1: 1, S2: 1}

    def goes_on(self) -> None:
        """Apply a random input and check that both send the same messages."""
        happens = [self.comes, self.comes, self.comes_again, self.asks, self.acks, self.changes]
        self.random.choice(happens)()
        for child in (S1, S2):
            told = [*ticks_told(self.one.tells(child, object))]
            said, self.twin.said[child] = self.twin.said[child], []
            # Silence is the last part of an answer.
            assert sorted(told) == sorted(said), f"to {child}: {told}, not {said}"

    def _hears(self, start: int, end: int, *, again: bool) -> None:
        kinds = {tick: self.truth[tick] for tick in range(start, end) if self.truth[tick]}
        final = self.random.randrange(min(self.twin.final + 4, self.next))
        if kinds:
            run = run_of(kinds)
            self.one.receives_from(P1, Events(final, start, end, again, True, EVERYWHERE, run))
        elif again:
            self.one.receives_from(P1, Silent(STREAM, final, ((start, end),)))
        else:
            return
        self.twin.receives_from(final, start, end, kinds, again)

    def comes(self) -> None:
        """Receive a new range, possibly after a lost range."""
        start = self.next + self.random.choice([0, 0, 0, 3])
        end = start + self.random.randint(1, 5)
        if end <= TICKS:
            self.next = end
            self._hears(start, end, again=False)

    def _range(self) -> tuple[int, int]:
        start = self.random.randrange(1, self.next + 1)
        return start, start + self.random.randint(1, 8)

    def comes_again(self) -> None:
        """Receive the answer to a request."""
        start, end = self._range()
        if end <= self.next:
            self._hears(start, end, again=True)

    def asks(self) -> None:
        child, (start, end) = self.random.choice([S1, S2]), self._range()
        self.one.receives_from(child, Nack(STREAM, ((start, end),)))
        self.twin.is_asked(child, start, end)

    def acks(self) -> None:
        child = self.random.choice([S1, S2])
        known = [tick for tick in range(self.next) if tick in self.twin.known]
        through = self.random.choice(known)
        self.one.receives_from(child, Done(child, ((STREAM, through),)))
        self.twin.is_done(child, through)

    def changes(self) -> None:
        """Widen, narrow or hide the filter of a child, or state a filter that was hidden."""
        child = self.random.choice([S1, S2])
        wanted = self.twin.filters[child]
        self.numbers[child] += 1
        version = FilterVersion(child, 1, self.numbers[child])
        kind = self.random.choice(KINDS)
        how = self.random.randrange(4)
        if how == 0 and wanted is not None:
            self.one.receives_from(child, FilterVersions((version,), ()))
            self.twin.filters[child] = None
        elif how == 1 and wanted:
            number = self.random.choice([*wanted])
            self.one.receives_from(child, FilterChange(version, (), (number,)))
            del wanted[number]
        elif wanted is not None:
            self.one.receives_from(
                child, FilterChange(version, (_named(version.number, kind),), ())
            )
            wanted[version.number] = kind
        else:
            self.one.receives_from(child, FilterSet(version, (_named(version.number, kind),), True))
            self.twin.filters[child] = {version.number: kind}
        self.twin.settle()


def _named(number: int, kind: str) -> Named:
    return Named(number, parse_predicate(f"kind = '{kind}'"))


def go_all() -> None:
    for seed in range(150):
        go(seed)


def go(seed: int) -> None:
    pair = Pair(Random(seed))
    for step in range(40):
        try:
            pair.goes_on()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}: {error}") from None


def test_a_child_receives_the_result_of_the_per_tick_twin() -> None:
    go_all()


@pytest.mark.parametrize(
    "bug",
    [
        "unknown-filter-passes-nothing",
        "silence-covers-matching-events",
        "matching-events-count-as-final",
        "bracket-ends-at-unmatched-event",
        "acks-wait-for-unmatched-events",
        "answers-beyond-the-request",
        "changed-filter-releases-nothing",
    ],
)
def test_the_twin_differs_without_a_rule_of_filters(bug: str) -> None:
    with plant([MUTANTS[bug]]), pytest.raises(AssertionError, match="seed"):
        go_all()
