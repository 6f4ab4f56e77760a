"""The subscriptions that a storage stores for, wherever their clients are, and their receipts.

They are on its disk; brokers keep nothing of them. Each begins behind an epoch, and its receipt
says up to which epoch its client is done: what is behind the lowest of all receipts is kept.

Paper: [GES] §4 (profiles with epochs; receipts). Deviates: an event's reference count is not
written down: it is the number of those whose receipts lie before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.identity import BrokerNumber, ClientId
from brokerd.model.predicate import DecodeAttributes, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges_reliable.messages import Begun, Key, Wish
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.predicate_rows import predicate_row, read_predicate
from brokerd.protocols.parts.selection import match_run

REGISTERED: Final = "registered"
"""Per subscription: generation, home, the epoch it began behind, its predicate."""
GENERATIONS: Final = "generations"
"""Per client, the latest stay that was heard of, with its home."""
RECEIPTS: Final = "receipts"
"""Per subscription, its receipt; a crash may lose the last ones."""


@dataclass(slots=True, eq=False)
class Registration:
    """A subscription that is stored for.

    Attributes:
        generation, home: its client's last stay.
        received: its receipt.
    """

    key: Key
    generation: int
    home: BrokerNumber
    began: int
    predicate: Predicate
    received: int


class Registrations:
    """All of one storage."""

    def __init__(self, decode_attributes: DecodeAttributes) -> None:
        self._known: dict[Key, Registration] = {}
        self._generations: dict[ClientId, tuple[int, BrokerNumber]] = {}
        self._index: MatchingIndex[Key] = MatchingIndex()
        self._memo: MatchMemo[Key, tuple[BrokerNumber, ...]] = MatchMemo(
            self._index, decode_attributes, conclude=self._homes
        )

    def __len__(self) -> int:
        """How many there are."""
        return len(self._known)

    def known(self) -> Mapping[Key, Registration]:
        """All of them."""
        return self._known

    def recover(self, recovered: Mapping[str, Mapping[str, Any]], released: int) -> None:
        """Take over what is on disk; a receipt that was lost is no older than what is released."""
        for client, (generation, home) in recovered.get(GENERATIONS, {}).items():
            self._generations[client] = generation, home
        receipts = recovered.get(RECEIPTS, {})
        for text, (generation, home, began, row) in recovered.get(REGISTERED, {}).items():
            key = _read_key(text)
            received = max(began, receipts.get(text, 0), released)
            self._add(Registration(key, generation, home, began, read_predicate(row), received))

    # ------------------------------------------------------------ changes

    def take(self, wish: Wish, home: BrokerNumber, head: int) -> tuple[Begun, list[Change]]:
        """What a client of a home asks for; what is not known begins at the head of the log.

        One that has lost its memory goes on where its receipts end. Whoever was heard of at
        another broker later is not listened to.

        Paper: [GES] §4 (reconnecting clients: storage, epoch, profile).
        """
        key, generation = wish.key, wish.generation
        if self._is_earlier(key.client, generation, home):
            return Begun(key, None), []
        rows: list[Change] = []
        if self._generations.get(key.client) != (generation, home):
            self._generations[key.client] = generation, home
            rows.append(Change(GENERATIONS, key.client, [generation, home]))
        if wish.predicate is None:
            return Begun(key, None), rows + self._end(key)
        known = self._known.get(key)
        if known is not None and known.predicate != wish.predicate:
            rows += self._end(key)
            known = None
        if known is None and wish.claims:
            return Begun(key, None), rows
        if known is None:
            known = Registration(key, generation, home, head, wish.predicate, head)
            self._add(known)
        else:
            known.generation, known.home = generation, home
            if wish.had is not None:
                known.received = max(known.received, min(wish.had, head))
        self._memo.forget()
        row = [generation, home, known.began, predicate_row(known.predicate)]
        return Begun(key, known.received), [*rows, Change(REGISTERED, _text(key), row)]

    def begun(self, wish: Wish, home: BrokerNumber) -> Begun:
        """The same answer once more."""
        known = self._known.get(wish.key)
        if known is None or wish.predicate is None:
            return Begun(wish.key, None)
        is_here = (known.generation, known.home) == (wish.generation, home)
        return Begun(wish.key, known.received if is_here else None)

    def _is_earlier(self, client: ClientId, generation: int, home: BrokerNumber) -> bool:
        latest = self._generations.get(client)
        return latest is not None and (
            generation < latest[0] or (generation == latest[0] and home != latest[1])
        )

    def _end(self, key: Key) -> list[Change]:
        over = [key] if key.number else [each for each in self._known if each[0] == key.client]
        rows: list[Change] = []
        for each in over:
            if each in self._known:
                self._remove(each)
                rows += (Change(REGISTERED, _text(each), None), Change(RECEIPTS, _text(each), None))
        return rows

    def receive(self, key: Key, generation: int, home: BrokerNumber, through: int) -> list[Change]:
        """A client is done with what is up to an epoch.

        Paper: [GES] §4 (receipts).
        """
        known = self._known.get(key)
        if known is None or (known.generation, known.home) != (generation, home):
            return []
        if through <= known.received:
            return []
        known.received = through
        return [Change(RECEIPTS, _text(key), through)]

    # ------------------------------------------------------------ who wants what

    def match(self, run: PublicationRun) -> list[tuple[BrokerNumber, ...]]:
        """By attribute blob, the homes of clients that want it."""
        return match_run(self._memo, run, run.source.broker)

    def lowest(self, durable: int) -> int:
        """The lowest receipt; without any, all that is durable is done."""
        return min((each.received for each in self._known.values()), default=durable)

    def _homes(self, keys: tuple[Key, ...]) -> tuple[BrokerNumber, ...]:
        return tuple(sorted({self._known[key].home: None for key in keys}))

    def _add(self, registration: Registration) -> None:
        self._known[registration.key] = registration
        self._index.add(registration.key, registration.predicate)
        self._memo.forget()

    def _remove(self, key: Key) -> None:
        del self._known[key]
        self._index.remove(key)
        self._memo.forget()


def _text(key: Key) -> str:
    return f"{key.client}/{key.number}"


def _read_key(text: str) -> Key:
    client, _, number = text.rpartition("/")
    return Key(client, int(number))
