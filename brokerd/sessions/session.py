"""The sessions of one process: permitted peers, and the choice between several connections.

A connection passes through CONNECTING → HANDSHAKING → ESTABLISHED → CLOSED (or to CLOSED at any
time); it carries a session only while ESTABLISHED. `SessionTable` decides for one process: it
checks every Hello, keeps at most one session per peer, and settles two connections that cross.

Paper: [DFT11] §II (sessions), §IV.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from brokerd.model.identity import BrokerNumber, ClientId, Peer, is_incarnation_leap
from brokerd.sessions.messages import WIRE_VERSION, Farewell, Hello, Identity, Role, StateMark
from brokerd.sessions.state_marks import StateLedger, StateWitness

MAXIMUM_CLIENT_NAME = 100
DEPARTED = "it has left the tree"
"""The reason for no session with a broker that was to be dialled."""


class SessionState(Enum):
    """The states of a connection."""

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
    """One connection with a peer, in any state.

    Attributes:
        peer: the other end.
        identity: number of the session between the two ends (`Hello.session`).
        number: number of the session at this end, never repeated within an incarnation; 0 until
            established.
        incarnation: incarnation of the peer; 0 until established.
    """

    peer: Peer
    identity: int
    state: SessionState
    number: int = 0
    incarnation: int = 0

    def advance(self, state: SessionState) -> None:
        """Change the state to `state`, which must be a permitted successor."""
        assert state in _FOLLOWS[self.state], f"session with {self.peer}: {self.state} to {state}"
        self.state = state


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of an accepted Hello.

    Attributes:
        session: the new session, established; None if the other end only probes.
        answer: the Hello to be sent.
        replaces: the session that the new session replaced.
        abandons: the attempt of this broker that the new session replaced.
    """

    session: Session | None
    answer: Hello
    replaces: Session | None = None
    abandons: Session | None = None


