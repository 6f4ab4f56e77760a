"""Whether nftables can keep two brokers apart without touching a third one's traffic."""

from collections.abc import Callable, Collection, Iterable, Mapping

from fault_injection.schedule.targets import Target

Around = Callable[[str], Collection[str]]
"""The brokers that one may have sessions with."""


def parted_pairs(target: Target, around: Around) -> list[tuple[str, str]]:
    """The brokers that a blackhole, cut or partition of this target keeps from each other."""
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
    """Say whether rules by address and port part exactly these pairs.

    A connection shows the port of the broker that was dialled and, of the one that dialled, the
    address only. So whoever shares an address with a broker must be parted like it.

    Args:
        addresses: "address:port" of every broker.

    Raises:
        ValueError: two brokers cannot be told apart; names them.
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
