"""Checks of a workload against its topology: brokers, protocols, topics, attributes, order."""

import re
from collections.abc import Mapping
from typing import Any

from bench.load.content import NUMBERED, find_counting_attribute
from bench.spec.validation import SpecError
from bench.spec.workload_model import MAXIMUM_CLIENTS, Publishers, Subscribers, Workload
from brokerd.model.predicate_text import parse_predicate, predicate_value
from brokerd.overlay.topology import Topology, nearest
from brokerd.protocols.registry import definition_of, parameters_on, protocol_on
from brokerd.text import shown


def check_against_topology(workload: Workload, topology: Topology, where: str) -> None:
    """Check that a topology has what a workload names.

    Raises:
        SpecError: a broker, protocol, topic, attribute or order does not exist or does not fit.
    """
    _check_places(workload, topology, where)
    _check_failover(workload, topology, where)
    _check_consumers(workload, topology, where)
    _check_filters(workload, where)
    _check_topic(workload, topology, where)
    _check_order(workload, topology, where)
    _check_records(workload, topology, where)
    publishers = sum(len(entry.at) * entry.count for entry in workload.publishers)
    subscribers = sum(len(entry.at) * entry.count for entry in workload.subscribers)
    for noun, number in (("publishers", publishers), ("subscribers", subscribers)):
        if number > MAXIMUM_CLIENTS:
            raise SpecError(f"{where}: {noun}: {number} in all; at most {MAXIMUM_CLIENTS}")
        key = f"{noun.removesuffix('s')}_processes"
        processes = getattr(workload.load, key)
        if processes > number:
            raise SpecError(
                f"{where}: load.{key} = {processes}: at most {number}, one for each of the {noun}"
            )


def _check_records(workload: Workload, topology: Topology, where: str) -> None:
    """Refuse stretches unless subscribers are owed publisher order.

    Stretches record the publications of one source to one subscriber in order, and nothing else.
    """
    if (records := workload.load.records) == "full":
        return
    promised = protocol_on(topology, workload.protocol).promises().order
    order = str(promised) if workload.guarantee.order == "promised" else workload.guarantee.order
    why = ""
    if order != "publisher":
        why = f"subscribers are held to an order other than each publisher's ({order})"
    elif not promised.is_of_sources:
        why = f"{workload.protocol} promises no publisher order"
    elif any(entry.own_process for entry in workload.subscribers):
        why = "subscribers are processes of their own, which note each transaction"
    if why:
        raise SpecError(f'{where}: load.records = {records!r}: only "full" here, for {why}')


def _check_consumers(workload: Workload, topology: Topology, where: str) -> None:
    """Refuse subscribers that commit at brokers that keep no positions."""
    for subscribers in workload.subscribers:
        mode = subscribers.acknowledge
        if mode and not protocol_on(topology, workload.protocol).promises().keeps_committed:
            raise SpecError(
                f"{where}: subscribers[{subscribers.place}].acknowledge = {mode!r}: brokers of "
                f"{workload.protocol} keep no committed positions; durable does"
            )


def _check_places(workload: Workload, topology: Topology, where: str) -> None:
    homes = definition_of(workload.protocol).homes(topology)
    entries: list[tuple[str, Publishers | Subscribers]] = [
        (f"publishers[{place}]", entry) for place, entry in enumerate(workload.publishers)
    ]
    entries += [(f"subscribers[{entry.place}]", entry) for entry in workload.subscribers]
    for noun, entry in entries:
        places = [("at", name) for name in entry.at]
        places += [("failover", name) for name in entry.failover or ()]
        for key, name in places:
            found = f"{where}: {noun}.{key} = {name!r}"
            if name not in topology.brokers:
                raise SpecError(
                    f"{found}: topology {topology.name!r} has no such broker"
                    f"{nearest(name, topology.brokers)}"
                )
            if name not in homes:
                raise SpecError(
                    f"{found}: no clients may be there; {workload.protocol} has them at "
                    f"{', '.join(homes)}"
                )


