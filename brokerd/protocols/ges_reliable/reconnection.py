"""Searches for the storages of subscriptions whose clients have come to this broker.

A client reports its positions at storages, or none after a loss of memory. Any storage of the
report names the successor or the previous storage of a subscription. Without a report, all storages
receive a query.

Paper: [GES] §4 (reconnecting clients: storage, epoch, profile).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.ges_reliable.handover import Handovers
from brokerd.protocols.ges_reliable.messages import RequestAnswer, SubscriptionRequest
from brokerd.protocols.ges_reliable.state import (
    Request,
    RoamingClient,
    StoredSubscription,
    SubscriptionStart,
)

Outcomes = Iterator[Request | SubscriptionStart]
"""The facts that a step yields, in order."""


@dataclass(slots=True, eq=False)
class StorageSearch:
    """A search for a subscription at all storages.

    Attributes:
        queried: the storages with a query.
        answers: the answers so far.
    """

    client: RoamingClient
    local: StoredSubscription
    queried: dict[BrokerNumber, None] = field(default_factory=dict)
    answers: dict[BrokerNumber, RequestAnswer] = field(default_factory=dict)


class SearchStep(NamedTuple):
    """The step after the answer of one of all storages."""

    search: StorageSearch
    storage: BrokerNumber


class BeginStep(NamedTuple):
    """The step after the answer of the storage at which a subscription begins."""

    client: RoamingClient
    local: StoredSubscription
    storage: BrokerNumber
    had: int | None
    claims: bool


class PreviousStep(NamedTuple):
    """The step after the answer of the previous storage of a subscription.

    Attributes:
        answer: the answer of the successor.
        before: the previous storage.
        storage: the successor.
        had: the client's position at the previous storage.
    """

    client: RoamingClient
    local: StoredSubscription
    answer: RequestAnswer
    before: BrokerNumber
    storage: BrokerNumber | None
    had: int | None


class StorageSearches:
    """All searches of an access broker.

    Attributes:
        storages: all storages; first the storage of this broker's unit.
    """

    def __init__(self, storages: Sequence[BrokerNumber], handovers: Handovers) -> None:
        self.storages = storages
        self._handovers = handovers

    def stored_at(self, brought: Mapping[StreamId, int]) -> tuple[BrokerNumber, int] | None:
        """Return a storage that stores or has stored for a subscription, with the position.

        Any of these storages suffices: the answer names the successor storage, or the previous
        storage.
        """
        here = {stream.broker: had for stream, had in brought.items()}
        for storage in here:
            had = self._handovers.position_at(storage, here) if storage in self.storages else None
            if had is not None:
                return storage, had
        return None

    def on_answer(self, step: Any, answer: RequestAnswer) -> Outcomes:
        """Take the step that follows the answer to a request of a search."""
        kind = type(step)
        if kind is SearchStep:
            yield from self._on_claimed(step.search, step.storage, answer)
        elif kind is BeginStep:
            yield from self._on_found(step, answer)
        else:
            assert kind is PreviousStep, f"no step follows {answer}: {step}"
            yield from self._on_previous(step, answer)

    def claim_anywhere(self, client: RoamingClient, local: StoredSubscription) -> Outcomes:
        """Request a subscription at all storages; begin at this unit's storage if all lack it.

        The client may have been elsewhere before without an answer, or may have lost its memory.
        After that, no storage takes requests of an earlier attachment. Of two storages with the
        subscription, one is the successor. A storage that has joined since receives a query if it
        is a successor.
        """
        if len(self.storages) == 1:
            yield from self.begin_at(client, local, self.storages[0], None)
            return
        search = StorageSearch(client, local)
        for storage in self.storages:
            yield self._claim(search, storage)

    def _claim(self, search: StorageSearch, storage: BrokerNumber) -> Request:
        search.queried[storage] = None
        local = search.local
        request = SubscriptionRequest(local.key, local.generation, local.predicate, claims=True)
        return Request(storage, request, SearchStep(search, storage))

    def _on_claimed(
        self, search: StorageSearch, storage: BrokerNumber, answer: RequestAnswer
    ) -> Outcomes:
        """Take the answer of one storage, and begin the subscription after the last answer."""
        client, local = search.client, search.local
        queried, answers = search.queried, search.answers
        answers[storage] = answer
        ends = self._handovers.is_pending_end(local)
        if local.is_over and not ends:
            return
        if answer.successor is not None and answer.successor not in queried:
            yield self._claim(search, answer.successor)
            if ends:
                yield Request(
                    answer.successor, SubscriptionRequest(local.key, local.generation, None)
                )
        if len(answers) < len(queried):
            return
        if ends:
            self._handovers.drop_pending_end(local.key)
            return
        local.earlier = [each for each in queried if answers[each].successor is not None]
        later = [
            each.later_generation for each in answers.values() if each.later_generation is not None
        ]
        if later:
            # Its client has been at another broker since, and the subscription restarts at none.
            moved = RequestAnswer(local.key, None, later_generation=max(later))
            yield SubscriptionStart(client, local, moved)
            return
        known = [each for each in queried if answers[each].after is not None]
        first = min(known, key=lambda each: answers[each].successor is None, default=None)
        if first is not None:
            local.storage = first
            found = answers[first]
            assert found.after is not None, f"{first} has no {local}"
            had = self._handovers.position_at(first, local.reported_positions) or 0
            yield SubscriptionStart(client, local, found._replace(after=max(found.after, had)))
        else:
            yield from self.begin_at(client, local, self.storages[0], None)

    def begin_at(
        self,
        client: RoamingClient,
        local: StoredSubscription,
        storage: BrokerNumber,
        had: int | None,
        *,
        claims: bool = False,
    ) -> Outcomes:
        """Begin a subscription at a storage, after a client's position; None: without one."""
        local.storage = storage
        request = SubscriptionRequest(local.key, local.generation, local.predicate, had, claims)
        yield Request(storage, request, BeginStep(client, local, storage, had, claims))

    def _on_found(self, step: BeginStep, answer: RequestAnswer) -> Outcomes:
        """Begin a subscription at its storage, unless the storage lacks a part of it."""
        client, local, storage, had, claims = step
        is_behind = had is not None and answer.after is not None and had < answer.after
        is_unknown = claims and answer.after is None and answer.successor is None
        if local.is_over:
            yield SubscriptionStart(client, local, answer)
        elif answer.after is not None and answer.before not in (None, storage):
            yield self._request_before(client, local, answer, answer.before)
        elif (is_behind and answer.before is None) or is_unknown:
            # It has moved here, and the previous storage has everything before.
            local.storage = None
            yield from self.claim_anywhere(client, local)
        else:
            yield SubscriptionStart(client, local, answer)

    def _request_before(
        self,
        client: RoamingClient,
        local: StoredSubscription,
        answer: RequestAnswer,
        before: BrokerNumber,
    ) -> Request:
        """Ask the previous storage before a subscription continues at its successor."""
        storage, had = local.storage, self._handovers.position_at(before, local.reported_positions)
        local.earlier.append(before)
        request = SubscriptionRequest(
            local.key, local.generation, local.predicate, had, claims=True
        )
        return Request(before, request, PreviousStep(client, local, answer, before, storage, had))

    def _on_previous(self, step: PreviousStep, answer: RequestAnswer) -> Outcomes:
        """Begin a subscription at its previous storage, or at the successor after all."""
        client, local, first_answer, before, storage, had = step
        if answer.after is not None and not local.is_over:
            local.storage = before
            after = max(answer.after, had or 0)
            yield SubscriptionStart(client, local, answer._replace(after=after))
        elif local.is_over:
            yield SubscriptionStart(client, local, first_answer)
        elif answer.successor == storage:
            yield self._handovers.settle(local)
            yield SubscriptionStart(client, local, first_answer)
        else:
            local.storage = None
            yield from self.claim_anywhere(client, local)
