"""A topic in transfer to a server that truncates records of the same topic meanwhile."""

from dataclasses import replace

from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Append
from brokerd.protocols.multi_proxy.messages import CarriedPart, Follow, Put, Stored
from brokerd.protocols.multi_proxy.parameters import CAUSAL
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import encode_attributes
from tests.protocols.multi_proxy.test_causal_ownership import HOME, TOPIC, transfer
from tests.protocols.multi_proxy.test_server import SERVER, Disk

MUTANTS = bugs_of("multi_proxy")

SOURCE = SourceId(HOME, 0, 1)


def put(first: int, last: int, previous: int = 0) -> Put:
    blob, count = encode_attributes({"kind": "a"}), last - first + 1
    run = PublicationRun(SOURCE, range(first, last + 1), (blob,), bytes(count), 0, ())
    return Put(SERVER, HOME, TOPIC, previous, run)


def stored_after_a_crash() -> list[Stored]:
    """Return the answer to publications that the other server stored before the transfer.

    Records of this server's own positions expire while the commit of the transfer is pending, and
    have the same source.
    """
    server = Disk(CAUSAL, servers=2, max_retain_ns=SECOND_NS)
    server.tell(Follow(SERVER, HOME, 1, 1, (TOPIC,)))
    server.tell(put(1, 2))
    given = replace(transfer(20), parts=(CarriedPart(2, 20, 20, ()),), followers=())
    server.request(given, Append)
    server.now_ns = 2 * SECOND_NS
    assert server.logged == 1
    server.tick()
    assert server.logged == 0
    server.start(2)
    return [each for each in server.tell(put(19, 20, 18)) if type(each) is Stored]


def test_truncated_records_do_not_undo_a_publication_stored_at_another_server() -> None:
    assert stored_after_a_crash() == [Stored(SERVER, HOME, TOPIC, SOURCE, 20)]


def test_a_server_that_forgets_it_stores_publications_twice() -> None:
    with plant([MUTANTS["chopped-while-it-is-given"]]):
        assert stored_after_a_crash() == []
