"""Invalid messages of peers and clients are refused without side effects."""

from dataclasses import replace

import pytest

from brokerd.errors import RemoteProtocolError, StorageCorrupt
from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Connected,
    Detach,
    Publish,
    Subscribe,
    Unsubscribe,
    Unsubscribed,
)
from brokerd.model.identity import SourceId, SubscriptionId
from brokerd.model.predicate import EVERYTHING
from brokerd.protocols.delta_tree.messages import (
    NOTIFIER,
    PublicationConfirmation,
    PublicationCopy,
    RecoveryNotifier,
    SubscriptionConfirmation,
    SubscriptionCopy,
    Summary,
    SyncEnd,
    Tag,
    Tombstones,
    Unsubscription,
    UpstreamCopy,
)
from brokerd.protocols.delta_tree.tombstones import LAST_NUMBER
from brokerd.protocols.interface import MessageReceived, Send, SessionEstablished, SessionLost
from tests.helpers.exchange import Exchange, blob, run_of
from tests.protocols.delta_tree.cost import forwarding_broker

SOURCE = SourceId(0, 0, 1)
OF_2 = SubscriptionId(2, 1, 1)
OF_0 = SubscriptionId(0, 1, 9)
A = blob(kind="a")
GOOD_RUN = run_of(SOURCE, 1, A)
TAG = (Tag((3, 2, 1, 0, 4), 0, 1, 1, True),)
OWN = SubscriptionId(3, 1, 1)


def notifier(**changes):
    """Return a corrupted notifier that broker 1 could receive from broker 0."""
    source = SourceId(0, NOTIFIER, 1)
    good = RecoveryNotifier(source, 1, (0, 1, 2, 3), OWN, TAG, (), (), ())
    return replace(good, **changes)


def confirmation(tag=None, cut=(), paths=()):
    """Return a confirmation of broker 0."""
    return SubscriptionConfirmation(OWN, (tag,) if tag else (), cut, paths)


def over(*ended):
    """Return an unsubscription from broker 0."""
    return Unsubscription(tuple(ended))


def ready():
    """Return broker 1 of 0–1–2–3 with a subscription at broker 3 that all brokers have."""
    exchange = Exchange(((0, 1), (1, 2), (2, 3)))
    exchange.subscribe(exchange.client("s", 3), "kind = 'a'")
    exchange.subscribe(exchange.client("own", 1), "kind = 'b'")
    return exchange


