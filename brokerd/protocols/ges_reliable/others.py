"""Storages that take from this storage: children for their units, and other roots.

The predicates of a child's unit are on this disk, so that an epoch sent for a predicate holds. The
progress of the other storages is not on disk: they report it again.

Paper: [GES] §4 (profiles of units; pending lists of system storages; receipts of finer storages).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.identity import BrokerNumber
from brokerd.model.predicate import DecodeAttributes, Predicate
from brokerd.protocols.ges_reliable.epoch_log import Event
from brokerd.protocols.ges_reliable.messages import Begun, Key, Wish
from brokerd.protocols.ges_reliable.places import StoragePlace
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.predicate_rows import predicate_row, read_predicate
from brokerd.protocols.parts.selection import match_run

UNITS: Final = "units"
"""Per child and number: a predicate, and the epoch after which the predicate begins."""

_Wanted = tuple[BrokerNumber, int]


class Others:
    """All storages that take from a storage."""

    def __init__(
        self, broker: BrokerNumber, place: StoragePlace, decode_attributes: DecodeAttributes
    ) -> None:
        self._broker = broker
        self._place = place
        self._wanted: dict[_Wanted, tuple[int, Predicate]] = {}
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

    def predicates(self) -> Iterator[Predicate]:
        """Yield the predicates of children's units."""
        return (predicate for _, predicate in self._wanted.values())

    # ------------------------------------------------------------ units of children

    def take(self, wish: Wish, child: BrokerNumber, head: int) -> tuple[Begun, list[Change]]:
        """Add or remove a predicate of a child's unit; a new predicate begins at the head."""
        key = child, wish.key.number
        known = self._wanted.get(key)
        rows: list[Change] = []
        if known is not None and known[1] != wish.predicate:
            del self._wanted[key]
            self._index.remove(key)
            self._memo.forget()
            rows.append(Change(UNITS, _text(key), None))
            known = None
        if known is None and wish.predicate is not None:
            self._add(key, head, wish.predicate)
            rows.append(Change(UNITS, _text(key), [head, predicate_row(wish.predicate)]))
        return self.begun(wish, child), rows

    def begun(self, wish: Wish, child: BrokerNumber) -> Begun:
        """Return the same answer again."""
        known = self._wanted.get((child, wish.key.number))
        return Begun(Key("", wish.key.number), known[0] if known is not None else None)

    def _add(self, key: _Wanted, began: int, predicate: Predicate) -> None:
        self._wanted[key] = began, predicate
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
        is_news = epoch > self._reached[storage]
        self._reached[storage] = max(epoch, self._reached[storage])
        return is_news

    def lowest(self, durable: int) -> int:
        """Return the epoch through which all storages are durable."""
        waited = {child for child, _ in self._wanted}
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


def _text(key: _Wanted) -> str:
    return f"{key[0]}/{key[1]}"
