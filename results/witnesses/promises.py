"""The promises of a run: the promises of the protocol with the topology's parameters.

The manifest repeats the promises for readers of a folder. The manifest is a witness here and never
a source. A protocol that is not registered belongs to another system, whose promise is the
guarantee of the workload."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from brokerd.errors import ConfigError
from brokerd.overlay.topology import without_departed
from brokerd.protocols.registry import DEFINITIONS, RunningProtocol, protocol_on, read_topology
from results.rules.terms import ORDERS, PUBLISHER_ORDER, Promises, doubt
from results.witnesses.folder import MANIFEST, TOPOLOGY, WORKLOAD, RunFolder


def find_running_protocol(
    workload: Mapping[str, Any], topology: Mapping[str, Any]
) -> RunningProtocol | None:
    """Return the protocol of a run on its topology; None if foreign, or not for the topology."""
    protocol = workload.get("protocol")
    if protocol not in DEFINITIONS:
        return None
    try:
        present = read_topology(without_departed(topology), TOPOLOGY)
        return protocol_on(present, str(protocol))
    except (ConfigError, AttributeError, KeyError, TypeError, ValueError):
        return None


def read_running_protocol(folder: RunFolder) -> RunningProtocol | None:
    """Return the protocol of a run on its topology, read once."""
    running: RunningProtocol | None = folder.memoize(
        "the protocol", lambda: find_running_protocol(folder.workload, folder.topology)
    )
    return running


def promises_of(workload: Mapping[str, Any], topology: Mapping[str, Any]) -> Promises:
    """Return the promises for the deliveries of a run.

    Subscribers that commit at their broker may receive uncommitted publications again, marked,
    under any protocol.
    """
    promises, entries = protocol_promises(workload, topology), workload.get("subscribers")
    if isinstance(entries, list) and any(
        isinstance(entry, Mapping) and entry.get("acknowledge") for entry in entries
    ):
        return replace(promises, redelivers=True)
    return promises


def protocol_promises(workload: Mapping[str, Any], topology: Mapping[str, Any]) -> Promises:
    """Return the promises of the protocol for all subscribers."""
    running, absence_ns = find_running_protocol(workload, topology), 0
    if running is not None:
        promised = running.promises()
        absence_ns = running.parameters.client_linger_ns if promised.absence_gaps else 0
    elif (protocol := workload.get("protocol")) in DEFINITIONS:
        promised = DEFINITIONS[str(protocol)].promises
    else:
        guarantee = workload.get("guarantee")
        order = guarantee.get("order") if isinstance(guarantee, Mapping) else None
        return Promises(order=str(order)) if order in ORDERS else PUBLISHER_ORDER
    return Promises(
        str(promised.order),
        tuple(promised.gaps),
        promised.redelivers,
        promised.gap_age_ns,
        promised.topic,
        absence_gaps=tuple(promised.absence_gaps) if absence_ns else (),
        absence_ns=absence_ns,
        gap_ages_ns=promised.gap_ages_ns,
        may_lose=not promised.exactly_once,
    )


def doubts_about_promises(folder: RunFolder) -> Iterator[str]:
    """Yield a doubt where the manifest promises something else than the protocol does."""
    stated = folder.manifest.get("promises")
    if stated is None:
        if folder.is_witnessed and (folder.is_of_processes or folder.has("spec/cli.json")):
            yield doubt("missing_line", file=MANIFEST, what="promises", other=WORKLOAD)
        return
    wanted = protocol_promises(folder.workload, folder.topology)
    running = read_running_protocol(folder)
    named = {
        "order": wanted.order,
        "gaps": list(wanted.gaps),
        "redelivers": wanted.redelivers,
        "gap_age_ns": wanted.gap_age_ns,
        "gap_ages_ns": [*wanted.gap_ages_ns],
        "topic": wanted.topic,
    }
    if running is not None:
        named["exactly_once"] = running.promises().exactly_once
    elif folder.is_foreign:
        guarantee = folder.workload.get("guarantee") or {}
        named["exactly_once"] = guarantee.get("delivery") == "exactly-once"
    for name, value in named.items():
        found = stated.get(name, {"gap_age_ns": 0, "gap_ages_ns": [], "topic": ""}.get(name))
        if found != value or type(found) is not type(value):
            yield doubt(
                "disagree", one=MANIFEST, other=TOPOLOGY, what=f"promises.{name}",
                found=found, wanted=value,
            )  # fmt: skip
