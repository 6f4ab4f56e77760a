"""Runs as records of a log: a round trip preserves all contents."""

from hypothesis import given
from hypothesis import strategies as st

from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.protocols.parts.records import pack_run, unpack_run
from tests.helpers.strategies import runs


@given(runs())
def test_a_run_is_restored_from_its_record(run: PublicationRun) -> None:
    record = b"head" + b"".join(pack_run(run))
    found = unpack_run(record, 4)
    assert found.source == run.source
    assert list(found.publications()) == list(run.publications())
    assert list(found.sequences) == list(run.sequences)


def test_payloads_are_passed_on_as_they_are() -> None:
    payload = memoryview(bytes(1_000))
    run = PublicationRun(SourceId(1, 2, 3), range(7, 9), (b"\xa0",), bytes(2), 500, (payload,))
    assert any(piece is payload for piece in pack_run(run))


@given(st.integers(2, 400))
def test_a_run_of_many_different_attributes_is_restored(count: int) -> None:
    source = SourceId(0, 0, 0)
    singles = [
        PublicationRun(source, (n,), (str(n // 2).encode(),), bytes(1), n % 3, (bytes(n % 3),))
        for n in range(1, count + 1)
    ]
    run = merge_runs(singles)
    found = unpack_run(b"".join(pack_run(run)))
    assert list(found.publications()) == list(run.publications())