FROM_BROKER_0 = {
    "the end of an incarnation that leaps": over(Tombstones(2, (1 << 20) + 1, ())),
    "an end in an incarnation that leaps": over(Tombstones(2, 0, ((1, 1, (1 << 20) + 1, 1),))),
    "a second summary": Summary((), False),
    "a client's message": Connect(False, 1, 1, 0, ()),
    "no message at all": "hello",
    "a path that ends elsewhere": PublicationCopy(GOOD_RUN, (0, 2)),
    "a path that is empty": PublicationCopy(GOOD_RUN, ()),
    "a path over a link that is not there": SubscriptionCopy(
        SubscriptionId(3, 1, 9), EVERYTHING, (3, 0, 1), False
    ),
    "a path that visits a broker twice": PublicationCopy(
        replace(GOOD_RUN, source=SourceId(9, 0, 1)), (9, 0, 9, 0, 1)
    ),
    "a path of broker numbers out of range": PublicationCopy(
        replace(GOOD_RUN, source=SourceId(1 << 40, 0, 1)), (1 << 40, 8, 0, 1)
    ),
    "a source that is not where the path begins": PublicationCopy(GOOD_RUN, (5, 0, 1)),
    "our own publications": PublicationCopy(replace(GOOD_RUN, source=SourceId(1, 0, 1)), (0, 1)),
    "publications of a broker it is not in front of": PublicationCopy(
        replace(GOOD_RUN, source=SourceId(2, 0, 1)), (2, 1)
    ),
    "malformed attributes": PublicationCopy(run_of(SOURCE, 1, b"{nonsense"), (0, 1)),
    "attributes that are no map": PublicationCopy(run_of(SOURCE, 1, b"[1]"), (0, 1)),
    "attributes nobody has": PublicationCopy(
        replace(GOOD_RUN, attribute_table=(A, blob(kind="b"))), (0, 1)
    ),
    "a sequence below one": PublicationCopy(run_of(SOURCE, 0, A), (0, 1)),
    "a range backwards": PublicationConfirmation(((SOURCE, 3, 2),)),
    "a range from zero": PublicationConfirmation(((SOURCE, 0, 2),)),
    "a subscription from behind": SubscriptionCopy(OF_2, EVERYTHING, (2, 1), False),
    "a subscription that begins at another home": SubscriptionCopy(OF_2, EVERYTHING, (0, 1), False),
    "a known home over another way": SubscriptionCopy(
        SubscriptionId(3, 1, 9), EVERYTHING, (3, 7, 0, 1), False
    ),
    "an upstream copy over another way": UpstreamCopy(
        SubscriptionId(3, 1, 9), EVERYTHING, (3, 7, 0, 1), ()
    ),
    "an upstream copy with tags": UpstreamCopy(OF_0, EVERYTHING, (0, 1), TAG),
    "a negative cut": confirmation(cut=((SOURCE, -1),), paths=((3, 2, 1, 0),)),
    "a cut of a source from nowhere": confirmation(cut=((SOURCE, 1),)),
    "a source on another side": confirmation(cut=((SOURCE, 1),), paths=((3, 2, 0),)),
    "a tag without a path": confirmation(Tag((), 0, 1, 1, True)),
    "a tag for foreign brokers": confirmation(Tag((3, 2, 0, 4), 0, 1, 1, True)),
    "a tag for the sender itself": confirmation(Tag((3, 2, 1, 0), 0, 1, 1, True)),
    "a tag of a detector that is not behind the sender": confirmation(
        Tag((3, 2, 1, 0, 4), 2, 1, 1, True)
    ),
    "a tag that runs in a circle": confirmation(Tag((3, 2, 1, 0, 2), 0, 1, 1, True)),
    "a tag of no partition": confirmation(Tag((3, 2, 1, 0, 4), 0, 1, 0, True)),
    "a notifier that does not come this way": notifier(path=(0, 2, 3)),
    "a notifier over another way": notifier(path=(0, 1, 7, 3)),
    "a notifier for another home": notifier(path=(0, 1, 2)),
    "a notifier without number": notifier(sequence=0),
    "a notifier of a publisher": notifier(source=SOURCE),
    "a notifier of another's tags": notifier(removed=(Tag((3, 7, 8), 7, 1, 1, True),)),
    "the end of what lives here": over(Tombstones(1, 1, ((1, 1, 1, 1),))),
    "the end of what was never issued here": over(Tombstones(1, 1, ((1, 5, 1, 9),))),
    "the end of all that is issued here": over(Tombstones(1, 2, ())),
    "an end of nobody's subscription": over(Tombstones(1 << 40, 1, ())),
    "an end from zero": over(Tombstones(3, 1, ((1, 0, 1, 4),))),
    "an end backwards": over(Tombstones(3, 1, ((1, 4, 1, 3),))),
    "ends that overlap": over(Tombstones(3, 1, ((1, 1, 1, 4), (1, 4, 1, 5)))),
    "ends that touch": over(Tombstones(3, 1, ((1, 1, 1, 4), (1, 5, 1, 6)))),
    "ends that touch across a restart": over(
        Tombstones(3, 1, ((1, 4, 1, LAST_NUMBER), (2, 1, 2, 3)))
    ),
    "an end of more than there can be": over(Tombstones(3, 1, ((1, 1, 1, LAST_NUMBER + 1),))),
    "ends of incarnations out of order": over(Tombstones(3, 1, ((2, 1, 2, 4), (1, 5, 1, 6)))),
    "an end that was said already": over(Tombstones(3, 2, ((1, 1, 1, 4),))),
    "one home twice": over(Tombstones(3, 2, ()), Tombstones(3, 3, ())),
    "publications of a notifier": PublicationCopy(run_of(SourceId(0, NOTIFIER, 1), 1, A), (0, 1)),
}


