"""Publications on their way into the log: group by group, and back out of it."""

import trio
import trio.testing

from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Append, Event, Persisted, Release
from brokerd.runtime.publication_log import LogWriter, read_log
from brokerd.storage.publication_log import PublicationLogFiles

SOURCE = SourceId(3, 1, 2)


def run_of(first: int, last: int) -> PublicationRun:
    count = last - first + 1
    payload = b"".join(bytes([n % 256]) * 3 for n in range(first, last + 1))
    return PublicationRun(
        SOURCE, range(first, last + 1), (b"\xa0",), bytes(count), 3, (memoryview(payload),)
    )


def test_what_a_broker_logged_comes_back_without_what_was_done(tmp_path):
    async def story() -> None:
        files = PublicationLogFiles(tmp_path / "log")
        read_log(files, recovering=True)
        events: list[Event] = []
        writer = LogWriter(files, events.extend)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            writer.append(Append(run_of(1, 4), 1))
            writer.append(Append(run_of(5, 6), 2))
            await writer.settle()
            assert events == [Persisted(1), Persisted(2)]
            writer.release(Release(SOURCE, 4))
            writer.append(Append(run_of(7, 7), 3))
            await writer.settle()
            assert events[2:] == [Persisted(3)]
            nursery.cancel_scope.cancel()
        files.close()

    trio.run(story)
    runs = read_log(PublicationLogFiles(tmp_path / "log"), recovering=True)
    assert [list(run.sequences) for run in runs] == [[5, 6], [7]]
    contents = [bytes(payload) for run in runs for _, _, payload in run.publications()]
    assert contents == [bytes([n]) * 3 for n in (5, 6, 7)]
    assert {run.source for run in runs} == {SOURCE}
