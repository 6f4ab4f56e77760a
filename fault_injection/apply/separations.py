"""Checks that nftables can separate two brokers without an effect on a third broker."""

from collections.abc import Callable, Collection, Iterable, Mapping

from fault_injection.schedule.targets import Target

Around = Callable[[str], Collection[str]]
"""A function that returns the brokers with possible sessions to a broker."""


def parted_pairs(target: Target, around: Around) -> list[tuple[str, str]]:
    """Return the pairs of brokers that a blackhole, cut or partition of this target separates."""
    if target.is_link:
        a, b = target.brokers
        return [(a, b)]
    return [
        (broker, other)
        for broker in target.brokers
        for other in (target.others(broker, around(broker)) if target.sets else around(broker))
    ]


def check_nft_can_tell(
    pairs: Iterable[tuple[str, str]],
    addresses: Mapping[str, str],
    around: Around,
) -> None:
    """Check that rules by address and port separate exactly these pairs.

    A connection shows the port of the dialled broker, but only the address of the dialling broker.
    So all brokers with the same address must be separated alike.

    Args:
        addresses: "address:port" of every broker.

    Raises:
        ValueError: rules cannot distinguish two brokers; names both.
    """
    parted = {frozenset(pair) for pair in pairs}
    for a, b in sorted(tuple(sorted(pair)) for pair in parted):
        for one, other in ((a, b), (b, a)):
            for third, address in addresses.items():
                same = third != one and _machine(address) == _machine(addresses[one])
                if not same or third == other or other not in around(third):
                    continue
                if frozenset({third, other}) not in parted:
                    raise ValueError(
                        f"nft cannot tell {third} from {one}, which have the address "
                        f'{_machine(address)} both; use backend = "broker"'
                    )


def _machine(address: str) -> str:
    return address.rpartition(":")[0]
