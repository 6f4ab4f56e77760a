"""Signed acts of an operator: what no broker may order on its own.

The deployment's authority signs an act on the controller. The signature binds the act to one
deployment, one target and one version, and travels with the act between brokers. A broker that
passes an act on cannot change it, and a replay is the same act again. Every broker verifies an act
before it acts on it.
"""

from dataclasses import dataclass
from typing import Final

from brokerd.model.ed25519 import is_signed

DECOMMISSION: Final = "decommission"
"""All other brokers do without the target for good; version 0, because it is permanent."""
CHANGE_TOPOLOGY: Final = "change-topology"
"""The deployment has another topology; target is its digest, version the number of changes."""
ACCEPT_LOSS: Final = "accept-loss"
"""The target serves without the records that it lost; version is the number of its loss."""

_DOMAIN: Final = b"pubsubctl operator act 1\n"
_VERSION_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class OperatorAct:
    """An act of an operator, as it is signed.

    Attributes:
        deployment_id: the deployment that it is for.
        act: its kind, one of those above.
        target: the broker, or the object, that it concerns.
        version: of the target; an act for another version is another act.
    """

    deployment_id: str
    act: str
    target: str
    version: int

    def statement(self) -> bytes:
        """Return the bytes that are signed; no two acts have the same."""
        texts = [each.encode() for each in (self.deployment_id, self.act, self.target)]
        parts = [len(each).to_bytes(4, "big") + each for each in texts]
        return b"".join((_DOMAIN, *parts, self.version.to_bytes(_VERSION_BYTES, "big")))


@dataclass(frozen=True, slots=True)
class OperatorAuthority:
    """The public half of a deployment's authority over its brokers.

    Attributes:
        deployment_id: the deployment that it signs for.
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
