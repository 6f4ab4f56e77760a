"""Tests of hostile clients at real brokers: no broker ends, and honest clients lose nothing.

This is a small part of the campaign, `python -m tests.fuzz.sessions --frames 100000`.
"""

from pathlib import Path

import pytest
import trio

from tests.fuzz.sessions import Counts, fuzz, look_at_brokers, replay, running
from tests.helpers.every_protocol import PROTOCOLS

pytestmark = pytest.mark.end_to_end

SEED = 20_381
FRAMES = 700


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_session_of_a_client_ends_a_broker(protocol: str, tmp_path: Path) -> None:
    print(f"seed {SEED}")  # noqa: T201
    counts = trio.run(fuzz, protocol, SEED, FRAMES, tmp_path)
    assert counts.frames >= FRAMES
    assert counts.ends == 0
    assert counts.deliveries == 2 * counts.published > 0
    assert counts.hostile_deliveries > FRAMES / 20, "hostile clients were never let in"


def test_a_journal_is_sent_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    sent = trio.run(fuzz, "gryphon", SEED, 300, first)

    async def again() -> Counts:
        counts = Counts()
        with running("gryphon", second) as brokers:
            await brokers.wait_until_ready()
            await replay(first / "journal", brokers, counts)
            await look_at_brokers(brokers, counts)
        return counts

    assert trio.run(again).frames == sent.frames
