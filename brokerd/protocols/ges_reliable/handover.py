"""Handovers of subscriptions to a successor storage: the storage of the client's present unit.

A handover is a sequence of requests. `Stage` names the request that a storage has answered, and the
next step follows from the answer.

A tree handover moves a subscription to a storage of another tree, with other epochs. Any two roots
have the same publications of a publisher, in the same order and without a gap. So everything
through an epoch of a root corresponds, for another root, to a sequence number of every publisher.
The first storage sends everything through an epoch at which its root has whatever the other root
had when the subscription had begun there. The successor storage sends everything after that, except
for publications that its root had not had by then and the first root had.

A request is repeated until its storage answers (`requests`), so a handover waits while a storage is
down, and resumes after its restart: a storage answers only once its rows are on disk. Meanwhile the
present storage keeps the subscription, and the successor everything after its beginning. After a
restart of this broker, or at another one, `reconnection` finds the storage that has the rest.

Paper: [GES] §4 (a finer storage takes over the clients of its unit; roaming clients). Deviates: the
paper defines no move between trees.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from brokerd.model.identity import BrokerNumber, SourceId
from brokerd.protocols.ges_reliable.messages import Key, RequestAnswer, SubscriptionRequest
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.state import (
    EndConfirmation,
    FetchStart,
    FetchStop,
    PendingEnd,
    ReceiptWait,
    Request,
    StoredSubscription,
)
from brokerd.protocols.interface import Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue

ROOT_QUERY: Final = "root query"
"""Purpose of the deadline of the next query to a root for its epoch."""

Outcomes = Iterator[Request | FetchStart | FetchStop | ReceiptWait | EndConfirmation]
"""The facts that a step yields, in order."""


class Stage(Enum):
    """The request of a handover that a storage has answered."""

    SUCCESSOR_RECORDED = auto()
    """The present storage has recorded the successor."""
    SUCCESSOR_BEGUN = auto()
    """The successor, in the same tree, has begun the subscription."""
    SUCCESSOR_FOUND = auto()
    """The successor, in another tree, has the subscription of an earlier access broker."""
    PREVIOUS_ENDED = auto()
    """The previous storage has ended the subscription."""
    END_FOLLOWED = auto()
    """A successor has answered about a subscription that its client has ended."""
    TREE_BEGUN = auto()
    """The successor, in another tree, has begun the subscription."""
    NEXT_ROOT = auto()
    """The successor's root has reported its epoch."""
    FIRST_ROOT = auto()
    """The present storage's root has reported its epoch."""
    START_SETTLED = auto()
    """The successor has recorded the epoch after which it sends everything."""
    END_SETTLED = auto()
    """The present storage has recorded the last epoch that it sends."""


@dataclass(slots=True, eq=False)
class TreeHandover:
    """The tree handover of a subscription.

    Attributes:
        first_root, next_root: of the present storage, and of the successor storage.
        after: the epoch after which the subscription continues at the successor.
        next_received_of: per source, the last number through that epoch.
        until: the last epoch of the present storage.
    """

    local: StoredSubscription
    first_root: BrokerNumber
    next_root: BrokerNumber
    after: int = 0
    next_received_of: Mapping[SourceId, int] = field(default_factory=dict)
    until: int = 0


class HandoverStep(NamedTuple):
    """The step that follows an answer."""

    stage: Stage
    local: StoredSubscription
    tree_handover: TreeHandover | None = None


