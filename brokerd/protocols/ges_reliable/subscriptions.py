"""The subscriptions of a storage: of clients at access brokers, and of other storages.

A client's subscription begins after an epoch, and its receipt is the epoch through which the client
has acknowledged. Storages that take from this storage are children, for the predicates of their
units, and other roots. Publications after the lowest receipt, and after the lowest epoch that the
other storages have on disk, are retained.

Subscriptions, and the predicates of children, are on disk: an epoch that was sent for one holds.
The progress of other storages is not on disk: they report it again.

Paper: [GES] §4 (profiles with epochs; receipts; profiles of units; pending lists of system
storages). Deviates: an event's reference count is not written down: it is the number of
subscriptions with receipts before the event.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.identity import BrokerNumber, ClientId, SourceId
from brokerd.model.predicate import DecodeAttributes, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges_reliable.definition import StoragePlace
from brokerd.protocols.ges_reliable.messages import (
    Key,
    RequestAnswer,
    Sequences,
    SubscriptionRequest,
)
from brokerd.protocols.ges_reliable.state import (
    GENERATIONS,
    RECEIPTS,
    REGISTERED,
    SUCCESSORS,
    UNITS,
    Event,
)
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.records import predicate_row, read_predicate
from brokerd.protocols.parts.selection import match_run

_NONE: Final = -1
"""In a row, in place of a missing number."""


@dataclass(slots=True, eq=False)
class Registration:
    """A subscription at its storage.

    Attributes:
        generation, home: the client's last attachment.
        received: the receipt.
        acknowledged: the last publication that the client has acknowledged.
        successor: the future successor storage.
        until: the epoch after which everything is from the successor, which is in another tree.
        before: the storage that may have everything before; this storage itself if none has it any
            more.
        received_of: publications from there, in spite of their epochs.
        displaced: earlier access brokers, which may have the client all the same; not on disk.
    """

    key: Key
    generation: int
    home: BrokerNumber
    began: int
    predicate: Predicate
    received: int
    acknowledged: int = 0
    successor: BrokerNumber | None = None
    until: int | None = None
    before: BrokerNumber | None = None
    received_of: Sequences = ()
    displaced: tuple[BrokerNumber, ...] = ()

    @property
    def homes(self) -> tuple[BrokerNumber, ...]:
        """The access brokers that receive the publications."""
        return self.home, *self.displaced

    def move_to(self, home: BrokerNumber) -> None:
        """Record another access broker.

        The one before receives the publications, too, until the client has acknowledged one of
        them to the other: it may have the client, and continue behind a gap otherwise.
        """
        self.displaced = tuple(dict.fromkeys(each for each in self.homes if each != home))
        self.home = home

    @property
    def answer(self) -> RequestAnswer:
        """The answer to the access broker."""
        return RequestAnswer(
            self.key,
            self.received,
            self.successor,
            self.until,
            self.before,
            self.received_of,
            self.acknowledged,
        )


class Registrations:
    """All subscriptions of a storage.

    Args:
        is_root: True for a storage that assigns epochs, so no client has a later epoch; a finer
            storage may be behind.

    Attributes:
        ends: the number of ended subscriptions.
    """

    def __init__(self, decode_attributes: DecodeAttributes, *, is_root: bool) -> None:
        self._is_root = is_root
        self._registrations: dict[Key, Registration] = {}
        self._successors: dict[Key, BrokerNumber] = {}
        self._generations: dict[ClientId, tuple[int, BrokerNumber]] = {}
        self._index: MatchingIndex[Key] = MatchingIndex()
        self._memo: MatchMemo[Key, tuple[BrokerNumber, ...]] = MatchMemo(
            self._index, decode_attributes, conclude=self._homes
        )
        self._ending: deque[tuple[int, Registration]] = deque()
        self.ends = 0

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return len(self._registrations)

    def subscriptions(self) -> Mapping[Key, Registration]:
        return self._registrations

    def kept(self) -> Iterator[Registration]:
        """Yield all subscriptions, and ended ones that a crash could restore."""
        yield from self._registrations.values()
        yield from (each for _, each in self._ending)

    def homes(self) -> Mapping[BrokerNumber, None]:
        """Return the access brokers that receive publications."""
        return dict.fromkeys(home for each in self._registrations.values() for home in each.homes)

    def successors(self) -> Mapping[Key, BrokerNumber]:
        """Return subscriptions that have moved to other storages, with those storages."""
        return self._successors

    def recover(self, recovered: Mapping[str, Mapping[str, Any]], released: int) -> None:
        """Restore the state on disk; a lost receipt is no older than the released epoch."""
        for client, (generation, home) in recovered.get(GENERATIONS, {}).items():
            self._generations[client] = generation, home
        receipts = recovered.get(RECEIPTS, {})
        for text, (generation, home, began, row, *more) in recovered.get(REGISTERED, {}).items():
            key, predicate = _read_key(text), read_predicate(row)
            through, acknowledged = _read_receipt(receipts.get(text, 0))
            received = max(began, through, released)
            known = Registration(key, generation, home, began, predicate, received, acknowledged)
            self._add(known)
            self._read_more(self._registrations[key], *more)
        for text, successor in recovered.get(SUCCESSORS, {}).items():
            self._successors[_read_key(text)] = successor

    @staticmethod
    def _read_more(
        known: Registration,
        successor: int = _NONE,
        until: int = _NONE,
        before: int = _NONE,
        had_of: Sequence[tuple[Sequence[int], int]] = (),
    ) -> None:
        known.successor, known.until, known.before = (
            None if value == _NONE else value for value in (successor, until, before)
        )
        known.received_of = tuple((SourceId(*source), last) for source, last in had_of)

    # ------------------------------------------------------------ changes

    def take(
        self, request: SubscriptionRequest, home: BrokerNumber, head: int
    ) -> tuple[RequestAnswer, list[Change]]:
        """Take a request of a client; a new subscription begins at the head of the log.

        The subscription of a client without memory continues at its receipt. A client that was at
        another broker later is ignored, and its broker receives the later generation. A
        subscription that has moved to another storage continues there, and not here.

        Paper: [GES] §4 (reconnecting clients: storage, epoch, profile).
        """
        key, generation = request.key, request.generation
        latest = self._generations.get(key.client, (_NONE, home))
        if self._is_earlier(key.client, generation, home):
            return RequestAnswer(key, None, later_generation=latest[0]), []
        rows: list[Change] = []
        if generation > latest[0]:
            self._generations[key.client] = generation, home
            rows.append(Change(GENERATIONS, key.client, [generation, home]))
        if request.predicate is None:
            over = self._end(key)
            if request.successor is not None:
                self._successors[key] = request.successor
                over.append(Change(SUCCESSORS, _text(key), request.successor))
            return RequestAnswer(key, None), rows + over
        known = self._registrations.get(key)
        if known is not None and known.predicate != request.predicate:
            rows += self._end(key)
            known = None
        successor = self._successors.get(key)
        if known is None and (
            request.claims or (request.had is not None and successor is not None)
        ):
            return RequestAnswer(key, None, successor), rows
        if known is None:
            rows += self._end(key)
            known = Registration(key, generation, home, head, request.predicate, head)
            self._add(known)
        else:
            known.generation = generation
            known.move_to(home)
            if request.had is not None:
                had = min(request.had, head) if self._is_root else request.had
                known.received = max(known.received, had)
        self._take_over(known, request)
        self._memo.forget()
        return known.answer, [*rows, Change(REGISTERED, _text(key), _row(known))]

    @staticmethod
    def _take_over(known: Registration, request: SubscriptionRequest) -> None:
        """Record the previous storage and the successor of a subscription.

        A subscription with a successor has left its previous storage.
        """
        if request.before is not None:
            known.before = request.before
        if request.received_of is not None:
            known.received_of = request.received_of
            known.began = max(known.began, known.received)  # a receipt may be lost
        if request.successor is not None:
            known.successor, known.before = request.successor, None
            known.until = known.until if request.until is None else request.until

    def answer(self, request: SubscriptionRequest, home: BrokerNumber) -> RequestAnswer:
        """Return the same answer again."""
        known = self._registrations.get(request.key)
        if self._is_earlier(request.key.client, request.generation, home):
            later_generation = self._generations[request.key.client][0]
            return RequestAnswer(request.key, None, later_generation=later_generation)
        if known is None or request.predicate is None:
            successor = self._successors.get(request.key) if request.predicate is not None else None
            return RequestAnswer(request.key, None, successor)
        is_here = (known.generation, known.home) == (request.generation, home)
        return known.answer if is_here else RequestAnswer(request.key, None)

    def later_generation(self, client: ClientId, generation: int, home: BrokerNumber) -> int | None:
        """Return the generation of a client's later attachment at another broker, if any."""
        is_earlier = self._is_earlier(client, generation, home)
        return self._generations[client][0] if is_earlier else None

    def _is_earlier(self, client: ClientId, generation: int, home: BrokerNumber) -> bool:
        """Return True for a request of an earlier attachment than the latest at another broker.

        The requests of one broker arrive in order: there the last one counts.
        """
        latest = self._generations.get(client)
        if latest is None or home == latest[1]:
            return False
        return generation <= latest[0]

    def _end(self, key: Key) -> list[Change]:
        rows: list[Change] = []
        for each in _of(key, self._registrations):
            self.ends += 1
            self._ending.append((self.ends, self._registrations[each]))
            self._remove(each)
            rows += (Change(REGISTERED, _text(each), None), Change(RECEIPTS, _text(each), None))
        for each in _of(key, self._successors):
            del self._successors[each]
            rows.append(Change(SUCCESSORS, _text(each), None))
        return rows

    def confirm_ends(self, ends: int) -> None:
        """Record that the first ends, up to this number, are on disk."""
        while self._ending and self._ending[0][0] <= ends:
            self._ending.popleft()

    def receive(
        self, key: Key, generation: int, home: BrokerNumber, through: int, acknowledged: int
    ) -> list[Change]:
        """Record a client's receipt, and return the rows to write.

        Paper: [GES] §4 (receipts).
        """
        known = self._registrations.get(key)
        if known is None or (known.generation, known.home) != (generation, home):
            return []
        if through <= known.received and acknowledged <= known.acknowledged:
            return []
        if known.displaced and acknowledged > known.acknowledged:
            known.displaced = ()
            self._memo.forget()
        known.received = max(through, known.received)
        known.acknowledged = max(acknowledged, known.acknowledged)
        return [Change(RECEIPTS, _text(key), (known.received, known.acknowledged))]

    # ------------------------------------------------------------ interest

    def match(self, run: PublicationRun) -> list[tuple[BrokerNumber, ...]]:
        """Return, by attribute blob, the access brokers of interested clients."""
        return match_run(self._memo, run, run.source.broker)

    def lowest(self, durable: int) -> int:
        """Return the lowest receipt; without any, the last durable epoch."""
        return min((each.received for each in self.kept()), default=durable)

    def _homes(self, keys: tuple[Key, ...]) -> tuple[BrokerNumber, ...]:
        homes = (home for key in keys for home in self._registrations[key].homes)
        return tuple(sorted(dict.fromkeys(homes)))

    def _add(self, registration: Registration) -> None:
        self._registrations[registration.key] = registration
        self._index.add(registration.key, registration.predicate)
        self._memo.forget()

    def _remove(self, key: Key) -> None:
        del self._registrations[key]
        self._index.remove(key)
        self._memo.forget()


