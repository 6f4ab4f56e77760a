"""Subscriptions, retained events and retention policies of a broker, for answers to commands."""

from collections.abc import Sequence
from typing import Any

from brokerd.model.identity import StreamId
from brokerd.model.retention_policy import RetentionPolicy
from brokerd.protocols.extensions import RetainedStream, StreamRetention, SubscriptionState
from brokerd.units import MILLISECOND_NS


def describe_subscription(state: SubscriptionState, brokers: Sequence[str]) -> dict[str, Any]:
    """Return a subscription for JSON; its streams have the names of any brokers."""

    def name(stream: StreamId) -> str:
        return f"{brokers[stream.broker]}.{stream.publisher}"

    return {
        "client": state.client,
        "number": state.number,
        "predicate": state.predicate,
        "mode": state.mode,
        "away_ms": None if state.away_ns is None else state.away_ns // MILLISECOND_NS,
        "behind_ms": {name(key): us // 1_000 for key, us in state.behind_us.items()},
        "behind_events": {name(key): events for key, events in state.behind_events.items()},
        "acknowledged": {name(key): tick for key, tick in state.acknowledged.items()},
        "holds": [name(each) for each in state.holds],
    }


def refuse_release(stream: str, found: StreamRetention) -> str:
    """Return why a proposed policy is refused, with one that releases nothing."""
    second_ns = 1_000 * MILLISECOND_NS
    oldest_ns = -(-found.oldest_age_ns // second_ns) * second_ns
    nearest_one = RetentionPolicy(oldest_ns + second_ns, 0)
    return (
        f"{stream}: the policy releases {found.early} retained publications that subscribers have "
        f"not acknowledged; {nearest_one} or bytes={found.retained_bytes}B alone releases none, "
        "and --force releases them"
    )


def describe_retention(state: StreamRetention, brokers: Sequence[str]) -> dict[str, Any]:
    """Return the policy of a pubend for JSON."""
    return {
        "stream": f"{brokers[state.stream.broker]}.{state.stream.publisher}",
        "pubend": state.stream.publisher,
        "policy": str(state.policy),
        "topology": str(state.default),
        "events": state.events,
        "bytes": state.retained_bytes,
        "oldest_ms": state.oldest_age_ns // MILLISECOND_NS,
        "early": state.early,
    }


def describe_retained(state: RetainedStream, brokers: Sequence[str]) -> dict[str, Any]:
    """Return the retained events of a pubend for JSON."""
    return {
        "stream": f"{brokers[state.stream.broker]}.{state.stream.publisher}",
        "events": state.events,
        "bytes": state.payload_bytes,
        "after": [[tick, *weight] for tick, weight in state.after.items()],
        "brokers": [brokers[each] for each in state.brokers],
        "moved": [[*each] for each in state.moved],
    }