@pytest.mark.parametrize("message", FROM_BROKER_0.values(), ids=FROM_BROKER_0)
def test_a_broker_that_breaks_the_rules_is_refused_and_changes_nothing(message):
    exchange = ready()
    core = exchange.cores[1]
    before = (dict(core.statistics()), core.status(), core.next_deadline())
    with pytest.raises(RemoteProtocolError) as caught:
        core.handle(MessageReceived(0, exchange.sessions[1, 0], message), 0)
    assert len(str(caught.value)) < 400
    after = (dict(core.statistics()), core.status(), core.next_deadline())
    matching = ("matching_hits", "matching_misses")
    assert {k: v for k, v in before[0].items() if k not in matching} == {
        k: v for k, v in after[0].items() if k not in matching
    }
    assert before[1:] == after[1:]
    publisher = exchange.client("p", 0, publishes=True)
    exchange.publish(publisher, 1, A)
    assert exchange.clients["s"].got() == [1], "life goes on"


def test_a_subscription_confirmed_from_its_home_side_is_refused():
    exchange = ready()
    wrong = SubscriptionConfirmation(SubscriptionId(3, 1, 1), (), (), ())
    with pytest.raises(RemoteProtocolError, match="home side"):
        exchange.cores[1].handle(MessageReceived(2, exchange.sessions[1, 2], wrong), 0)


def test_a_subscription_id_with_two_predicates_is_refused():
    exchange = ready()
    wrong = SubscriptionCopy(SubscriptionId(3, 1, 1), EVERYTHING, (3, 2, 1), False)
    with pytest.raises(RemoteProtocolError, match="two predicates"):
        exchange.cores[1].handle(MessageReceived(2, exchange.sessions[1, 2], wrong), 0)


def test_messages_before_the_summary_are_refused():
    exchange = ready()
    core = exchange.cores[1]
    exchange.cut(0, 1, heal=True)
    core.handle(SessionEstablished(0, 99, 2), 0)
    with pytest.raises(RemoteProtocolError, match="Summary"):
        core.handle(MessageReceived(0, 99, SyncEnd(False)), 0)


FROM_CLIENT = {
    "a second Connect": Connect(True, 1, 1, 0, ()),
    "a broker's message": SyncEnd(False),
    "an answer": Connected(None, 1),
    "another's source": Publish(run_of(SourceId(0, 7, 1), 1, A)),
    "malformed attributes": Publish(run_of(SOURCE, 1, b"\xff")),
    "a range backwards": Acknowledge(SOURCE, 5, 4),
}


@pytest.mark.parametrize("message", FROM_CLIENT.values(), ids=FROM_CLIENT)
def test_a_client_that_breaks_the_rules_is_refused(message):
    exchange = ready()
    client = exchange.client("p", 0, publishes=True)
    before = dict(exchange.cores[0].statistics())
    with pytest.raises(RemoteProtocolError):
        exchange.cores[0].handle(MessageReceived("p", client.session, message), 0)
    after = exchange.cores[0].statistics()
    assert before["publications_received"] == after["publications_received"]
    exchange.publish(client, 1, A)
    assert exchange.clients["s"].got() == [1]


@pytest.mark.parametrize(
    "message",
    [
        Subscribe(1, EVERYTHING),
        Publish(GOOD_RUN),
        Acknowledge(SOURCE, 1, 1),
        Unsubscribe(1),
        Detach(drain=False, done_through=0),
    ],
)
def test_client_messages_before_connect_are_refused(message):
    exchange = ready()
    core = exchange.cores[0]
    core.handle(SessionEstablished("c", 77, 1), 0)
    with pytest.raises(RemoteProtocolError, match="before Connected"):
        core.handle(MessageReceived("c", 77, message), 0)


