"""Signed acts of an operator, which no broker may decide alone, and Ed25519 signatures.

The deployment's authority signs an act on the controller. The signature binds the act to a
deployment, a target and a version, and travels with the act between brokers. A broker that passes
an act on cannot change the act, and a replay is the same act again. Every broker verifies an act
before carrying it out.

A deployment has a few signatures in its life, so a verification may take milliseconds. It handles
public values only, and so needs no constant time.

Source: RFC 8032 §5.1 (Ed25519, pure), with the strict checks of §5.1.7: canonical encodings, and a
scalar below the order of the group.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

PUBLIC_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

PRIME: Final = 2**255 - 19
ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, -1, PRIME) % PRIME
_ROOT_OF_MINUS_ONE: Final = pow(2, (PRIME - 1) // 4, PRIME)

Point = tuple[int, int, int, int]
"""Extended coordinates (X, Y, Z, T) with x = X/Z, y = Y/Z, x·y = T/Z."""

_NEUTRAL: Final[Point] = (0, 1, 1, 0)


def is_signed(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Return True if the signature of a message is valid for a public key.

    Malformed keys and signatures are invalid; no input raises.
    """
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    key, commitment = decompress(public_key), decompress(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if key is None or commitment is None or scalar >= ORDER or _is_small(key):
        return False
    challenge = digest_number(signature[:32] + public_key + message)
    return _is_equal(multiply(scalar, BASE), add(commitment, multiply(challenge, key)))


def digest_number(content: bytes) -> int:
    """Return the SHA-512 digest of `content` as a scalar modulo the order of the group."""
    return int.from_bytes(hashlib.sha512(content).digest(), "little") % ORDER


def add(a: Point, b: Point) -> Point:
    """Return the sum of two points.

    Source: RFC 8032 §5.1.4.
    """
    (x1, y1, z1, t1), (x2, y2, z2, t2) = a, b
    first = (y1 - x1) * (y2 - x2) % PRIME
    second = (y1 + x1) * (y2 + x2) % PRIME
    third = 2 * t1 * t2 * _D % PRIME
    fourth = 2 * z1 * z2 % PRIME
    e, f, g, h = second - first, fourth - third, fourth + third, second + first
    return e * f % PRIME, g * h % PRIME, f * g % PRIME, e * h % PRIME


def multiply(scalar: int, point: Point) -> Point:
    """Return a multiple of a point, in time that depends on the scalar."""
    total = _NEUTRAL
    while scalar:
        if scalar & 1:
            total = add(total, point)
        point = add(point, point)
        scalar >>= 1
    return total


def compress(point: Point) -> bytes:
    """Return the 32 bytes that encode a point.

    Source: RFC 8032 §5.1.2.
    """
    inverse = pow(point[2], -1, PRIME)
    x, y = point[0] * inverse % PRIME, point[1] * inverse % PRIME
    return (y | (x & 1) << 255).to_bytes(32, "little")


def decompress(encoded: bytes) -> Point | None:
    """Return the point that 32 bytes encode; None if the encoding is invalid.

    Source: RFC 8032 §5.1.3.
    """
    number = int.from_bytes(encoded, "little")
    sign, y = number >> 255, number & ((1 << 255) - 1)
    if y >= PRIME:
        return None
    x = _x_of(y, sign)
    return None if x is None else (x, y, 1, x * y % PRIME)


def _x_of(y: int, sign: int) -> int | None:
    square = (y * y - 1) * pow(_D * y * y + 1, -1, PRIME) % PRIME
    if square == 0:
        return None if sign else 0
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if (x * x - square) % PRIME:
        x = x * _ROOT_OF_MINUS_ONE % PRIME
    if (x * x - square) % PRIME:
        return None
    return x if x & 1 == sign else PRIME - x


def _is_small(point: Point) -> bool:
    """Return True if the order of a point divides 8: signatures for such a key can be forged."""
    return _is_equal(multiply(8, point), _NEUTRAL)


def _is_equal(a: Point, b: Point) -> bool:
    return (a[0] * b[2] - b[0] * a[2]) % PRIME == 0 and (a[1] * b[2] - b[1] * a[2]) % PRIME == 0


def _base() -> Point:
    y = 4 * pow(5, -1, PRIME) % PRIME
    point = decompress(y.to_bytes(32, "little"))
    assert point is not None, "the base point is on the curve"
    return point


BASE: Final[Point] = _base()


DECOMMISSION: Final = "decommission"
"""All other brokers drop the target for good; version 0, because the act is permanent."""
CHANGE_TOPOLOGY: Final = "change-topology"
"""The deployment has another topology; target is its digest, version the number of changes."""
ACCEPT_LOSS: Final = "accept-loss"
"""The target serves without the records that it lost; version is the number of its loss."""

_DOMAIN: Final = b"pubsubctl operator act 1\n"
_VERSION_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class OperatorAct:
    """The signed content of an act of an operator.

    Attributes:
        deployment_id: the deployment of the act.
        act: kind of the act, see the constants above.
        target: the broker, or the object, that the act concerns.
        version: version of the target; an act for another version is another act.
    """

    deployment_id: str
    act: str
    target: str
    version: int

    def statement(self) -> bytes:
        """Return the bytes that are signed; no two acts have the same bytes."""
        texts = [each.encode() for each in (self.deployment_id, self.act, self.target)]
        parts = [len(each).to_bytes(4, "big") + each for each in texts]
        return b"".join((_DOMAIN, *parts, self.version.to_bytes(_VERSION_BYTES, "big")))


@dataclass(frozen=True, slots=True)
class OperatorAuthority:
    """The public half of a deployment's authority over its brokers.

    Attributes:
        deployment_id: the deployment that the authority signs for.
        public_key: Ed25519, 32 bytes; empty: no act is accepted.
    """

    deployment_id: str = ""
    public_key: bytes = b""

    def has_signed(self, act: str, target: str, version: int, signature: bytes) -> bool:
        """Return True if the authority has signed an act for this deployment."""
        statement = OperatorAct(self.deployment_id, act, target, version).statement()
        return is_signed(self.public_key, statement, signature)


NO_AUTHORITY: Final = OperatorAuthority()
"""No act is accepted."""
