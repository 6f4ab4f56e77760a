"""A client's line to its broker, which maintains a session and reports events to the client."""

import random
from collections.abc import Mapping
from typing import Any, Final, Protocol

import trio

from brokerd.client.broker_choice import AllRefused, Attempt, Brokers
from brokerd.client.core import ClientCore
from brokerd.client.events import (
    Attached,
    ClientEvent,
    Redirected,
    RequestRefused,
    RetryLater,
    SubscriptionAnswered,
    SubscriptionEnded,
)
from brokerd.client.state_encoding import home_of
from brokerd.config import SessionParameters
from brokerd.errors import RemoteProtocolError, reason_of
from brokerd.protocols.interface import LossReason, MessageReceived
from brokerd.protocols.registry import DEFINITIONS
from brokerd.runtime.connection import Connection, clock_ns
from brokerd.runtime.streams import Dial, PlaintextRefused, close_stream, first_message
from brokerd.runtime.tls import CertificateRefused, identity_of
from brokerd.sessions.failure_detector import check_interval_ns
from brokerd.sessions.messages import WIRE_VERSION, Farewell, Hello, StateAdvanced, StateMark
from brokerd.sessions.session import Session, SessionState, client_hello
from brokerd.units import SECOND_NS
from brokerd.wire.codec import encode
from brokerd.wire.fast_path import StraightReader

RETRY_S: Final = 0.2
LEAVING_S: Final = 1.0


class Listener(Protocol):
    """The receiver of the events of a line; called at once and in order."""

    def on_events(self, line: "BrokerConnection", events: list[ClientEvent]) -> None:
        """Handle the events of a batch of messages."""

    def session_changed(
        self, line: "BrokerConnection", change: str, details: Mapping[str, Any]
    ) -> None:
        """Handle "lost" with a reason, or "failed" with the reason of a failed attempt."""

    def on_fetch(self, line: "BrokerConnection") -> None:
        """Handle a fetch of messages to send; some may wait for state that is not saved yet."""

    def can_read(self, line: "BrokerConnection") -> bool:
        """Return True if the application has room for more."""

    def failed(self, line: "BrokerConnection") -> None:
        """Handle the end of the line; `failure` is the reason."""