def test_a_detached_client_may_send_only_acknowledgements():
    exchange = ready()
    client = exchange.client("p", 0, publishes=True)
    exchange.say(client, Detach(drain=False, done_through=0))
    core = exchange.cores[0]
    for message in (
        Subscribe(1, EVERYTHING),
        Unsubscribe(1),
        Detach(drain=True, done_through=0),
        Publish(run_of(client.source, 1, A)),
    ):
        with pytest.raises(RemoteProtocolError, match="after Detach"):
            core.handle(MessageReceived("p", client.session, message), 0)
    core.handle(MessageReceived("p", client.session, Acknowledge(SOURCE, 1, 1)), 0)


@pytest.mark.parametrize(
    "summary",
    [
        Summary((SubscriptionId(1, 1, 9),), False),
        Summary((SubscriptionId(1, 2, 1),), False),
        Summary((), False, (Tombstones(1, 1, ((1, 1, 1, 1),)),)),
    ],
    ids=("routes by what was not issued", "nor by a later incarnation", "ends what lives"),
)
def test_a_summary_that_lies_of_our_own_subscriptions_is_refused(summary):
    exchange = ready()
    core = exchange.cores[1]
    core.handle(SessionLost(0, exchange.sessions[1, 0], "silent"), 0)
    core.handle(SessionEstablished(0, 900, 1), 0)
    with pytest.raises(RemoteProtocolError):
        core.handle(MessageReceived(0, 900, summary), 0)
    assert core.status().ready == (2,)
    assert core.statistics()["subscriptions"] == 2


@pytest.mark.parametrize(
    "connect",
    [Connect(True, -1, 1, 0, ()), Connect(True, 1, 0, 0, ()), Connect(True, 1, 1, -1, ())],
)
def test_a_connect_with_impossible_numbers_is_refused(connect):
    exchange = ready()
    core = exchange.cores[0]
    core.handle(SessionEstablished("c", 77, 1), 0)
    with pytest.raises(RemoteProtocolError, match="impossible"):
        core.handle(MessageReceived("c", 77, connect), 0)


@pytest.mark.parametrize("publishes, done", [(True, -1), (True, 4), (False, 1)])
def test_a_detach_beyond_the_published_sequence_is_refused(publishes, done):
    exchange = ready()
    client = exchange.client("c", 0, publishes=publishes)
    if publishes:
        exchange.publish(client, 1, A, A, A)
    message = MessageReceived("c", client.session, Detach(drain=False, done_through=done))
    with pytest.raises(RemoteProtocolError, match="handed out"):
        exchange.cores[0].handle(message, 0)
    exchange.say(client, Detach(drain=False, done_through=3 if publishes else 0))
    assert exchange.clients["c"].answers[-1] == Unsubscribed(0)


def test_malformed_attributes_are_refused_even_while_publications_are_held():
    exchange = ready()
    exchange.kill(0)
    exchange.hold(1, 0)
    exchange.start(0)
    client = exchange.client("p", 0, publishes=True)
    bad = Publish(run_of(client.source, 1, b"?"))
    with pytest.raises(RemoteProtocolError, match="malformed"):
        exchange.cores[0].handle(MessageReceived("p", client.session, bad), 0)


def test_a_confirmation_of_an_unknown_subscription_or_source_is_ignored():
    exchange = ready()
    core, session = exchange.cores[1], exchange.sessions[1, 0]
    for message in (
        SubscriptionConfirmation(SubscriptionId(3, 8, 8), (), (), ()),
        PublicationConfirmation(((SourceId(3, 3, 3), 1, 9),)),
        UpstreamCopy(SubscriptionId(1, 1, 5), EVERYTHING, (1,), ()),
    ):
        assert core.handle(MessageReceived(0, session, message), 0) == []


