"""The subscriptions that a storage stores for, wherever their clients are, and their receipts.

They are on its disk; brokers keep nothing of them. Each begins behind an epoch, and its receipt
says up to which epoch its client is done: what is behind the lowest of all receipts is kept.

Paper: [GES] §4 (profiles with epochs; receipts). Deviates: an event's reference count is not
written down: it is the number of those whose receipts lie before it.
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
from brokerd.protocols.ges_reliable.messages import Begun, Key, Sequences, Wish
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.predicate_rows import predicate_row, read_predicate
from brokerd.protocols.parts.selection import match_run

REGISTERED: Final = "registered"
"""Per subscription: generation, home, the epoch it began behind, its predicate, and any heir, last
epoch, storage before and what comes from there."""
GENERATIONS: Final = "generations"
"""Per client, the latest stay that was heard of, with its home."""
RECEIPTS: Final = "receipts"
"""Per subscription, its receipt; a crash may lose the last ones."""
HEIRS: Final = "heirs"
"""Per subscription that has gone on at another storage, which one that is."""
_NONE: Final = -1
"""In a row, in place of a number that there is none of."""


@dataclass(slots=True, eq=False)
class Registration:
    """A subscription that is stored for.

    Attributes:
        generation, home: its client's last stay.
        received: its receipt.
        heir: the storage that it is about to go on at.
        until: what is behind this epoch comes from there, which is in another tree.
        before: the storage that may have what is before; this one itself if none has it any more.
        had_of: what came or comes from there, in spite of its epoch.
    """

    key: Key
    generation: int
    home: BrokerNumber
    began: int
    predicate: Predicate
    received: int
    heir: BrokerNumber | None = None
    until: int | None = None
    before: BrokerNumber | None = None
    had_of: Sequences = ()

    @property
    def begun(self) -> Begun:
        """What its home is told."""
        return Begun(self.key, self.received, self.heir, self.until, self.before, self.had_of)


class Registrations:
    """All of one storage.

    Args:
        is_root: it gives epochs, so no client has had a later one; a finer one may be behind.

    Attributes:
        ends: how many have ended.
    """

    def __init__(self, decode_attributes: DecodeAttributes, *, is_root: bool = True) -> None:
        self._is_root = is_root
        self._known: dict[Key, Registration] = {}
        self._heirs: dict[Key, BrokerNumber] = {}
        self._generations: dict[ClientId, tuple[int, BrokerNumber]] = {}
        self._index: MatchingIndex[Key] = MatchingIndex()
        self._memo: MatchMemo[Key, tuple[BrokerNumber, ...]] = MatchMemo(
            self._index, decode_attributes, conclude=self._homes
        )
        self._ending: deque[tuple[int, Registration]] = deque()
        self.ends = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._known)

    def known(self) -> Mapping[Key, Registration]:
        """All of them."""
        return self._known

    def kept(self) -> Iterator[Registration]:
        """All of them, and those whose end a crash could take back."""
        yield from self._known.values()
        yield from (each for _, each in self._ending)

    def heirs(self) -> Mapping[Key, BrokerNumber]:
        """Those that have gone on at other storages, and at which."""
        return self._heirs

    def recover(self, recovered: Mapping[str, Mapping[str, Any]], released: int) -> None:
        """Take over what is on disk; a receipt that was lost is no older than what is released."""
        for client, (generation, home) in recovered.get(GENERATIONS, {}).items():
            self._generations[client] = generation, home
        receipts = recovered.get(RECEIPTS, {})
        for text, (generation, home, began, row, *more) in recovered.get(REGISTERED, {}).items():
            key, predicate = _read_key(text), read_predicate(row)
            received = max(began, receipts.get(text, 0), released)
            self._add(Registration(key, generation, home, began, predicate, received))
            self._read_more(self._known[key], *more)
        for text, heir in recovered.get(HEIRS, {}).items():
            self._heirs[_read_key(text)] = heir

    @staticmethod
    def _read_more(
        known: Registration,
        heir: int = _NONE,
        until: int = _NONE,
        before: int = _NONE,
        had_of: Sequence[tuple[Sequence[int], int]] = (),
    ) -> None:
        known.heir, known.until, known.before = (
            None if value == _NONE else value for value in (heir, until, before)
        )
        known.had_of = tuple((SourceId(*source), last) for source, last in had_of)

    # ------------------------------------------------------------ changes

    def take(self, wish: Wish, home: BrokerNumber, head: int) -> tuple[Begun, list[Change]]:
        """What a client of a home asks for; what is not known begins at the head of the log.

        One that has lost its memory goes on where its receipts end. Whoever was heard of at
        another broker later is not listened to. One that has gone on at another storage goes on
        there, and not here.

        Paper: [GES] §4 (reconnecting clients: storage, epoch, profile).
        """
        key, generation = wish.key, wish.generation
        if self._is_earlier(key.client, generation, home):
            return Begun(key, None, is_gone=True), []
        rows: list[Change] = []
        if self._generations.get(key.client) != (generation, home):
            self._generations[key.client] = generation, home
            rows.append(Change(GENERATIONS, key.client, [generation, home]))
        if wish.predicate is None:
            over = self._end(key)
            if wish.heir is not None:
                self._heirs[key] = wish.heir
                over.append(Change(HEIRS, _text(key), wish.heir))
            return Begun(key, None), rows + over
        known = self._known.get(key)
        if known is not None and known.predicate != wish.predicate:
            rows += self._end(key)
            known = None
        heir = self._heirs.get(key)
        if known is None and (wish.claims or (wish.had is not None and heir is not None)):
            return Begun(key, None, heir), rows
        if known is None:
            rows += self._end(key)
            known = Registration(key, generation, home, head, wish.predicate, head)
            self._add(known)
        else:
            known.generation, known.home = generation, home
            if wish.had is not None:
                had = min(wish.had, head) if self._is_root else wish.had
                known.received = max(known.received, had)
        self._take_over(known, wish)
        self._memo.forget()
        return known.begun, [*rows, Change(REGISTERED, _text(key), _row(known))]

    @staticmethod
    def _take_over(known: Registration, wish: Wish) -> None:
        """What is said of the storages that one comes from, or goes on at.

        One that is to go on has been left by where it was before.
        """
        if wish.before is not None:
            known.before = wish.before
        if wish.had_of is not None:
            known.had_of = wish.had_of
            known.began = max(known.began, known.received)  # a receipt may be lost
        if wish.heir is not None:
            known.heir, known.before = wish.heir, None
            known.until = known.until if wish.until is None else wish.until

    def begun(self, wish: Wish, home: BrokerNumber) -> Begun:
        """The same answer once more."""
        known = self._known.get(wish.key)
        if self._is_earlier(wish.key.client, wish.generation, home):
            return Begun(wish.key, None, is_gone=True)
        if known is None or wish.predicate is None:
            heir = self._heirs.get(wish.key) if wish.predicate is not None else None
            return Begun(wish.key, None, heir)
        is_here = (known.generation, known.home) == (wish.generation, home)
        return known.begun if is_here else Begun(wish.key, None)

    def _is_earlier(self, client: ClientId, generation: int, home: BrokerNumber) -> bool:
        latest = self._generations.get(client)
        return latest is not None and (
            generation < latest[0] or (generation == latest[0] and home != latest[1])
        )

    def _end(self, key: Key) -> list[Change]:
        rows: list[Change] = []
        for each in _of(key, self._known):
            self.ends += 1
            self._ending.append((self.ends, self._known[each]))
            self._remove(each)
            rows += (Change(REGISTERED, _text(each), None), Change(RECEIPTS, _text(each), None))
        for each in _of(key, self._heirs):
            del self._heirs[each]
            rows.append(Change(HEIRS, _text(each), None))
        return rows

    def ended(self, ends: int) -> None:
        """The first so many ends are on disk."""
        while self._ending and self._ending[0][0] <= ends:
            self._ending.popleft()

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
        return min((each.received for each in self.kept()), default=durable)

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


def _of(key: Key, known: Mapping[Key, object]) -> list[Key]:
    """A subscription, or all of a client, as far as they are known."""
    if not key.number:
        return [each for each in known if each.client == key.client]
    return [key] if key in known else []


def _row(known: Registration) -> list[Any]:
    """A registration on disk; its receipt is elsewhere."""
    had_of = [[[*source], last] for source, last in known.had_of]
    numbers = known.heir, known.until, known.before
    more: list[Any] = [*(_NONE if value is None else value for value in numbers), had_of]
    while more and more[-1] in (_NONE, []):
        more.pop()
    return [known.generation, known.home, known.began, predicate_row(known.predicate), *more]


def _text(key: Key) -> str:
    return f"{key.client}/{key.number}"


def _read_key(text: str) -> Key:
    client, _, number = text.rpartition("/")
    return Key(client, int(number))