def _check_failover(workload: Workload, topology: Topology, where: str) -> None:
    """Refuse failover of clients that would change their source or lose promised publications.

    In these cases the client library waits for the client's own broker.
    """
    promises = protocol_on(topology, workload.protocol).promises()
    protocol = workload.protocol
    for number, publishers in enumerate(workload.publishers):
        if publishers.failover and not promises.leaves_freely:
            raise SpecError(
                f"{where}: publishers[{number}].failover: at another broker a publisher of "
                f"{protocol} is another source, and what it has not been answered it waits for"
            )
    for subscribers in workload.subscribers:
        if not subscribers.failover:
            continue
        found = f"{where}: subscribers[{subscribers.place}].failover"
        if subscribers.own_process:
            raise SpecError(f"{found}: subscribers that are processes of their own stay")
        if promises.exactly_once and not promises.resumes_elsewhere:
            raise SpecError(
                f"{found}: what a broker of {protocol} has for a subscription no other one "
                "delivers; it waits for its broker"
            )


def _check_topic(workload: Workload, topology: Topology, where: str) -> None:
    """Check that workload and protocol use the same topic attribute."""
    taken_from = definition_of(workload.protocol).topic_attribute
    if taken_from is None or workload.topic is None:
        return
    attribute = taken_from(parameters_on(topology, workload.protocol))
    if attribute != workload.topic:
        raise SpecError(
            f"{where}: topic = {workload.topic!r}: {workload.protocol} on topology "
            f"{topology.name!r} has topics by {attribute!r} (topic_attribute in "
            f"[parameters.{workload.protocol}])"
        )


def _check_order(workload: Workload, topology: Topology, where: str) -> None:
    """Refuse an order of topics without a topic attribute."""
    if workload.guarantee.order != "topic" or workload.topic is not None:
        return
    if not protocol_on(topology, workload.protocol).promises().topic:
        raise SpecError(
            f"{where}: guarantee.order = 'topic': {workload.protocol} has no topics, and the "
            "workload names no topic attribute (topic)"
        )


def _kinds_that_differ(definition: Mapping[str, Any], value: object) -> str:
    """Return why no value of an attribute is of the kind of a test's value; "" if one is."""
    ((way, argument),) = definition.items()
    drawn = argument if way == "choose" and isinstance(argument, list) else []
    has_numbers = way in ("uniform", NUMBERED)
    kinds = {_kind_of(each) for each in drawn} or {"numbers" if has_numbers else "texts"}
    values = value if isinstance(value, tuple) else (value,)
    if kinds & {_kind_of(each) for each in values}:
        return ""
    shown_value = predicate_value(values[0])
    if _kind_of(values[0]) == "numbers" and "texts" in kinds:
        remedy = f"write '{shown_value}' in quotes"
    elif "numbers" in kinds and re.fullmatch(r"-?\d+(\.\d+)?", str(values[0])):
        remedy = f"write {values[0]} without quotes"
    else:
        remedy = "no publication matches"
    return f"{' and '.join(sorted(kinds))}, and {shown_value} is none; {remedy}"


def _kind_of(value: object) -> str:
    if isinstance(value, bool):
        return "true or false"
    return "texts" if isinstance(value, str) else "numbers"


def _check_filters(workload: Workload, where: str) -> None:
    """Refuse filters on an attribute that no publication has, which is certainly a mistake.

    A filter on a counting attribute is refused, too: the receivers of a publication follow from its
    attribute set.
    """
    counting = find_counting_attribute(workload.attributes)
    for entry in workload.subscribers:
        found = f"{where}: subscribers[{entry.place}].filter = {shown(entry.predicate)}: "
        for conjunction in parse_predicate(entry.predicate).any_of:
            for constraint in conjunction:
                if counting is not None and constraint.attribute == counting[0]:
                    raise SpecError(
                        f"{found}{constraint.attribute!r} counts publications; no filter may "
                        "name it"
                    )
                absent = constraint.attribute not in workload.attributes
                if absent and constraint.operator not in ("exists", "not exists"):
                    known = list(workload.attributes)
                    raise SpecError(
                        f"{found}no publication has an attribute {constraint.attribute!r}"
                        f"{nearest(constraint.attribute, known)}"
                    )
                if constraint.value is not None and not absent:
                    definition = workload.attributes[constraint.attribute]
                    if problem := _kinds_that_differ(definition, constraint.value):
                        raise SpecError(f"{found}{constraint.attribute!r} has {problem}")