@pytest.mark.parametrize("first, last", [(1, 3), (1, 1 << 62), (2, 2), (4, 9)])
def test_a_confirmation_of_unsent_publications_confirms_nothing_for_others(first, last):
    """Broker 2 was sent 1 to 3; the sender 0 and a client confirm publications beyond their own."""
    core = forwarding_broker([(2, "true")])
    run = run_of(SOURCE, 1, blob(a=1), blob(a=2), blob(a=3))
    core.handle(MessageReceived(0, 1, PublicationCopy(run, (0, 1))), 0)
    done = PublicationConfirmation(((SOURCE, first, last),))
    for peer in (0, 3):
        assert core.handle(MessageReceived(peer, peer + 1, done), 0) == []
        assert core.statistics()["queue_publications"] == 3
    other = PublicationConfirmation(((SourceId(0, 9, 1), 1, 3), (SOURCE, 4, 1 << 62)))
    assert core.handle(MessageReceived(2, 3, other), 0) == []
    assert core.statistics()["queue_publications"] == 3
    confirmed = core.handle(MessageReceived(2, 3, PublicationConfirmation(((SOURCE, 1, 3),))), 0)
    assert confirmed == [Send(0, PublicationConfirmation(((SOURCE, 1, 3),)))]
    assert core.statistics()["queue_publications"] == 0
    assert core.handle(MessageReceived(2, 3, done), 0) == []


def test_overlapping_publications_are_accepted_once_and_confirmed():
    exchange = ready()
    core, session = exchange.cores[1], exchange.sessions[1, 0]
    for first in (1, 3, 2):
        overlapping = PublicationCopy(run_of(SOURCE, first, A, A, A), (0, 1))
        exchange.handle(1, MessageReceived(0, session, overlapping))
    exchange.settle()
    assert exchange.clients["s"].got() == [1, 2, 3, 4, 5]
    assert core.statistics()["queue_publications"] == 0


@pytest.mark.parametrize(
    "table, rows",
    [
        ("subscriptions", {"s/1": [1, 1, "nonsense", True, [], []]}),
        ("subscriptions", {"s/one": [1, 1, [], True, [], []]}),
        ("subscriptions", {"s/1": [1, 1, [[["a", "??", ["plain", 1]]]], True, [], []]}),
        ("subscriptions", {"s/1": [1, 1, [], True, [], [[1, 2]]]}),
        ("positions", {"s/1/0.0": 3}),
        ("routing", {"2.1": [[], [2, 1]]}),
        ("ended", {"3": [1, [[1, 4, 2]]]}),
        ("ended", {"3": [2, [[1, 4, 5]]]}),
        ("ended", {"three": [1, []]}),
        ("ended", {"3": 7}),
    ],
)
def test_a_broker_does_not_start_on_rows_it_cannot_have_written(table, rows):
    exchange = ready()
    exchange.kill(1)
    exchange.disks[1][table] = rows
    with pytest.raises(StorageCorrupt, match=f"table {table}"):
        exchange.start(1)


def test_a_message_of_another_session_is_ignored():
    exchange = ready()
    core = exchange.cores[1]
    copy = PublicationCopy(GOOD_RUN, (0, 1))
    assert core.handle(MessageReceived(0, exchange.sessions[1, 0] - 1, copy), 0) == []
    assert core.statistics()["messages_ignored"] == 1


def test_a_second_session_with_one_peer_is_a_fault_of_the_driver():
    exchange = ready()
    with pytest.raises(AssertionError):
        exchange.cores[1].handle(SessionEstablished(0, 500, 1), 0)


def test_an_end_in_an_incarnation_that_leaps_is_refused():
    """The end would cover every future subscription of the access broker."""
    exchange = ready()
    core, session = exchange.cores[1], exchange.sessions[1, 0]
    for statement in (Tombstones(2, 1 << 21, ()), Tombstones(2, 0, ((1, 1, 1 << 21, 1),))):
        with pytest.raises(RemoteProtocolError, match="leaps from"):
            core.handle(MessageReceived(0, session, over(statement)), 0)
    core.handle(MessageReceived(0, session, over(Tombstones(2, 5_000, ()))), 0)