def _of(key: Key, known: Mapping[Key, object]) -> list[Key]:
    """Return a subscription, or all of a client, as far as present."""
    if not key.number:
        return [each for each in known if each.client == key.client]
    return [key] if key in known else []


def _row(known: Registration) -> list[Any]:
    """Return the row of a registration, without the receipt."""
    had_of = [[[*source], last] for source, last in known.received_of]
    numbers = known.successor, known.until, known.before
    more: list[Any] = [*(_NONE if value is None else value for value in numbers), had_of]
    while more and more[-1] in (_NONE, []):
        more.pop()
    return [known.generation, known.home, known.began, predicate_row(known.predicate), *more]


def _read_receipt(row: int | Sequence[int]) -> tuple[int, int]:
    """Return the receipt in a row and its acknowledgement, which older releases did not write."""
    if isinstance(row, int):
        return row, 0
    through, acknowledged = row
    return through, acknowledged


def _text(key: Key) -> str:
    return f"{key.client}/{key.number}"


def _read_key(text: str) -> Key:
    client, _, number = text.rpartition("/")
    return Key(client, int(number))


_Wanted = tuple[BrokerNumber, int]


class DependentStorages:
    """All storages that take from a storage."""

    def __init__(
        self, broker: BrokerNumber, place: StoragePlace, decode_attributes: DecodeAttributes
    ) -> None:
        self._broker = broker
        self._place = place
        self._requests: dict[_Wanted, tuple[int, Predicate]] = {}
        self._reached = dict.fromkeys((*place.siblings, *place.children), 0)
        self._index: MatchingIndex[_Wanted] = MatchingIndex()
        self._memo: MatchMemo[_Wanted, tuple[BrokerNumber, ...]] = MatchMemo(
            self._index, decode_attributes, conclude=_children
        )

    def recover(self, recovered: Mapping[str, Mapping[str, Any]], released: int) -> None:
        """Restore the state on disk; all storages had everything that was released."""
        for text, (began, row) in recovered.get(UNITS, {}).items():
            child, _, number = text.partition("/")
            self._add((int(child), int(number)), began, read_predicate(row))
        self._reached = dict.fromkeys(self._reached, released)

    def change(self, place: StoragePlace) -> None:
        """Take further storages; they report their progress first."""
        self._place = place
        for storage in (*place.siblings, *place.children):
            self._reached.setdefault(storage, 0)

    def __contains__(self, storage: BrokerNumber) -> bool:
        """Return True if a storage takes from this storage."""
        return storage in self._reached

    def is_child(self, storage: BrokerNumber) -> bool:
        """Return True if a storage takes from this storage as a finer storage."""
        return storage in self._place.children

    def reached(self) -> Mapping[BrokerNumber, int]:
        """Return, by storage, the epoch through which it has everything on disk."""
        return self._reached

    def predicates(self) -> Iterator[Predicate]:
        """Yield the predicates of children's units."""
        return (predicate for _, predicate in self._requests.values())

    # ------------------------------------------------------------ units of children

    def take(
        self, request: SubscriptionRequest, child: BrokerNumber, head: int
    ) -> tuple[RequestAnswer, list[Change]]:
        """Add or remove a predicate of a child's unit; a new predicate begins at the head."""
        key = child, request.key.number
        known = self._requests.get(key)
        rows: list[Change] = []
        if known is not None and known[1] != request.predicate:
            del self._requests[key]
            self._index.remove(key)
            self._memo.forget()
            rows.append(Change(UNITS, _child_key(key), None))
            known = None
        if known is None and request.predicate is not None:
            self._add(key, head, request.predicate)
            rows.append(Change(UNITS, _child_key(key), [head, predicate_row(request.predicate)]))
        return self.answer(request, child), rows

    def answer(self, request: SubscriptionRequest, child: BrokerNumber) -> RequestAnswer:
        """Return the same answer again."""
        known = self._requests.get((child, request.key.number))
        return RequestAnswer(Key("", request.key.number), known[0] if known is not None else None)

    def _add(self, key: _Wanted, began: int, predicate: Predicate) -> None:
        self._requests[key] = began, predicate
        self._index.add(key, predicate)
        self._memo.forget()

    # ------------------------------------------------------------ interest and progress

    def match(self, event: Event) -> list[tuple[BrokerNumber, ...]]:
        """Return, by attribute blob, the interested storages.

        Roots take all from access brokers.
        """
        found = match_run(self._memo, event.run, self._broker)
        if event.root == self._broker and self._place.siblings:
            return [(*self._place.siblings, *each) for each in found]
        return found

    def reach(self, storage: BrokerNumber, epoch: int) -> bool:
        """Record the epoch through which a storage is durable; return True if it has increased."""
        is_new = epoch > self._reached[storage]
        self._reached[storage] = max(epoch, self._reached[storage])
        return is_new

    def lowest(self, durable: int) -> int:
        """Return the epoch through which all storages are durable."""
        waited = {child for child, _ in self._requests}
        return min(
            (
                epoch
                for storage, epoch in self._reached.items()
                if storage in waited or storage in self._place.siblings
            ),
            default=durable,
        )


def _children(keys: tuple[_Wanted, ...]) -> tuple[BrokerNumber, ...]:
    return tuple(sorted({child: None for child, _ in keys}))


def _child_key(key: _Wanted) -> str:
    return f"{key[0]}/{key[1]}"
