"""Who is at the other end, as its certificate says, and what that lets it say in a Hello.

The name stands in the certificate as a URI: `urn:pubsub:<deployment>:broker/<name>`,
`…:client/<name>`, or `…:load/<suffix>` for a load generator, which speaks for all clients whose
names end in `.<suffix>`. Host names and addresses mean nothing here: what counts is who it is in
the deployment, wherever it runs.
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
        role: what it may act as.
        name: of the broker in the topology, of the client, or the ending of clients' names.
    """

    deployment: str
    role: CertifiedRole
    name: str

    def __str__(self) -> str:
        return f"{self.role} {self.name[:64]!r} of deployment {self.deployment[:64]!r}"

    @property
    def uri(self) -> str:
        """As it stands in the certificate."""
        deployment, name = (quote(part, safe="") for part in (self.deployment, self.name))
        return f"{_SCHEME}{deployment}:{self.role}/{name}"

    @classmethod
    def from_uri(cls, uri: str) -> "Identity":
        """The identity in a certificate.

        Raises:
            ValueError: it is none of ours.
        """
        deployment, _, place = uri.removeprefix(_SCHEME).partition(":")
        role, _, name = place.partition("/")
        for known in CERTIFIED_ROLES:
            if role == known:
                identity = cls(unquote(deployment), known, unquote(name))
                # One spelling each, so that comparing names is comparing identities.
                if deployment and name and identity.uri == uri:
                    return identity
        raise ValueError(f"{uri[:200]!r} names no member of a deployment")

    def refuses(self, role: Role, name: str, deployment: str) -> str | None:
        """Why it may not say Hello in this role and under this name; None when it may."""
        if self.role == "broker":
            fits = role in ("broker", "probe") and name == self.name
        elif self.role == "client":
            fits = role == "client" and name == self.name
        else:
            fits = role == "client" and name.endswith(f".{self.name}")
        if fits and self.deployment == deployment:
            return None
        return f"the certificate is that of {self}, not of {role} {name[:64]!r}"
