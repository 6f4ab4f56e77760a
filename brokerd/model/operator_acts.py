"""Signed acts of an operator: decisions that no broker may make alone.

The deployment's authority signs an act on the controller. The signature binds the act to a
deployment, a target and a version, and travels with the act between brokers. A broker that passes
an act on cannot change the act, and a replay is the same act again. Every broker verifies an act
before carrying it out.
"""

from dataclasses import dataclass
from typing import Final

from brokerd.model.ed25519 import is_signed

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