class TreeHandovers:
    """The tree handovers at an access broker.

    Args:
        wait_ns: the wait before the next query to a root that is behind.

    Attributes:
        waited: the number of these waits.
    """

    def __init__(self, deadlines: DeadlineQueue[Any], wait_ns: int) -> None:
        self._deadlines = deadlines
        self._wait_ns = wait_ns
        self._waiting: dict[BrokerNumber, list[TreeHandover]] = {}
        self.waited = 0

    def begin(
        self, local: StoredSubscription, first_root: BrokerNumber, next_root: BrokerNumber
    ) -> Outcomes:
        """Begin a subscription at its successor; its storage has been notified of the successor.

        A repeated handover, here or elsewhere, uses the later of two epochs. Nothing from the
        successor is delivered before the last requests are durable at both storages.
        """
        handover = TreeHandover(local, first_root, next_root)
        yield _at_successor(Stage.TREE_BEGUN, handover)

    def query_again(self, root: BrokerNumber) -> Outcomes:
        """Ask a root again that was behind a while ago."""
        for handover in self._waiting.pop(root, []):
            if not handover.local.is_over:
                yield _query(root, Stage.FIRST_ROOT, handover)

    def on_answer(
        self, stage: Stage, handover: TreeHandover, answer: RequestAnswer, now_ns: Instant
    ) -> Outcomes:
        """Take the next step, while a subscription is neither closed nor elsewhere."""
        local = handover.local
        if local.is_over or answer.after is None:
            return
        if stage is Stage.TREE_BEGUN:
            yield _query(handover.next_root, Stage.NEXT_ROOT, handover)
        elif stage is Stage.NEXT_ROOT:
            # The successor sends everything after its root's epoch.
            handover.after, handover.next_received_of = answer.after, dict(answer.received_of)
            yield _query(handover.first_root, Stage.FIRST_ROOT, handover)
        elif stage is Stage.FIRST_ROOT:
            yield from self._on_first_root(handover, answer.after, answer, now_ns)
        elif stage is Stage.START_SETTLED:
            assert local.storage is not None, f"{local} is stored nowhere"
            local.successor_start = answer.after, answer.received_of
            identity = local.key, local.generation, local.predicate
            request = SubscriptionRequest(
                *identity, successor=local.successor, until=handover.until
            )
            step = HandoverStep(Stage.END_SETTLED, local, handover)
            yield Request(local.storage, request, step)
        else:
            assert stage is Stage.END_SETTLED, f"{stage} of {handover}"
            yield ReceiptWait(local)

    def _on_first_root(
        self, handover: TreeHandover, until: int, answer: RequestAnswer, now_ns: Instant
    ) -> Outcomes:
        """Cut the subscription once the first root has everything that the successor's root has.

        Publications from an earlier tree count as present.
        """
        local, root = handover.local, handover.first_root
        here = dict(answer.received_of)
        for source, last in local.received_of:
            here[source] = max(last, here.get(source, 0))
        if any(here.get(source, 0) < last for source, last in handover.next_received_of.items()):
            self.waited += 1
            self._waiting.setdefault(root, []).append(handover)
            if (ROOT_QUERY, root) not in self._deadlines:
                self._deadlines.set((ROOT_QUERY, root), now_ns + self._wait_ns)
        elif local.delivered_epoch > until:
            # More was delivered after that report: no more is, and the root is asked again.
            yield FetchStop(local)
            local.until = local.delivered_epoch
            yield _query(root, Stage.FIRST_ROOT, handover)
        else:
            yield from self._divide(handover, until, here)

    @staticmethod
    def _divide(handover: TreeHandover, until: int, here: Mapping[SourceId, int]) -> Outcomes:
        """Set the last epoch from the first storage; everything after it is the successor's."""
        local, there = handover.local, handover.next_received_of
        is_held, local.until = local.until is not None, until
        handover.until = until
        if is_held:
            yield FetchStart(local, local.delivered_epoch, local.reported_epoch)
        ahead = ((source, last) for source, last in here.items() if last > there.get(source, 0))
        received_of = tuple(sorted(ahead))
        yield _at_successor(
            Stage.START_SETTLED, handover, had=handover.after, received_of=received_of
        )


def _at_successor(stage: Stage, handover: TreeHandover, **fields: Any) -> Request:
    local = handover.local
    assert local.successor is not None, f"{local} stays"
    identity = local.key, local.generation, local.predicate
    request = SubscriptionRequest(*identity, before=local.storage, **fields)
    return Request(local.successor, request, HandoverStep(stage, local, handover))


def _query(root: BrokerNumber, stage: Stage, handover: TreeHandover) -> Request:
    """Return a request for the epoch of a root."""
    local = handover.local
    request = SubscriptionRequest(local.key, local.generation, None, is_query=True)
    return Request(root, request, HandoverStep(stage, local, handover))


