"""The broker that a client belongs to, and the moves that break no promise of the protocol."""

from dataclasses import dataclass, replace

from brokerd.client.state import Home
from brokerd.sessions.messages import StateMark


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The unfinished work of a client at its broker.

    Attributes:
        publications: number of unacknowledged publications.
        is_started: True if a subscription has started.
        is_ending: True if the broker has not confirmed the end of a subscription.
        is_detaching: True if a detachment was requested.
    """

    publications: int
    is_started: bool
    is_ending: bool
    is_detaching: bool


class Attachment:
    """The relation of a client to one broker at a time.

    Attributes:
        home: the broker of the current or last session; None before the first.
        attached: True if the current session is connected in the protocol's sense.
        was_attached: True if the home has attached the client, in any session.
        has_connected: True if the incarnation was sent to the home.
        incarnation: incarnation of the client; increases when the client attaches to another
            broker.
        exact_incarnation: True if the next source must have this incarnation; else the broker
            assigns one that has never been used, of at least this number.
        pubend: the pubend that the publisher must be at; None: the broker chooses.
        witnessed: the last state mark that the home has announced; None if there is none. The
            client returns it, so that the home detects a loss of its state.
    """

    def __init__(self, incarnation: int, *, exact_incarnation: bool) -> None:
        self.pubend: int | None = None
        self.home: Home | None = None
        self.witnessed: StateMark | None = None
        self.attached = False
        self.was_attached = False
        self.has_connected = False
        self.incarnation = incarnation
        self.exact_incarnation = exact_incarnation

    @property
    def leaves_freely(self) -> bool:
        """Return True if brokers keep no state of the client.

        The client then keeps the identity at another broker.
        """
        return self.home is not None and self.home.leaves_freely

    def objection(self, home: Home, unfinished: Unfinished) -> str | None:
        """Return the reason against a session with this broker.

        None if the session is permitted.
        """
        if self.home is None:
            return None
        if home.protocol != self.home.protocol:
            theirs, ours = home.protocol[:64], self.home.protocol
            return f"{home.broker} runs {theirs!r}, not {ours!r}"
        if home.deployment != self.home.deployment:
            theirs, ours = home.deployment[:64], self.home.deployment
            return f"{home.broker} is of deployment {theirs!r}, not {ours!r}"
        if home.broker != self.home.broker and not self.may_leave(unfinished):
            return f"{home.broker} is not {self.home.broker}, which has unfinished work"
        return None

    def may_leave(self, unfinished: Unfinished) -> bool:
        """Return True if a move to another broker breaks no promise of the protocol.

        Unacknowledged publications may have been delivered: at another broker they would be
        delivered a second time. The publications that this broker still has for a started
        subscription would be missing there, unless the protocol loses publications anyway, or
        subscriptions resume elsewhere; then only this broker can end a subscription. If brokers
        keep no state of clients, a client may move whenever it has no session.
        """
        if not self.was_attached or self.leaves_freely:
            return not self.attached
        may_lose = self.home is not None and self.home.may_lose
        resumes = self.home is not None and self.home.resumes_elsewhere
        would_miss = (unfinished.is_ending if resumes else unfinished.is_started) and not may_lose
        is_busy = self.attached or unfinished.is_detaching
        return not (is_busy or would_miss or unfinished.publications)

    def may_follow(self, unfinished: Unfinished, *, publishes: bool) -> bool:
        """Return True if the client may end its session to follow a redirect.

        The client keeps the identity: a publisher that would have another source elsewhere does not
        move. Nor does a subscriber with subscriptions that would not resume there, unless the
        protocol loses publications anyway.
        """
        if not self.attached or unfinished.is_detaching:
            return False
        if self.leaves_freely:
            return True
        may_lose = self.home is not None and self.home.may_lose
        resumes = self.home is not None and self.home.resumes_elsewhere and not unfinished.is_ending
        return (resumes or may_lose) and not publishes

    def leave(self, generation: int) -> bool:
        """Prepare a session with another broker.

        The incarnation increases, so that a client that returns does not continue with numbers that
        the broker has received.

        Args:
            generation: generation of the last attachment, as reported by the broker.

        Returns:
            True if the client publishes as a new source from now on.
        """
        if self.has_connected:
            self.incarnation = max(self.incarnation, generation) + 1
            self.exact_incarnation = self.has_connected = False
        is_new_source = self.was_attached and not self.leaves_freely
        self.was_attached = False
        self.home = self.home and replace(self.home, broker="")
        return is_new_source