@dataclass(slots=True)
class SelfDescription:
    """The values that this broker announces in every Hello.

    Attributes:
        names: name of every broker that sessions are possible with, by number.
        recovering: kept up to date by the runtime.
        ledger: ledger of the state folder; None if the broker has no durable state, or proves none.
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
        witness: the durable state that neighbours have announced.
        loss: the proof of a neighbour or a client that this broker lost state; "" if there is none.
            The broker must not continue after a proof.
        lost_incarnation: the highest incarnation in a proof.
    """

    own: SelfDescription
    witness: StateWitness = field(default_factory=StateWitness)
    loss: str = ""
    lost_incarnation: int = 0
    sessions: dict[Peer, Session] = field(default_factory=dict)
    attempts: dict[Peer, Session] = field(default_factory=dict)
    _newest: dict[Peer, int] = field(default_factory=dict)
    _last_attempts: dict[Peer, tuple[int, int]] = field(default_factory=dict)
    _incarnations: dict[BrokerNumber, int] = field(default_factory=dict)
    _opened: int = 0
    _established: int = 0

    # ------------------------------------------------------------ opening

    def open(self, peer: BrokerNumber) -> Session | None:
        """Return a new attempt; None while a session with the peer or another attempt exists."""
        if peer in self.sessions or peer in self.attempts:
            return None
        self._opened += 1
        # Both ends number the attempts that they open; the last bit separates the two series.
        identity = 2 * self._opened + (self.own.number > peer)
        attempt = Session(peer, identity, SessionState.CONNECTING)
        self.attempts[peer] = attempt
        return attempt

    def hello(self, attempt: Session) -> Hello:
        """Return the Hello to send on the new connection of an attempt."""
        attempt.advance(SessionState.HANDSHAKING)
        newest = self._newest.get(attempt.peer, 0)
        self._newest[attempt.peer] = attempt.identity
        return self._describe("broker", attempt.identity, newest, attempt.peer)

    def probe_hello(self) -> Hello:
        """Return the Hello to send on a connection that only checks if a session is possible."""
        return self._describe("probe", 0, 0)

    def on_refusal(self, peer: BrokerNumber, farewell: Farewell) -> None:
        """Check the mark in a refusal of this broker; set `loss` if the mark proves a loss."""
        if farewell.witnessed is not None:
            self._find_loss(peer, farewell.witnessed)

    def on_answer(self, attempt: Session, hello: Hello) -> Farewell | None:
        """Establish an attempt by the other end's Hello; return a refusal if the Hello is wrong.

        The attempt must not be closed.
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

    def on_probe_answer(self, peer: BrokerNumber, hello: Hello) -> str | None:
        """Return the fault in the answer to a probe; None if a session would be possible."""
        return self._find_fault(hello) or self._find_stranger(peer, hello)

    # ------------------------------------------------------------ accepting

    def impostor(self, peer: BrokerNumber, identity: Identity | None) -> str | None:
        """Return the fault in the certificate of a process that answers for a dialled broker.

        None if the certificate is that of the broker, or if there are no certificates.
        """
        name = self.own.names.get(peer)
        if name is None:
            return DEPARTED
        if identity is None:
            return None
        return identity.refuses("broker", name, self.own.deployment_id)

    def accept(self, hello: Hello, identity: Identity | None = None) -> Accepted | Farewell:
        """Accept or refuse the Hello of a connection that the other end opened.

        A replaced session and an abandoned attempt are already removed here. A Hello that replaces
        an established session is distinguished from a stale crossed attempt by the newest session
        in the Hello: a peer that re-opens has had the session that is to be replaced.

        Args:
            identity: identity in the certificate; None if there are no certificates.
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
        if old is not None and not _can_replace(hello, old):
            return Farewell(
                "refused", f"session {old.identity} is up, and the new Hello does not name it"
            )
        incarnation, newest = self._last_attempts.get(peer, (0, 0))
        if hello.incarnation == incarnation and hello.session <= newest:
            # Numbers only increase within an incarnation, so this Hello is an old copy.
            return Farewell("refused", f"session {hello.session} is over")
        self._last_attempts[peer] = (hello.incarnation, hello.session)
        return self._accept_session(peer, hello, old, attempt)

    def _accept_client(self, hello: Hello) -> Accepted | Farewell:
        """Accept a client, unless the mark that it returns proves that this broker lost state.

        The client is not refused for good: a newer copy of the folder may be put back.
        """
        own = self.own
        if hello.witnessed is not None and own.ledger is not None:
            loss = own.ledger.loss_by_client(hello.witnessed)
            if loss is not None:
                self._note_loss(f"client {hello.name[:64]!r}", hello.witnessed, loss)
                return Farewell("stopping", f"{own.name} has lost durable state: {loss}")
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
        """Close a session or attempt."""
        is_session = session.state is SessionState.ESTABLISHED
        session.advance(SessionState.CLOSED)
        found = (self.sessions if is_session else self.attempts).pop(session.peer, None)
        assert found is session, f"{session} is closed, but {found} is registered"

    def on_state_advance(
        self, peer: Peer, mark: StateMark, witnessed: StateMark | None
    ) -> str | None:
        """Record the durable state of a neighbour, and check the mark that it returns.

        The neighbour has a session. Returns the fault in the marks, or None; sets `loss` if the
        returned mark proves a loss.
        """
        if not isinstance(peer, int):
            return "a client keeps no state of a broker"
        fault = self._find_loss(peer, witnessed) if witnessed is not None else None
        if fault is None:
            self.witness.take(peer, mark)
        return fault

    def forget(self, peer: BrokerNumber) -> None:
        """Drop the state of a broker that has left the tree, and has no session.

        Its number never returns.
        """
        assert peer not in self.sessions, f"broker {peer} has left and has a session"
        self.witness.forget(peer)
        if self.own.ledger is not None:
            self.own.ledger.forget(peer)
        self._newest.pop(peer, None)
        self._last_attempts.pop(peer, None)
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
        """Set `loss` if a mark proves that this broker lost state.

        Return the reason to refuse the mark.
        """
        own = self.own
        if own.ledger is None:
            return None
        try:
            loss = own.ledger.loss(peer, mark)
        except ValueError as error:
            return f"{own.names.get(peer, peer)} returns {error}"
        if loss is None:
            return None
        self._note_loss(str(own.names.get(peer, peer)), mark, loss)
        return f"{own.name} has lost durable state: {loss}"

    def _note_loss(self, prover: str, mark: StateMark, loss: str) -> None:
        """Set `loss` to the first proof."""
        self.lost_incarnation = max(self.lost_incarnation, mark.incarnation)
        self.loss = self.loss or f"{prover} proves that {loss}"

    def _describe(self, role: Role, session: int, newest: int, peer: Peer | None = None) -> Hello:
        own = self.own
        ledger = own.ledger
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
        for name, theirs, ours in (
            ("protocol", hello.protocol, own.protocol),
            ("deployment", hello.deployment_id, own.deployment_id),
            ("topology digest", hello.topology_digest, own.topology_digest),
        ):
            if theirs != ours and (theirs or hello.role != "client"):
                return f"{name} {theirs[:64]!r}; this is {ours!r}"
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


def _can_replace(hello: Hello, old: Session) -> bool:
    if hello.incarnation == old.incarnation:
        return hello.newest == old.identity
    return hello.incarnation > old.incarnation


def client_hello(
    name: ClientId,
    deployment_id: str,
    incarnation: int,
    session: int,
    witnessed: StateMark | None = None,
) -> Hello:
    """Return the first message of a client; see Hello."""
    own = "", deployment_id, "", "client", name, 0, incarnation, session, 0, False, ()
    return Hello(WIRE_VERSION, *own, None, witnessed)  # type: ignore[arg-type]
