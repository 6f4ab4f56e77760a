"""The authority of simulated deployments, with a public secret."""

import hashlib
from typing import Final

from brokerd.model.operator_acts import (
    BASE,
    ORDER,
    OperatorAct,
    OperatorAuthority,
    compress,
    digest_number,
    multiply,
)

DEPLOYMENT: Final = "simulated"
_SECRET: Final = bytes(32)


def sign(secret: bytes, message: bytes) -> bytes:
    """Return the signature of a message, not in constant time: for secrets of no worth.

    Source: RFC 8032 §5.1.6.
    """
    scalar, prefix = _expand(secret)
    public = compress(multiply(scalar, BASE))
    nonce = digest_number(prefix + message)
    commitment = compress(multiply(nonce, BASE))
    challenge = digest_number(commitment + public + message)
    return commitment + ((nonce + challenge * scalar) % ORDER).to_bytes(32, "little")


def public_key(secret: bytes) -> bytes:
    """Return the public key of a secret."""
    return compress(multiply(_expand(secret)[0], BASE))


def make_signature(act: str, target: str, version: int = 0) -> bytes:
    """Return the simulated authority's signature of an act."""
    return sign(_SECRET, OperatorAct(DEPLOYMENT, act, target, version).statement())


def _expand(secret: bytes) -> tuple[int, bytes]:
    content = hashlib.sha512(secret).digest()
    scalar = int.from_bytes(content[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    return scalar, content[32:]


AUTHORITY: Final = OperatorAuthority(DEPLOYMENT, public_key(_SECRET))
