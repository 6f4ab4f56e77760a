"""Seeds for tests, from the mix that a swarm draws from."""

from itertools import count

from brokerd.simulator.search.planning.draw import is_long


def seeds_of_the_mix(how_many: int, *, long: int) -> tuple[int, ...]:
    """Return the first seeds from 1 on, `long` of which run for ten minutes.

    One seed in sixteen runs so long; these seeds take a third of the total time. A campaign takes
    the seeds in order.
    """
    taken: list[int] = []
    left = long
    for seed in count(1):
        if len(taken) == how_many:
            return tuple(taken)
        if is_long(seed):
            if not left:
                continue
            left -= 1
        taken.append(seed)
    raise AssertionError("seeds do not end")
