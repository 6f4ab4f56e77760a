"""The positions at which a subscription resumes after a restart of its client, as bytes.

Only the protocol interprets the content; all other code checks the owner and the checksum.
"""

import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from brokerd.errors import ResumeTokenRefused

_MAGIC: Final = b"resume1\0"
_CHECKSUM_BYTES: Final = 16
_LENGTHS: Final = struct.Struct(">HHI")


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """The positions through which an application has committed one subscription.

    Attributes:
        protocol, deployment: protocol and deployment that the token is valid for.
        content: bytes for that protocol alone.
    """

    protocol: str
    deployment: str
    content: bytes

    def to_bytes(self) -> bytes:
        """Return the token as bytes for storage; equal tokens give equal bytes."""
        protocol, deployment = self.protocol.encode(), self.deployment.encode()
        lengths = _LENGTHS.pack(len(protocol), len(deployment), len(self.content))
        body = _MAGIC + lengths + protocol + deployment + self.content
        return body + _checksum(body)


def read_resume_token(data: bytes, *, protocol: str, deployment: str) -> ResumeToken:
    """Return the token in `data`, which must be of this protocol and deployment.

    Raises:
        ResumeTokenRefused: the token is of another protocol or deployment, damaged, or no token;
            the text states which.
    """
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    head = len(_MAGIC) + _LENGTHS.size
    if not data.startswith(_MAGIC):
        raise ResumeTokenRefused(f"{len(data)} bytes that are no resume token")
    if len(body) < head or _checksum(body) != checksum:
        raise ResumeTokenRefused(f"a resume token of {len(data)} bytes is damaged")
    sizes = _LENGTHS.unpack_from(body, len(_MAGIC))
    if len(body) != head + sum(sizes):
        raise ResumeTokenRefused(f"a resume token of {len(data)} bytes announces {sum(sizes)}")
    split = head + sizes[0]
    try:
        token = ResumeToken(
            body[head:split].decode(),
            body[split : split + sizes[1]].decode(),
            body[split + sizes[1] :],
        )
    except UnicodeDecodeError as error:
        raise ResumeTokenRefused(f"a resume token with names that are no text: {error}") from None
    for name, theirs, ours in (
        ("protocol", token.protocol, protocol),
        ("deployment", token.deployment, deployment),
    ):
        if theirs != ours:
            raise ResumeTokenRefused(f"a resume token of {name} {theirs[:64]!r}, not {ours!r}")
    return token


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=_CHECKSUM_BYTES).digest()
