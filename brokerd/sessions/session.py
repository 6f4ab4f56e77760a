"""Who may have a session with whom, and which of several connections it is.

A connection goes CONNECTING → HANDSHAKING → ESTABLISHED → CLOSED (or to CLOSED at any time);
it carries a session only while ESTABLISHED. `SessionTable` decides for one process: it checks
each Hello, keeps at most one session per peer, and settles two connections that cross.

Paper: [DFT11] §II (sessions), §IV.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from brokerd.model.identity import BrokerNumber, ClientId, Peer, is_incarnation_leap
from brokerd.sessions.identity import Identity
from brokerd.sessions.messages import WIRE_VERSION, Farewell, Hello, Role, StateMark
from brokerd.sessions.state_marks import StateLedger, StateWitness

MAXIMUM_CLIENT_NAME = 100
DEPARTED = "it has left the tree"
"""Why there is no session with a broker that was to be dialled."""


class SessionState(Enum):
    """How far a connection has come."""

    CONNECTING = "connecting"
    HANDSHAKING = "handshaking"
    ESTABLISHED = "established"
    CLOSED = "closed"


_FOLLOWS = {
    SessionState.CONNECTING: (SessionState.HANDSHAKING, SessionState.CLOSED),
    SessionState.HANDSHAKING: (SessionState.ESTABLISHED, SessionState.CLOSED),
    SessionState.ESTABLISHED: (SessionState.CLOSED,),
    SessionState.CLOSED: (),
}


@dataclass(slots=True, eq=False)
class Session:
    """One connection with a peer, as far as it has come.

    Attributes:
        peer: whom it leads to.
        identity: the session's number between the two ends (`Hello.session`).
        number: its number at this end, never repeated within an incarnation; 0 until
            established.
        incarnation: of the peer; 0 until established.
    """

    peer: Peer
    identity: int
    state: SessionState
    number: int = 0
    incarnation: int = 0

    def advance(self, state: SessionState) -> None:
        """Go on to `state`."""
        assert state in _FOLLOWS[self.state], f"session with {self.peer}: {self.state} to {state}"
        self.state = state


@dataclass(frozen=True, slots=True)
class Accepted:
    """A Hello was accepted.

    Attributes:
        session: the new session, established; None when the other end only probes.
        answer: to be sent.
        replaces: the session that is over because of it.
        abandons: our own attempt that is over because of it.
    """

    session: Session | None
    answer: Hello
    replaces: Session | None = None
    abandons: Session | None = None


@dataclass(slots=True)
class SelfDescription:
    """What this broker says of itself in each Hello.

    Attributes:
        names: name of each broker it may have sessions with, by number.
        recovering: kept up to date by whoever knows.
        ledger: of its state folder; None: it keeps no state, or proves none.
    """

    protocol: str
    deployment_id: str
    topology_digest: str
    name: str
    number: BrokerNumber
    incarnation: int
    names: Mapping[BrokerNumber, str]
    recovering: bool = False
    ledger: StateLedger | None = None


@dataclass(slots=True)
class SessionTable:
    """The sessions and attempts of one broker, at most one of either per peer.

    Attributes:
        witness: what neighbours have had on their disks.
        loss: how a neighbour proved that this broker lost state; "" while none did. The broker
            must not go on then.
        lost_incarnation: the highest incarnation that such a proof has shown.
    """

    own: SelfDescription
    witness: StateWitness = field(default_factory=StateWitness)
    loss: str = ""
    lost_incarnation: int = 0
    sessions: dict[Peer, Session] = field(default_factory=dict)
    attempts: dict[Peer, Session] = field(default_factory=dict)
    _newest: dict[Peer, int] = field(default_factory=dict)
    _heard: dict[Peer, tuple[int, int]] = field(default_factory=dict)
    _incarnations: dict[BrokerNumber, int] = field(default_factory=dict)
    _opened: int = 0
    _established: int = 0

    # ------------------------------------------------------------ opening

    def open(self, peer: BrokerNumber) -> Session | None:
        """A new attempt; None while there is a session with the peer or an attempt to have one."""
        if peer in self.sessions or peer in self.attempts:
            return None
        self._opened += 1
        # Both ends number what they open; the last bit keeps the two series apart.
        identity = 2 * self._opened + (self.own.number > peer)
        attempt = Session(peer, identity, SessionState.CONNECTING)
        self.attempts[peer] = attempt
        return attempt

    def hello(self, attempt: Session) -> Hello:
        """What to say on an attempt whose connection is there."""
        attempt.advance(SessionState.HANDSHAKING)
        newest = self._newest.get(attempt.peer, 0)
        self._newest[attempt.peer] = attempt.identity
        return self._describe("broker", attempt.identity, newest, attempt.peer)

    def probe_hello(self) -> Hello:
        """What to say on a connection that only finds out whether a session is possible."""
        return self._describe("probe", 0, 0)

    def refused(self, peer: BrokerNumber, farewell: Farewell) -> None:
        """Check the mark by which a broker has refused this one; `loss` is set if it proves one."""
        if farewell.witnessed is not None:
            self._find_loss(peer, farewell.witnessed)

    def answered(self, attempt: Session, hello: Hello) -> Farewell | None:
        """Establish an attempt by the other end's Hello; returns a refusal where it is wrong.

        The attempt must not be over.
        """
        refusal = self._find_fault(hello) or self._find_stranger(attempt.peer, hello)
        if refusal is None and hello.session != attempt.identity:
            refusal = f"answered for session {hello.session}, not {attempt.identity}"
        refusal = refusal or self._find_leap(hello)
        if refusal is not None:
            return Farewell("refused", refusal)
        lost = self._find_lost_state(hello.number, hello)
        if lost is not None:
            return lost
        del self.attempts[attempt.peer]
        self._establish(attempt, hello)
        return None

    def probed(self, peer: BrokerNumber, hello: Hello) -> str | None:
        """What is wrong with the answer to a probe; None when a session would be possible."""
        return self._find_fault(hello) or self._find_stranger(peer, hello)

    # ------------------------------------------------------------ accepting

    def impostor(self, peer: BrokerNumber, identity: Identity | None) -> str | None:
        """What is wrong with whoever answers where a broker was dialled, by its certificate.

        None when it is that broker, or where there are no certificates.
        """
        name = self.own.names.get(peer)
        if name is None:
            return DEPARTED
        if identity is None:
            return None
        return identity.refuses("broker", name, self.own.deployment_id)

    def accept(self, hello: Hello, identity: Identity | None = None) -> Accepted | Farewell:
        """Decide on the Hello of a connection that the other end opened.

        `identity` is that of its certificate, where there are certificates.

        What is replaced or abandoned is already forgotten here. A session that an established
        one would have to give way to is told from a stale crossed attempt by the newest session
        its opener knew: who re-opens has known the one that is to be replaced.
        """
        fault = self._find_fault(hello)
        if fault is None and identity is not None:
            fault = identity.refuses(hello.role, hello.name, self.own.deployment_id)
        if fault is not None:
            return Farewell("refused", fault)
        if hello.role == "client":
            return self._accept_client(hello)
        peer = hello.number
        leap = self._find_leap(hello)
        if leap is not None:
            return Farewell("refused", leap)
        lost = self._find_lost_state(peer, hello)
        if lost is not None:
            return lost
        if hello.role == "probe":
            return Accepted(None, self._describe("broker", hello.session, 0, peer))
        attempt, old = self.attempts.get(peer), self.sessions.get(peer)
        if attempt is not None and self.own.number < peer:
            return Farewell("crossed", "the attempt of the broker with the smaller number is kept")
        if old is not None and not _may_replace(hello, old):
            return Farewell("refused", f"session {old.identity} is up and was not known")
        incarnation, newest = self._heard.get(peer, (0, 0))
        if hello.incarnation == incarnation and hello.session <= newest:
            # Numbers only go up within an incarnation, so this Hello was said before.
            return Farewell("refused", f"session {hello.session} is over")
        self._heard[peer] = (hello.incarnation, hello.session)
        return self._accept_session(peer, hello, old, attempt)

    def _accept_client(self, hello: Hello) -> Accepted:
        return self._accept_session(hello.name, hello, self.sessions.get(hello.name), None)

    def _accept_session(
        self, peer: Peer, hello: Hello, old: Session | None, attempt: Session | None
    ) -> Accepted:
        for over in (old, attempt):
            if over is not None:
                self.close(over)
        session = Session(peer, hello.session, SessionState.HANDSHAKING)
        answer = self._describe("broker", hello.session, self._newest.get(peer, 0), peer)
        self._establish(session, hello)
        return Accepted(session, answer, old, attempt)

    # ------------------------------------------------------------ both

    def close(self, session: Session) -> None:
        """The session or attempt is over."""
        is_session = session.state is SessionState.ESTABLISHED
        session.advance(SessionState.CLOSED)
        found = (self.sessions if is_session else self.attempts).pop(session.peer, None)
        assert found is session, f"{session} is over, and {found} was known"

    def advanced(self, peer: Peer, mark: StateMark, witnessed: StateMark | None) -> str | None:
        """Take the durable state of a neighbour with a session, and the mark that it returns.

        Returns what is wrong with them, if anything is; `loss` is set if they prove one.
        """
        if not isinstance(peer, int):
            return "a client keeps no state of a broker"
        fault = self._find_loss(peer, witnessed) if witnessed is not None else None
        if fault is None:
            self.witness.take(peer, mark)
        return fault

    def forget(self, peer: BrokerNumber) -> None:
        """A broker has left the tree, and has no session here; its number comes never again."""
        assert peer not in self.sessions, f"broker {peer} has left and has a session"
        self.witness.forget(peer)
        self._newest.pop(peer, None)
        self._heard.pop(peer, None)
        self._incarnations.pop(peer, None)

    def _establish(self, session: Session, hello: Hello) -> None:
        self._established += 1
        session.number = self._established
        session.incarnation = hello.incarnation
        session.advance(SessionState.ESTABLISHED)
        self.sessions[session.peer] = session
        if isinstance(session.peer, int):
            self._newest[session.peer] = session.identity
            self._incarnations[session.peer] = hello.incarnation

    def _find_leap(self, hello: Hello) -> str | None:
        """Return the reason to refuse the incarnation in a Hello; None if there is no reason.

        A broker that restarted could never replace a session with an invented incarnation.
        """
        mark = self.witness.marks.get(hello.number)
        known = self._incarnations.get(hello.number, mark.incarnation if mark is not None else 0)
        if is_incarnation_leap(known, hello.incarnation):
            return f"incarnation {hello.incarnation} of {hello.name} leaps from {known}"
        return None

    def _find_lost_state(self, peer: BrokerNumber, hello: Hello) -> Farewell | None:
        """Return a refusal if this broker or the sender of a Hello has lost durable state."""
        if hello.witnessed is not None:
            fault = self._find_loss(peer, hello.witnessed)
            if fault is not None:
                return Farewell("refused", fault)
        if hello.state is None:
            return None
        lost = self.witness.loss(peer, hello.state)
        if lost is not None:
            reason = f"{hello.name} has lost durable state: {lost}"
            return Farewell("refused", reason, self.witness.marks[peer])
        # The mark in the Hello is not taken: its sender has not seen the earlier one, which proves
        # a loss, until the session is up at its end. It is sent again with the first heartbeat.
        return None

    def _find_loss(self, peer: BrokerNumber, mark: StateMark) -> str | None:
        """Set `loss` if a mark proves that this broker lost state; returns why it is refused."""
        own = self.own
        if own.ledger is None:
            return None
        try:
            loss = own.ledger.loss(mark)
        except ValueError as error:
            return f"{own.names.get(peer, peer)} returns {error}"
        if loss is None:
            return None
        self.lost_incarnation = max(self.lost_incarnation, mark.incarnation)
        self.loss = self.loss or f"{own.names.get(peer, peer)} proves that {loss}"
        return f"{own.name} has lost durable state: {loss}"

    def _describe(self, role: Role, session: int, newest: int, peer: Peer | None = None) -> Hello:
        own = self.own
        ledger = own.ledger if not isinstance(peer, str) else None
        return Hello(
            WIRE_VERSION,
            own.protocol,
            own.deployment_id,
            own.topology_digest,
            role,
            own.name,
            own.number,
            own.incarnation,
            session,
            newest,
            own.recovering,
            (),
            ledger.mark() if ledger is not None else None,
            self.witness.marks.get(peer) if isinstance(peer, int) else None,
        )

    def _find_fault(self, hello: Hello) -> str | None:
        own = self.own
        if hello.wire_version != WIRE_VERSION:
            return f"wire version {hello.wire_version}; this is {WIRE_VERSION}"
        for what, theirs, ours in (
            ("protocol", hello.protocol, own.protocol),
            ("deployment", hello.deployment_id, own.deployment_id),
            ("topology digest", hello.topology_digest, own.topology_digest),
        ):
            if theirs != ours and (theirs or hello.role != "client"):
                return f"{what} {theirs[:64]!r}; this is {ours!r}"
        if hello.role == "client":
            if not 0 < len(hello.name) <= MAXIMUM_CLIENT_NAME or not hello.name.isprintable():
                return f"a client's name has 1 to {MAXIMUM_CLIENT_NAME} printable characters"
        elif own.names.get(hello.number) != hello.name:
            return f"{hello.name[:64]!r} is not number {hello.number} near {own.name}"
        return None

    def _find_stranger(self, peer: Peer, hello: Hello) -> str | None:
        if hello.role != "broker" or hello.number != peer:
            return f"{hello.role} {hello.name[:64]!r} answers in the place of broker {peer}"
        return None


def _may_replace(hello: Hello, old: Session) -> bool:
    if hello.incarnation == old.incarnation:
        return hello.newest == old.identity
    return hello.incarnation > old.incarnation


def client_hello(name: ClientId, deployment_id: str, incarnation: int, session: int) -> Hello:
    """What a client says first."""
    return Hello(
        WIRE_VERSION, "", deployment_id, "", "client", name, 0, incarnation, session, 0, False, ()
    )
