"""Warnings about a workload: churn and guarantees that its protocol cannot serve.

The warnings concern the effect of a protocol's parameters on the churn of a workload, and
guarantees beyond the promise of the protocol.
"""

from collections.abc import Iterator
from typing import Final

from bench.spec.spec import ExperimentSpec
from brokerd.protocols.registry import parameters_on, protocol_on
from brokerd.units import format_duration
from fault_injection.schedule.client_lint import RECONNECTS_WITHIN_NS


def churn_warnings(spec: ExperimentSpec) -> Iterator[str]:
    """Yield reasons why subscribers may miss publications under churn, in words for the user.

    A disconnected subscriber may take RECONNECTS_WITHIN_NS in addition to reconnect.
    """
    churn = spec.workload.churn
    if churn is None:
        return
    promises = protocol_on(spec.topology, spec.protocol).promises()
    linger_ns = parameters_on(spec.topology, spec.protocol).client_linger_ns
    away_ns = churn.disconnected + RECONNECTS_WITHIN_NS
    away = (
        f"{spec.source}: churn.disconnected = {format_duration(churn.disconnected)!r}, and up to "
        f"{format_duration(RECONNECTS_WITHIN_NS)} more to be back"
    )
    if linger_ns < away_ns:
        yield (
            f"{away}: {spec.protocol} ends the subscriptions of clients that are disconnected for "
            f"{format_duration(linger_ns)} (client_linger_ns), and delivers nothing after that"
        )
    if promises.gaps and promises.gap_age_ns < away_ns:
        age_ns = promises.gap_age_ns
        age = f"older than {format_duration(age_ns)}" if age_ns else "of any age"
        yield (
            f"{away}: {spec.protocol} may lose publications {age} "
            "for disconnected clients, and announces a gap in their place"
        )
    if not promises.exactly_once:
        yield f"{away}: {spec.protocol} does not promise publications of that time"


_WEAKEST_FIRST: Final = ("none", "stream", "topic", "publisher", "total")


def guarantee_warnings(spec: ExperimentSpec) -> Iterator[str]:
    """Yield reasons why a verdict may be INVALID although the protocol keeps its promises.

    The guarantee of the workload decides, not the promise of the protocol. The reasons are in words
    for the user.
    """
    promises = protocol_on(spec.topology, spec.protocol).promises()
    guarantee = spec.workload.guarantee
    promised = str(promises.order)
    required = promised if guarantee.order == "promised" else guarantee.order
    if _WEAKEST_FIRST.index(required) > _WEAKEST_FIRST.index(promised):
        yield (
            f"{spec.source}: guarantee.order = {required!r} is beyond the promise of "
            f"{spec.protocol} ({promised}): the run is judged by it all the same, and may end "
            'INVALID; "promised" requires the promised order'
        )
    if not promises.exactly_once and guarantee.delivery != "at-most-once":
        yield (
            f"{spec.source}: guarantee.delivery = {guarantee.delivery!r} is beyond the promise of "
            f"{spec.protocol}: it may lose publications, and the run may end INVALID"
        )