class BrokerConnection:
    """Sessions with one broker at a time, one after the other, for as long as `run` runs.

    Attributes:
        core: client core of the sessions.
        brokers: possible brokers.
        connection: the current connection, if there is one.
        failure: the reason for no further sessions; None while more are possible.
        states: subscription → state last reported by the broker.
        path_ages_ns: subscription → `path_age_ns` of that report.
        refusals: subscription → reason of the broker's refusal.
        unattached_since_s: the instant from which the client has not been attached; None while
            attached.
        last_failure: reason of the latest failed attempt, with its address.
    """

    def __init__(
        self,
        core: ClientCore,
        brokers: Brokers,
        deployment_id: str,
        parameters: SessionParameters,
        dial: Dial,
        listener: Listener,
    ) -> None:
        self.core = core
        self.brokers = brokers
        self.connection: Connection | None = None
        self.failure: str | None = None
        self.states: dict[int, str] = {}
        self.path_ages_ns: dict[int, int] = {}
        self.refusals: dict[int, str] = {}
        self.unattached_since_s: float | None = trio.current_time()
        self.last_failure = ""
        self.scope = trio.CancelScope()
        self._deployment_id = deployment_id
        self._parameters = parameters
        self._dial = dial
        self._listener = listener
        self._sessions = 0
        self._was_attached = self._has_attached = False
        self._refusal = ""
        self._redirect: tuple[str, ...] = ()
        # A restarted client, or a replaced broker: it may be at any of the addresses.
        self._seeks_home = core.attachment.home is not None and bool(core.attachment.home.broker)
        self._retries: list[int] = []

    async def run(self) -> None:
        """Maintain a session with a broker until that fails for good, or `scope` is cancelled."""
        with self.scope:
            while self.failure is None:
                here = self.address
                self._was_attached, self._refusal = False, ""
                why = await self._attach_once()
                step = self._next_step(why)
                if self.address != here:
                    self._leave_broker()
                if why is not None:
                    self.last_failure = f"{here}: {why}"
                    details = {"reason": why, "address": here}
                    self._listener.session_changed(self, "failed", details)
                if isinstance(step, AllRefused):
                    self.fail(step.reason)
                    return
                await trio.sleep(step.pause_s * random.uniform(0.5, 1.0))

    def _next_step(self, why: str | None) -> Attempt | AllRefused:
        """Return the next step after the end of a session, or after a failed attempt."""
        if self._refusal:
            may_leave = self.core.can_leave or self._seeks_home
            return self.brokers.on_refusal(self._refusal, may_leave=may_leave)
        if self._was_attached:
            return self.brokers.on_lost()
        self._seeks_home = True
        return self.brokers.failed(may_leave=True, spoken=why is None)

    def _leave_broker(self) -> None:
        if not self.core.can_leave:
            return
        self.core.leave()
        self.states.clear()
        self.path_ages_ns.clear()
        self.refusals.clear()
        self._retries.clear()

    @property
    def address(self) -> str:
        """The address of the present broker, or of the broker that is tried."""
        return self.brokers.address

    def nudge(self) -> None:
        """Send pending messages."""
        if self.connection is not None:
            self.connection.flush(clock_ns(), hurried=True)

    def acknowledge(self) -> None:
        """Send pending acknowledgements, at once or gathered."""
        if self.connection is not None:
            self.connection.flush(
                clock_ns(), acknowledged=self.core.progress.unsent_acknowledgements
            )

    def read_on(self) -> None:
        """Resume reading after the application has made room."""
        if self.connection is not None and self.connection.reading_stopped:
            self.connection.wake()

    async def move_to(self, brokers: Brokers) -> None:
        """End the session, so that the next session is with the first of these brokers."""
        self.brokers = brokers
        await self.leave()

    async def leave(self) -> None:
        """Send pending messages, for a moment at most, and end the session."""
        connection = self.connection
        if connection is None:
            return
        connection.flush(clock_ns(), hurried=True)
        with trio.move_on_after(LEAVING_S):
            while not connection.is_closed and not connection.is_idle:
                await trio.sleep(0.001)
        connection.end("closed_by_us", Farewell("stopping", "the client leaves"))
        with trio.move_on_after(LEAVING_S):
            await connection.closed.wait()

    # ------------------------------------------------------------ events of connections

    def received(
        self, connection: Connection, events: list[MessageReceived], size_bytes: int
    ) -> None:
        known: list[ClientEvent] = []
        try:
            for event in events:
                known += self.core.on_message(event.message)
        except RemoteProtocolError as error:
            connection.end("protocol_error", Farewell("fault", error.reason))
            self.fail(f"the broker broke the rules: {error.reason}")
        hurried = False
        for each in known:
            hurried = self._note(each) or hurried
        self._listener.on_events(self, known)
        connection.flush(clock_ns(), hurried, self.core.progress.unsent_acknowledgements)
        if self._redirect:
            self._follow_redirect(connection)

    def _follow_redirect(self, connection: Connection) -> None:
        """Follow a redirect of the broker if that breaks no promise."""
        target, self._redirect = self._redirect, ()
        if self.core.can_follow_redirect and self.brokers.on_redirect(target, trio.current_time()):
            connection.end("closed_by_us", Farewell("stopping", "redirected to another broker"))

    def can_read(self, connection: Connection) -> bool:
        return self._listener.can_read(self)

    def refill(self, connection: Connection) -> None:
        """See connection.Owner: messages handed over since the last write are sent together."""
        for message in self.core.messages_to_send():
            if not connection.send(message):
                break
        self._listener.on_fetch(self)

    def on_ended(self, connection: Connection, reason: LossReason) -> None:
        self.connection = None
        if self.unattached_since_s is None:
            self.unattached_since_s = trio.current_time()
        self.core.on_lost()
        farewell = connection.farewell
        why = f"{farewell.kind}: {farewell.reason}" if farewell else str(reason)
        if reason != "closed_by_us":
            self.last_failure = f"{self.address}: {why}"
        self._listener.session_changed(self, "lost", {"reason": why})
        if farewell is not None and farewell.kind == "refused":
            self._refusal = why
        elif farewell is not None and farewell.kind in ("superseded", "fault"):
            self.fail(why)

    def _note(self, event: ClientEvent) -> bool:
        """Record the reports of an event on subscriptions.

        Return True if an answer is due at once.
        """
        match event:
            case Attached():
                self._was_attached = self._has_attached = True
                self.unattached_since_s = None
                self._seeks_home = False
                self.brokers.attached()
            case SubscriptionAnswered(number, state, path_age_ns):
                self.states[number] = state
                self.path_ages_ns[number] = path_age_ns
            case SubscriptionEnded(number):
                self.states.pop(number, None)
                self.path_ages_ns.pop(number, None)
            case RetryLater(refused):
                self._retries.append(refused.number)
                self.last_failure = f"{self.address}: {refused.reason}"
            case Redirected(addresses):
                self._redirect = addresses
            case RequestRefused(refused):
                if refused.number:
                    self.refusals[refused.number] = refused.reason
                else:
                    self.fail(f"{refused.request} was refused: {refused.reason}")
            case _:
                return not hasattr(event, "serial")
        return True

    def fail(self, why: str) -> None:
        """End the line: no further sessions follow."""
        if self.failure is None:
            self.failure = why
        self._listener.failed(self)

    # ------------------------------------------------------------ the session

    async def _attach_once(self) -> str | None:
        """Open a session and serve it to its end; return the reason if there was no session."""
        stream: trio.abc.Stream | None = None
        decoder = StraightReader()
        session: Session | str = "no answer in time"
        try:
            with trio.move_on_after(self._parameters.connect_timeout_ns / SECOND_NS):
                try:
                    stream = await self._dial(self.address)
                    session = await self._shake_hands(stream, decoder)
                except PlaintextRefused as error:
                    session = self._refusal = str(error)
                except CertificateRefused as error:
                    session = self._refuse_stranger(str(error))
                except RemoteProtocolError as error:
                    session = f"{reason_of(error)}{self._describe_plaintext(stream)}"
                except (OSError, trio.BrokenResourceError) as error:
                    session = reason_of(error)
            if isinstance(session, str) or stream is None:
                return str(session)
            await self._serve(session, stream, decoder)
            return None
        finally:
            if stream is not None:
                await close_stream(stream)

    async def _shake_hands(self, stream: trio.abc.Stream, decoder: StraightReader) -> Session | str:
        certified = identity_of(stream)
        if certified is not None and certified.role != "broker":
            return self._refuse_stranger(f"it is no broker but {certified}")
        if certified is not None and self._deployment_id not in ("", certified.deployment):
            return self._refuse_stranger(
                f"it is {certified}, not of deployment {self._deployment_id}"
            )
        self._sessions += 1
        hello = client_hello(
            self.core.name,
            self._deployment_id,
            self.core.attachment.incarnation,
            self._sessions,
            self.core.attachment.witnessed,
        )
        await stream.send_all(b"".join(encode(hello)))
        answer = await first_message(stream, decoder)
        if isinstance(answer, Farewell):
            if answer.kind == "refused":
                self._refusal = f"refused: {answer.reason}"
            return answer.reason
        assert isinstance(answer, Hello), answer
        if answer.wire_version != WIRE_VERSION:
            return self._refuse(
                f"{answer.name[:64]!r} answers with wire version {answer.wire_version}, "
                f"this is {WIRE_VERSION}"
            )
        if answer.session != self._sessions:
            return f"{answer.name[:64]!r} answers for session {answer.session}"
        if certified is not None and answer.name != certified.name:
            return self._refuse_stranger(f"{certified} answers as {answer.name[:64]!r}")
        return self._await_accepted(answer)

    @staticmethod
    def _describe_plaintext(stream: trio.abc.Stream | None) -> str:
        is_certified = stream is None or identity_of(stream) is not None
        return "" if is_certified else "; this connection has no certificates (`tls`)"

    def _refuse_stranger(self, reason: str) -> str:
        """Return a reason against a broker, and leave the broker if it was never attached to.

        A client that was attached continues to try: certificates are renewed while brokers run.
        """
        if not self._has_attached:
            self._refusal = reason if self.brokers.is_list else f"{self.address}: {reason}"
        return reason

    def _refuse(self, why: str) -> str:
        """Refuse the broker for good: another attempt would end in the same way."""
        self._refusal = why[:300]
        return self._refusal

    def _await_accepted(self, answer: Hello) -> Session | str:
        """Return the session that the broker has accepted, or the reason against the session."""
        home = home_of(answer.name, answer.deployment_id, answer.protocol)
        if self.brokers.is_list or self.core.is_kept:
            if (objection := self.core.objection(home)) is not None:
                return self._refuse(objection)
            if self.core.is_kept and home.protocol not in DEFINITIONS:
                return self._refuse(f"{home.broker} runs {home.protocol[:64]!r}, unknown here")
            if self.core.attachment.home is not None and self.core.attachment.home.broker not in (
                "",
                home.broker,
            ):
                self._leave_broker()
        self.core.move_to(home)
        self._witness(answer.state)
        session = Session(answer.number, answer.session, SessionState.ESTABLISHED)
        session.number, session.incarnation = self._sessions, answer.incarnation
        return session

    def _witness(self, mark: StateMark | None) -> None:
        """Keep the state mark of the broker, to return it with the next Hello."""
        if mark is not None:
            self.core.attachment.witnessed = mark

    def _on_state_advanced(self, _peer: object, message: StateAdvanced) -> None:
        self._witness(message.mark)

    async def _serve(
        self, session: Session, stream: trio.abc.Stream, decoder: StraightReader
    ) -> None:
        connection = Connection(
            stream, session, decoder, self._parameters, self, begins_acknowledgements=True
        )
        self.connection = connection
        connection.on_state_advanced = self._on_state_advanced
        self.core.on_established()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._maintain, connection)
            await connection.serve()
            nursery.cancel_scope.cancel()

    async def _maintain(self, connection: Connection) -> None:
        """Send heartbeats, detect silence, repeat requests that were refused temporarily."""
        tick_s = check_interval_ns(self._parameters) / SECOND_NS
        limit_s = self._parameters.connect_timeout_ns / SECOND_NS
        beats = retried_at = 0.0
        began = trio.current_time()
        while True:
            await trio.sleep(tick_s)
            now = trio.current_time()
            if now + tick_s / 2 >= beats:
                connection.beat()
                beats = now + self._parameters.heartbeat_ns / SECOND_NS
            connection.check(clock_ns())
            if now - began >= limit_s and self.core.can_leave and self.brokers.has_others:
                # The broker answers, but does not attach the client; another broker may.
                connection.end("closed_by_us", Farewell("stopping", "to go elsewhere"))
                return
            if self._retries and now - retried_at >= RETRY_S:
                retried_at = now
                self._retry(connection)

    def _retry(self, connection: Connection) -> None:
        numbers, self._retries = self._retries, []
        if 0 in numbers:
            connection.end("closed_by_us", Farewell("stopping", "to attach again"))
            return
        for number in numbers:
            self.core.subscribe_again(number)
        connection.flush(clock_ns(), hurried=True)
