"""The child storages of a storage, compared with a plain table of their units' predicates."""

from random import Random

import pytest

from brokerd.model.identity import SourceId
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges_reliable.definition import StoragePlace
from brokerd.protocols.ges_reliable.messages import Key, SubscriptionRequest
from brokerd.protocols.ges_reliable.state import UNITS, Event
from brokerd.protocols.ges_reliable.subscriptions import DependentStorages
from brokerd.wire.attributes import decode_attribute_table, encode_attributes

HERE, SIBLING, CHILDREN = 1, 2, (3, 4)
KINDS = "abc"
PREDICATES = {kind: parse_predicate(f"kind = '{kind}'") for kind in KINDS}


def others() -> DependentStorages:
    return DependentStorages(HERE, StoragePlace(None, (SIBLING,), CHILDREN), decode_attribute_table)


def event(kind: str, root: int) -> Event:
    blob = encode_attributes({"kind": kind})
    return Event(PublicationRun(SourceId(9, 0, 1), range(1, 2), (blob,), b"\0", 0, ()), root)


@pytest.mark.parametrize("seed", range(60))
def test_a_child_receives_the_events_of_its_unit_before_and_after_a_crash(seed: int) -> None:
    """Predicates start, change and end between publications of all kinds."""
    random, present = Random(seed), others()
    rows: dict[str, object] = {}
    wanted: dict[tuple[int, int], tuple[int, str]] = {}
    reached = dict.fromkeys((SIBLING, *CHILDREN), 0)
    released = head = 0
    for _ in range(60):
        match random.randrange(6):
            case 0 | 1 | 2:
                child, number = random.choice(CHILDREN), random.randrange(1, 4)
                kind = random.choice((None, *KINDS))
                wish = SubscriptionRequest(
                    Key("", number), 1, None if kind is None else PREDICATES[kind]
                )
                begun, changes = present.take(wish, child, head)
                if kind is None:
                    wanted.pop((child, number), None)
                elif wanted.get((child, number), (0, ""))[1] != kind:
                    wanted[child, number] = head, kind
                expected = wanted.get((child, number))
                assert begun.after == (None if expected is None else expected[0])
                for change in changes:
                    assert change.table == UNITS
                    rows.pop(change.key, None)
                    if change.value is not None:
                        rows[change.key] = change.value
            case 3:
                head += random.randrange(3)
                storage = random.choice((SIBLING, *CHILDREN))
                epoch = random.randint(0, head)
                assert present.reach(storage, epoch) == (epoch > reached[storage])
                reached[storage] = max(reached[storage], epoch)
            case 4:
                released = max(released, present.lowest(head))
            case 5:
                present = others()
                present.recover({UNITS: rows}, released)
                reached = dict.fromkeys(reached, released)
        for kind in KINDS:
            children = tuple(
                sorted({child for (child, _), (_, each) in wanted.items() if each == kind})
            )
            assert present.match(event(kind, HERE)) == [(SIBLING, *children)]
            assert present.match(event(kind, SIBLING)) == [children]
        waited = {SIBLING, *(child for child, _ in wanted)}
        assert present.lowest(head) == min(reached[storage] for storage in waited)
