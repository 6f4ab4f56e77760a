"""The identity of a peer, as its certificate states, and the Hellos that this identity permits.

The certificate contains the name as a URI: `urn:pubsub:<deployment>:broker/<name>`,
`…:client/<name>`, or `…:load/<suffix>` for a load generator, which acts for all clients with names
that end in `.<suffix>`. Host names and addresses have no meaning here: an identity holds within the
deployment, on any host.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args
from urllib.parse import quote, unquote

from brokerd.sessions.messages import Role

CertifiedRole = Literal["broker", "client", "load"]
CERTIFIED_ROLES: Final[tuple[CertifiedRole, ...]] = get_args(CertifiedRole)

_SCHEME: Final = "urn:pubsub:"


@dataclass(frozen=True, slots=True)
class Identity:
    """One member of a deployment.

    Attributes:
        deployment: the deployment id.
        role: the role that the member may act in.
        name: name of the broker in the topology, name of the client, or suffix of clients' names.
    """

    deployment: str
    role: CertifiedRole
    name: str

    def __str__(self) -> str:
        return f"{self.role} {self.name[:64]!r} of deployment {self.deployment[:64]!r}"

    @property
    def uri(self) -> str:
        """The identity as the certificate contains it."""
        deployment, name = (quote(part, safe="") for part in (self.deployment, self.name))
        return f"{_SCHEME}{deployment}:{self.role}/{name}"

    @classmethod
    def from_uri(cls, uri: str) -> "Identity":
        """Return the identity in a certificate.

        Raises:
            ValueError: the URI names no member of a deployment.
        """
        deployment, _, place = uri.removeprefix(_SCHEME).partition(":")
        role, _, name = place.partition("/")
        for known in CERTIFIED_ROLES:
            if role == known:
                identity = cls(unquote(deployment), known, unquote(name))
                # Each identity has a single spelling, so that equal names are equal identities.
                if deployment and name and identity.uri == uri:
                    return identity
        raise ValueError(f"{uri[:200]!r} names no member of a deployment")

    def refuses(self, role: Role, name: str, deployment: str) -> str | None:
        """Return the reason to refuse a Hello with this role and name; None if permitted."""
        if self.role == "broker":
            fits = role in ("broker", "probe") and name == self.name
        elif self.role == "client":
            fits = role == "client" and name == self.name
        else:
            fits = role == "client" and name.endswith(f".{self.name}")
        if fits and self.deployment == deployment:
            return None
        return f"the certificate is that of {self}, not of {role} {name[:64]!r}"
