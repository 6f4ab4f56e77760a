"""Guarantees of workloads beyond the promise of the protocol."""

from collections.abc import Iterator
from typing import Final

from bench.spec.spec import ExperimentSpec
from brokerd.protocols.registry import protocol_on

_WEAKEST_FIRST: Final = ("none", "stream", "topic", "publisher", "total")


def guarantee_warnings(spec: ExperimentSpec) -> Iterator[str]:
    """Yield reasons why a verdict may be INVALID although the protocol keeps its promises.

    The guarantee of the workload decides, not the promise of the protocol. The reasons are in words
    for the user.
    """
    promises = protocol_on(spec.topology, spec.protocol).promises()
    guarantee = spec.workload.guarantee
    promised = str(promises.order)
    asked = promised if guarantee.order == "promised" else guarantee.order
    if _WEAKEST_FIRST.index(asked) > _WEAKEST_FIRST.index(promised):
        yield (
            f"{spec.source}: guarantee.order = {asked!r} is beyond the promise of "
            f"{spec.protocol} ({promised}): the run is judged by it all the same, and may end "
            'INVALID; "promised" asks for what is promised'
        )
    if not promises.exactly_once and guarantee.delivery != "at-most-once":
        yield (
            f"{spec.source}: guarantee.delivery = {guarantee.delivery!r} is beyond the promise of "
            f"{spec.protocol}: it may lose publications, and the run may end INVALID"
        )
