"""Counters of multi_proxy, and their recounted values once all is at rest."""

from collections import Counter

from brokerd.protocols.multi_proxy.claims import Claims
from brokerd.protocols.multi_proxy.clients import Clients
from brokerd.protocols.multi_proxy.publishes import Publishes
from brokerd.protocols.multi_proxy.retention import Topic
from brokerd.protocols.multi_proxy.state import FollowedTopic
from brokerd.protocols.multi_proxy.topic_log import TopicLog
from brokerd.simulator.checks.recounts import Holdings, Recount, nonzero


def _followers(topic: FollowedTopic, holdings: Holdings) -> int:
    (clients,) = holdings.of(Clients)
    return sum(topic.number in topics for topics in clients._followed.values())


def _unanswered(puts: Publishes) -> dict[object, int]:
    found: Counter[object] = Counter()
    for pending in puts._sources.values():
        for topic, chain in pending.chains.items():
            server = puts._owners.of(topic)
            if server is not None:
                found[server] += len(chain)
    return nonzero(found)


RECOUNTS = (
    Recount(
        Claims,
        "counts",
        lambda claims: nonzero(claims._counts),
        lambda claims, _: dict(Counter([*claims._owners.values(), *claims._proposed.values()])),
    ),
    Recount(
        Publishes,
        "unanswered",
        lambda puts: nonzero({key: each.unanswered for key, each in puts._servers.items()}),
        lambda puts, _: _unanswered(puts),
    ),
    Recount(FollowedTopic, "followers", lambda topic: topic.followers, _followers),
    Recount(
        Topic,
        "durable",
        lambda topic: topic.durable,
        lambda topic, _: max(topic.durable, topic.needed_position),
    ),
    Recount(
        FollowedTopic,
        "outstanding",
        lambda topic: topic.outstanding,
        lambda topic, _: sum(each.count for each in topic.in_flight),
    ),
    Recount(
        Topic,
        "retained_bytes",
        lambda topic: topic.retained_bytes,
        lambda topic, _: sum(run.payload_bytes() for run in topic.runs),
    ),
    Recount(
        TopicLog,
        "logged_bytes",
        lambda log: log.logged_bytes,
        lambda log, _: sum(each.size_bytes for each in log._logged),
    ),
    Recount(
        TopicLog,
        "durable",
        lambda log: {part: topic.durable for part, topic in log._topics.items()},
        lambda log, _: {part: topic.assigned for part, topic in log._topics.items()},
    ),
)