class Handovers:
    """The handovers of an access broker's subscriptions to successor storages.

    A subscription begins at its successor first, and ends at the old storage when its client has
    acknowledged everything before; so wherever the client reconnects, one of the two storages has
    the rest. A subscription has a single successor at a time, which has none itself before the
    first storage has confirmed the end.

    Args:
        servicing: the storage of this broker's unit.
        roots: by storage, the root of its epochs.

    Attributes:
        trees: the handovers to storages of other trees.
    """

    def __init__(
        self,
        servicing: BrokerNumber,
        roots: Mapping[BrokerNumber, BrokerNumber],
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
    ) -> None:
        self._servicing, self._roots = servicing, roots
        self._changes_root = parameters.changes_root
        self._unknown: list[tuple[StoredSubscription, int | None]] = []
        self._pending_ends: dict[Key, StoredSubscription] = {}
        self.trees = TreeHandovers(deadlines, parameters.timeout_ns)

    def change(
        self, servicing: BrokerNumber, roots: Mapping[BrokerNumber, BrokerNumber]
    ) -> Outcomes:
        """Take another servicing storage and other roots; see the class."""
        self._servicing, self._roots = servicing, roots
        waiting, self._unknown = self._unknown, []
        for local, until in waiting:
            if not local.is_over:
                yield from self.hand_over(local, local.successor, until)

    def position_at(
        self, storage: BrokerNumber, positions: Mapping[BrokerNumber, int]
    ) -> int | None:
        """Return a client's position in the epochs of a storage; None without a report.

        A position of a successor in the same tree is after everything before.
        """
        root = self._roots.get(storage)
        return max(
            (had for each, had in positions.items() if self._roots.get(each, each) == root),
            default=None,
        )

    def hand_over(
        self,
        local: StoredSubscription,
        successor: BrokerNumber | None = None,
        until: int | None = None,
    ) -> Outcomes:
        """Hand a subscription over to the storage of this broker's unit.

        Args:
            successor: an earlier successor, which takes over first.
            until: with a successor in another tree, the settled last epoch, if any.
        """
        first = local.storage
        assert first is not None, f"{local} is stored nowhere"
        if successor is not None:
            local.successor, local.until = successor, until
            if successor not in self._roots:
                self._unknown.append((local, until))  # this broker receives it shortly
            elif self._are_one_tree(first, successor):
                yield from self._begin_at_successor(local)
            elif until is not None:
                yield from self._resume(local)
            else:
                yield from self._begin_tree_handover(local)
        elif first != self._servicing and not local.awaits_handover and self._may_leave(first):
            local.successor = self._servicing
            request = SubscriptionRequest(
                local.key, local.generation, local.predicate, successor=local.successor
            )
            yield Request(first, request, HandoverStep(Stage.SUCCESSOR_RECORDED, local))

    def on_answer(self, step: HandoverStep, answer: RequestAnswer, now_ns: Instant) -> Outcomes:
        """Take the step that follows the answer to a request."""
        stage, local, handover = step
        if handover is not None:
            yield from self.trees.on_answer(stage, handover, answer, now_ns)
        elif stage is Stage.END_FOLLOWED:
            yield from self.on_end_answer(local, answer)
        elif stage is Stage.PREVIOUS_ENDED:
            local.awaits_handover = False
            if not local.is_over:
                yield self.settle(local)
                yield from self.hand_over(local)
        elif local.is_over or answer.after is None:
            return
        elif stage is Stage.SUCCESSOR_RECORDED:
            yield from self._on_recorded(local)
        elif stage is Stage.SUCCESSOR_BEGUN:
            local.until = max(answer.after, local.delivered_epoch)
            yield ReceiptWait(local)
        else:
            assert stage is Stage.SUCCESSOR_FOUND, f"{stage} of {local}"
            local.successor_start = answer.after, answer.received_of
            yield ReceiptWait(local)

    def _may_leave(self, storage: BrokerNumber) -> bool:
        return self._changes_root or self._are_one_tree(storage, self._servicing)

    def _are_one_tree(self, one: BrokerNumber, other: BrokerNumber) -> bool:
        return self._roots.get(one, one) == self._roots.get(other, other)

    def _on_recorded(self, local: StoredSubscription) -> Outcomes:
        """Continue a handover after the present storage has recorded the successor."""
        assert local.storage is not None, f"{local} is stored nowhere"
        assert local.successor is not None, f"{local} stays"
        if self._are_one_tree(local.storage, local.successor):
            yield from self._begin_at_successor(local)
        else:
            yield from self._begin_tree_handover(local)

    def _begin_at_successor(self, local: StoredSubscription) -> Outcomes:
        assert local.successor is not None, f"{local} stays"
        identity = local.key, local.generation, local.predicate
        request = SubscriptionRequest(
            *identity, before=local.storage, received_of=local.received_of or None
        )
        yield Request(local.successor, request, HandoverStep(Stage.SUCCESSOR_BEGUN, local))

    def _begin_tree_handover(self, local: StoredSubscription) -> Outcomes:
        assert local.storage is not None, f"{local} is stored nowhere"
        assert local.successor is not None, f"{local} stays"
        roots = self._roots[local.storage], self._roots[local.successor]
        yield from self.trees.begin(local, *roots)

    def _resume(self, local: StoredSubscription) -> Outcomes:
        """Resume a handover to another tree after its last epoch was settled."""
        assert local.successor is not None, f"{local} stays"
        had = self.position_at(local.successor, local.reported_positions)
        request = SubscriptionRequest(
            local.key, local.generation, local.predicate, had, claims=True
        )
        yield Request(local.successor, request, HandoverStep(Stage.SUCCESSOR_FOUND, local))

    def on_last_receipt(self, local: StoredSubscription) -> Outcomes:
        """Switch to the successor storage after the client has acknowledged everything before."""
        before, successor, after = local.storage, local.successor, local.until
        assert before is not None, f"{local} is stored nowhere"
        assert successor is not None, f"{local} stays"
        assert after is not None, f"{local} has not begun at {successor}"
        yield FetchStop(local)
        reported = 0
        if local.successor_start is not None:
            (after, local.received_of), local.successor_start = local.successor_start, None
            reported = after
        local.storage, local.successor, local.until = successor, None, None
        local.earlier.append(before)
        yield FetchStart(local, after, reported)
        local.awaits_handover = True
        request = SubscriptionRequest(local.key, local.generation, None, successor=successor)
        yield Request(before, request, HandoverStep(Stage.PREVIOUS_ENDED, local))

    def settle(self, local: StoredSubscription) -> Request:
        """Notify a subscription's storage that the previous storage has confirmed the end."""
        assert local.storage is not None, f"{local} is stored nowhere"
        identity = local.key, local.generation, local.predicate
        return Request(
            local.storage, SubscriptionRequest(*identity, claims=True, before=local.storage)
        )

    # ------------------------------------------------------------ ends

    def add_pending_end(self, local: StoredSubscription) -> None:
        """Record the end of a subscription without an answer yet; `on_end_answer` follows."""
        self._pending_ends[local.key] = local

    def is_pending_end(self, local: StoredSubscription) -> bool:
        """Return True for an unsubscribed subscription that storages may still have."""
        return self._pending_ends.get(local.key) is local

    def drop_pending_end(self, key: Key) -> None:
        """Drop the end of a subscription.

        A new subscription with the same key takes over its state at the storages. The storages
        cannot distinguish the two, and a later end would remove the new subscription.
        """
        self._pending_ends.pop(key, None)

    def on_end_answer(self, local: StoredSubscription, answer: RequestAnswer) -> Outcomes:
        """Take an answer about a closed subscription, and end it unless its end was dropped.

        Follows successors until one has the subscription.
        """
        if not self.is_pending_end(local):
            ended, local.pending_end = local.pending_end, None
            if ended is not None:
                yield EndConfirmation(ended)
            return
        successor = answer.successor if answer.after is None else None
        if successor is None or local.storage is None:
            self.drop_pending_end(local.key)
            yield from self.end(local, answer)
            return
        local.earlier.append(local.storage)
        local.storage = successor
        claim = SubscriptionRequest(local.key, local.generation, local.predicate, claims=True)
        yield Request(successor, claim, HandoverStep(Stage.END_FOLLOWED, local))

    def end(self, local: StoredSubscription, answer: RequestAnswer) -> Outcomes:
        """End a subscription at its storage and its successor.

        A storage that has not confirmed the handover is awaited, too: with the client's next
        attachment in between, no broker would end the subscription there otherwise.

        Args:
            answer: the last answer about the subscription.
        """
        ended, local.pending_end = local.pending_end, None
        if ended is None or local.storage is None:
            return
        request = SubscriptionRequest(local.key, local.generation, None)
        more = [answer.before] if answer.before not in (None, local.storage) else []
        more += local.earlier[-1:] if local.awaits_handover else []
        there = [local.storage, *([] if answer.successor is None else [answer.successor]), *more]
        pending = PendingEnd(len(there), ended)
        for storage in there:
            yield Request(storage, request, pending)
        for storage in dict.fromkeys(local.earlier):
            if storage not in there:
                yield Request(storage, request)
