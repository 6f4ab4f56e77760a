"""Property tests: the parts of a message that exceeds a frame are equivalent to the message."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.model.publication import merge_runs
from brokerd.protocols.durable import messages as durable
from brokerd.protocols.ges_reliable import messages as ges_reliable
from brokerd.protocols.gryphon import messages as gryphon
from brokerd.protocols.multi_proxy import messages as multi_proxy
from brokerd.protocols.registry import DEFINITIONS
from tests.helpers.strategies import runs

MODULES = {"gryphon": gryphon, "durable": durable, "ges_reliable": ges_reliable,
           "multi_proxy": multi_proxy}  # fmt: skip


def splits_of(kind: type) -> Any:
    """Return the division of a type of message."""
    known = [each for module in MODULES.values() for each in module.KINDS if each.type is kind]
    assert known[0].split is not None, kind
    return known[0].split


def pieces_of(message: Any) -> Iterator[Any]:
    """Yield the parts of a message, each of which cannot be divided further."""
    parts = splits_of(type(message))(message) if hasattr(message, "run") else ()
    if not parts:
        yield message
    for each in parts:
        yield from pieces_of(each)


def others(message: Any, *names: str) -> dict[str, Any]:
    """Return the fields besides the run and some others."""
    fields = type(message).__slots__ or type(message).__dataclass_fields__
    return {name: getattr(message, name) for name in fields if name not in ("run", *names)}


def check_runs(run: Any, parts: list[Any]) -> None:
    found = merge_runs([part.run for part in parts])
    assert [*found.sequences] == [*run.sequences]
    assert [part.run.first for part in parts] == [*run.sequences], "one publication each"
    assert found.payload_bytes() == run.payload_bytes()


@given(runs(), st.integers(0, 3), st.integers(1, 3), st.booleans())
def test_parts_of_events_cover_the_same_ticks_once(run, before, behind, again):
    start, end = run.first - min(before, run.first), run.last + behind
    whole = gryphon.Events(0, start, end, again, True, 2, run)
    parts = [*pieces_of(whole)]
    check_runs(run, parts)
    assert [part.start for part in parts] == [start, *(part.end for part in parts[:-1])]
    assert parts[-1].end == end
    for part in parts:
        assert part.start <= part.run.first <= part.run.last < part.end
        assert others(part, "start", "end") == others(whole, "start", "end")


@given(runs(), st.integers(0, 5))
def test_each_part_of_stored_publications_follows_the_part_before(run, after):
    whole = ges_reliable.Events((1, 2), 3, 4, 5, 6, after, run, True)
    parts = [*pieces_of(whole)]
    check_runs(run, parts)
    assert [part.after for part in parts] == [after, *(part.run.last for part in parts[:-1])]
    assert all(others(part, "after") == others(whole, "after") for part in parts)


@given(runs(), st.integers(0, 5))
def test_each_part_of_a_publish_request_names_the_part_before(run, previous):
    whole = multi_proxy.Put(1, 2, 3, previous, run)
    parts = [*pieces_of(whole)]
    check_runs(run, parts)
    assert [part.previous for part in parts] == [previous, *(part.run.last for part in parts[:-1])]
    assert all(others(part, "previous") == others(whole, "previous") for part in parts)


@given(runs(), st.integers(0, 3), st.integers(1, 3), st.integers(0, 40))
def test_parts_of_an_answer_cover_its_ranges_once(run, before, behind, cut):
    first, end = run.first - min(before, run.first), run.last + behind
    ranges: tuple[tuple[int, int], ...] = ((first, end),)
    if first < cut < end and cut not in run.sequences:
        ranges = tuple(each for each in ((first, cut), (cut + 1, end)) if each[0] < each[1])
    whole = durable.Fetched(7, ranges, run, ())
    parts = [*pieces_of(whole)]
    check_runs(run, [part for part in parts if isinstance(part, durable.Fetched)])
    ticks = [tick for part in parts for low, high in part.ranges for tick in range(low, high)]
    assert sorted(ticks) == [tick for low, high in ranges for tick in range(low, high)]
    for part in parts:
        assert (part.lost, part.origins) == (7, ())
        if isinstance(part, durable.Fetched):
            assert part.ranges == ((part.run.first, part.run.first + 1),)
        else:
            assert part.stream == run.source


@pytest.mark.parametrize("protocol", [*DEFINITIONS])
def test_every_division_of_its_own_is_among_these_tests(protocol: str) -> None:
    kinds = import_module(f"brokerd.protocols.{protocol}.messages").KINDS
    own = {
        (protocol, each.type.__name__)
        for each in kinds
        if each.split is not None and each.split.__module__ != "brokerd.model.message_kind"
    }
    assert own <= {
        ("gryphon", "Events"), ("ges_reliable", "Events"), ("multi_proxy", "Put"),
        ("durable", "Fetched"), ("durable", "Events"),
    }  # fmt: skip
