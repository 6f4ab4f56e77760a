"""A source in the reference judgement: the log of a publisher, with contents and topics."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, pairwise

from results.reference import predicates
from results.reference.files import JITTER_NS
from results.reference.history import (
    ACKNOWLEDGED,
    GAP,
    History,
    Key,
    PublicationRow,
    PublisherLog,
    Violation,
)
from results.rules.terms import (
    doubt,
)


class Source:
    """A publisher's log with its consequences."""

    def __init__(self, log: PublisherLog, history: History) -> None:
        self.log = log
        self.content = history.content
        self.topic_attribute = history.topic
        self.publisher = history.content.publishers[log.name]
        self._matched: dict[tuple[str, int], bool] = {}
        self._digests: dict[tuple[Key, bool], int] = {}
        self.by_key: dict[Key, PublicationRow] = {}
        for publication in log.published:
            self.by_key.setdefault(publication.key, publication)
        self.highest: dict[int, int] = {}
        for incarnation, sequence in self.by_key:
            self.highest[incarnation] = max(sequence, self.highest.get(incarnation, 0))
        self.answered: dict[Key, int] = {}
        for incarnation, first, last, outcome in log.answers:
            for sequence in range(first, min(last, self.highest.get(incarnation, 0)) + 1):
                key = incarnation, sequence
                # An acknowledgement is the stronger promise.
                self.answered[key] = min(outcome, self.answered.get(key, outcome))
        seen = {
            row.key
            for subscription in history.subscriptions
            for row in subscription.delivered
            if row.source == log.source and row.kind != GAP
        }
        seen |= history.seen.get(log.source, frozenset())
        self.committed = [
            publication
            for key, publication in sorted(self.by_key.items())
            if self.answered.get(key) == ACKNOWLEDGED or (key not in self.answered and key in seen)
        ]
        fences = [one.key for one in self.committed if self.is_fence(one)]
        has_both = len(fences) > 1
        self.opening: Key | None = fences[0] if has_both else None
        self.closing: Key | None = fences[-1] if has_both else None
        self._data = {one.key for one in self.committed if self._is_data(one)}

    def is_fence(self, publication: PublicationRow) -> bool:
        return publication.attribute_set == self.content.fence_set

    def is_between_fences(self, publication: PublicationRow) -> bool:
        """Return True if a publication is data that is owed to every matching subscription."""
        return publication.key in self._data or self._is_data(publication)

    def _is_data(self, publication: PublicationRow) -> bool:
        is_after = self.opening is None or self.opening < publication.key
        is_before = self.closing is None or publication.key < self.closing
        return is_after and is_before and not self.is_fence(publication)

    def is_closed_before(self, until_ns: int | None, error_ns: int | None) -> bool:
        """Return True if the closing fence was certainly sent before a moment."""
        if self.closing is None or until_ns is None or error_ns is None:
            return False
        return self.by_key[self.closing].sent_ns + error_ns < until_ns

    def is_wanted(self, publication: PublicationRow, predicate: str) -> bool:
        """Return True if a publication matches by the seed; the log decides only fences."""
        if self.is_fence(publication):
            return True
        chosen, _ = self.content.choice(self.publisher.index, *publication.key)
        return self._matches(predicate, chosen)

    def _matches(self, predicate: str, attribute_set: int) -> bool:
        known = predicate, attribute_set
        if known not in self._matched:
            attributes = self.content.attributes(attribute_set)
            self._matched[known] = predicates.wants(predicate)(attributes)
        return self._matched[known]

    def digest(self, publication: PublicationRow) -> int:
        """Return the digest of a publication by the seed; computed once for all subscriptions."""
        fence = self.is_fence(publication)
        known = publication.key, fence
        found = self._digests.get(known)
        if found is None:
            found = self.content.digest(self.publisher, *publication.key, fence=fence)
            self._digests[known] = found
        return found

    @property
    def has_topics(self) -> bool:
        """True if the topic of a publication follows from the attribute set."""
        how = self.content.workload.get("attributes", {}).get(self.topic_attribute, {})
        return self.topic_attribute != "" and "sequence" not in how

    def topic(self, key: Key) -> object:
        """Return the topic of a publication; values of different types are different topics."""
        if self.is_fence(self.by_key[key]):
            return ("fence",)
        chosen, _ = self.content.choice(self.publisher.index, *key)
        value = self.content.attributes(chosen).get(self.topic_attribute)
        return type(value).__name__, value

    def find_reused(self) -> Iterator[Violation]:
        """Yield sequence numbers with two publications."""
        times = Counter(publication.key for publication in self.log.published)
        for key in sorted(key for key, n in times.items() if n > 1):
            yield Violation("sequence_reuse", "", self.log.source, *key)

    def undone(self, predicates: Iterable[str]) -> Iterator[str]:
        """Yield doubts about uncommitted publications before committed publications."""
        predicates = [*predicates]
        done = {publication.key for publication in self.committed}
        last = dict(sorted(done))  # by incarnation
        found: dict[int, list[int]] = {}
        for (incarnation, sequence), publication in sorted(self.by_key.items()):
            if publication.key in done or sequence > last.get(incarnation, 0):
                continue
            if self.is_between_fences(publication) and any(
                self.is_wanted(publication, predicate) for predicate in predicates
            ):
                found.setdefault(incarnation, []).append(sequence)
        for incarnation, sequences in found.items():
            yield doubt(
                "unanswered", source=self.log.source, incarnation=incarnation,
                n=len(sequences), first=sequences[0],
            )  # fmt: skip

    def doubts(self) -> Iterator[str]:
        source = self.log.source
        if self.opening is None:
            yield doubt("no_fences", source=source)
        if any(
            not self.is_fence(one)
            and self.content.choice(self.publisher.index, *one.key)[0] != one.attribute_set
            for one in self.log.published
        ):
            yield doubt("other_content", source=source)
        if self.log.closed:
            yield from self._doubts_about_numbers()
        stamps = [publication.sent_ns for publication in self.log.published]
        yield from steps_back(f"publisher {self.log.name}", stamps)

    def _doubts_about_numbers(self) -> Iterator[str]:
        """Yield missing numbers up to the highest answered number."""
        highest = {**self.highest}
        for incarnation, _, last, _ in self.log.answers:
            highest[incarnation] = max(last, highest.get(incarnation, 0))
        for incarnation, last in sorted(highest.items()):
            logged = {n for of, n in self.by_key if of == incarnation and n > 0}
            if last > len(logged):
                first = next(n for n in count(1) if n not in logged)
                yield doubt(
                    "numbers", source=self.log.source, incarnation=incarnation,
                    n=last - len(logged), highest=last, first=first,
                )  # fmt: skip


def steps_back(name: str, stamps: Sequence[int]) -> Iterator[str]:
    """Yield a doubt if a clock stepped back between two rows of a log."""
    furthest = max((before - after for before, after in pairwise(stamps)), default=0)
    if furthest > JITTER_NS:
        yield doubt("clock_back", who=name, s=furthest / 1e9)
