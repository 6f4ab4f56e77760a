"""Which seeds a test takes of the mix that a swarm draws from."""

from itertools import count

from brokerd.simulator.search.planning.draw import is_long


def seeds_of_the_mix(how_many: int, *, long: int) -> tuple[int, ...]:
    """The first seeds from 1 on, `long` of which run for ten minutes.

    One seed in sixteen does, and those cost a third of what all cost together; a campaign takes
    them as they come.
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
