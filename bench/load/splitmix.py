"""The random numbers that determine the contents of publications, in blocks.

One large integer contains all numbers of a block, 128 bits apart, so that a product with a 64-bit
constant stays in its own lane: the arithmetic of a whole block is a dozen operations.
"""

from functools import lru_cache

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX_A = 0xBF58476D1CE4E5B9
MIX_B = 0x94D049BB133111EB

_LANE_BYTES = 16
_MOST_SETS_IN_LANES = 128
"""Twice this number still fits a byte."""


def splitmix64(value: int) -> int:
    """Return the next number of splitmix64 for an unsigned 64-bit number."""
    value = (value + GOLDEN) & WORD
    value = ((value ^ (value >> 30)) * MIX_A) & WORD
    value = ((value ^ (value >> 27)) * MIX_B) & WORD
    return value ^ (value >> 31)


def splitmix64_series(start: int, count: int) -> list[int]:
    """Return splitmix64 of `start`, `start` + 1, …, as `count` numbers."""
    return _numbers(_mix_lanes(start, count).to_bytes(_LANE_BYTES * count, "little"))


def choices(
    start: int, count: int, set_count: int, payload_count: int
) -> tuple[bytes | list[int], bytes]:
    """Return attribute set and payload place for each of `count` publications.

    With m = splitmix64(`start` + place) the results are m mod `set_count` and (m >> 32) mod
    `payload_count`, equal to the results from single numbers.

    Args:
        payload_count: at most 256.

    Returns:
        The sets (bytes for at most 256 sets), and the places.
    """
    lanes = _mix_lanes(start, count)
    content = lanes.to_bytes(_LANE_BYTES * count, "little")
    if 256 % payload_count == 0:
        payloads = content[4::_LANE_BYTES].translate(_remainders(payload_count))
    else:
        payloads = bytes([(mixed >> 32) % payload_count for mixed in _numbers(content)])
    if set_count <= _MOST_SETS_IN_LANES:
        return _lanes_modulo(lanes, count, set_count), payloads
    sets = [mixed % set_count for mixed in _numbers(content)]
    return bytes(sets) if set_count <= 256 else sets, payloads


def _mix_lanes(start: int, count: int) -> int:
    ones, steps, low_words = _lanes(count)
    lanes = (ones * ((start + GOLDEN) & WORD) + steps) & low_words
    lanes = ((lanes ^ ((lanes >> 30) & low_words)) * MIX_A) & low_words
    lanes = ((lanes ^ ((lanes >> 27) & low_words)) * MIX_B) & low_words
    return lanes ^ ((lanes >> 31) & low_words)


def _lanes_modulo(lanes: int, count: int, divisor: int) -> bytes:
    """Return each lane modulo `divisor`.

    The quotient by the reciprocal rounded down is exact or 1 too small, so the remainder is below
    twice the divisor.
    """
    low_words = _lanes(count)[2]
    quotients = ((lanes * ((1 << 64) // divisor)) >> 64) & low_words
    remaining = (lanes - quotients * divisor).to_bytes(_LANE_BYTES * count, "little")
    return remaining[::_LANE_BYTES].translate(_remainders(divisor))


def _numbers(content: bytes) -> list[int]:
    return memoryview(content).cast("Q").tolist()[::2]


@lru_cache(maxsize=64)
def _remainders(divisor: int) -> bytes:
    """Return the remainder of each byte."""
    return bytes([byte % divisor for byte in range(256)])


@lru_cache(maxsize=8)
def _lanes(count: int) -> tuple[int, int, int]:
    """Return per lane the number 1, the lane's own number, and a mask of its low 64 bits."""
    ones = int.from_bytes(b"".join([(1).to_bytes(_LANE_BYTES, "little")] * count), "little")
    steps = int.from_bytes(
        b"".join(place.to_bytes(_LANE_BYTES, "little") for place in range(count)), "little"
    )
    return ones, steps, ones * WORD
