"""`subscribe`: deliveries of a subscription, a line each."""

import json
import math
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pubsubctl.commands.options.runs import Broker, ClientName, seconds_of
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import ExpectationFailed, HostError, Unreachable, UserError

if TYPE_CHECKING:
    from brokerd.client.application import Publication
    from brokerd.client.client import Client
    from brokerd.client.events import GapAnnounced
    from brokerd.model.predicate import Predicate
    from pubsubctl.deployment.client_access import ClientAccess

_LEAVE_S = 10.0
"""Time for the end of a subscription at its broker."""


def subscribe(
    context: typer.Context,
    predicate: Annotated[
        str,
        typer.Argument(
            metavar="PREDICATE",
            help="The wanted publications, as \"kind = 'order' and price > 50\"; or `true` for "
            "all.",
        ),
    ],
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="End after N.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="End after this time.")
    ] = None,
    durable: Annotated[
        bool,
        typer.Option(
            "--durable",
            help="Continue where the last command with this --name at this --broker ended; the "
            "broker keeps the position (protocol durable).",
        ),
    ] = False,
    end: Annotated[
        bool, typer.Option("--end", help="End the durable subscription of this --name.")
    ] = False,
    broker: Broker = None,
    name: ClientName = None,
) -> None:
    """Subscribe, and print deliveries until Ctrl-C.

    The subscription ends with the command, unless it is --durable. Status 1: a gap was announced,
    or fewer than --count publications arrived within --timeout; status 5: the broker refuses;
    status 6: no broker can be reached, or there is no session at the end of --timeout. In a pipe
    or a file, each line is a JSON object, which `publish -` reads.
    """
    import trio

    from pubsubctl.console.interruption import until_interrupted
    from pubsubctl.deployment.client_access import reach_brokers

    call = invocation(context)
    call.refuse_dry_run("subscribe")
    durable = durable or end
    if durable and name is None:
        raise UserError("a durable subscription needs a --name")
    name = name or f"subscribe-{secrets.token_hex(4)}"
    wanted = _parse(predicate)
    timeout_s = math.inf if timeout is None else seconds_of("--timeout", timeout)
    access = reach_brokers(call, name)
    if durable and broker is None:
        broker = next(iter(access.addresses))  # another broker would not have the position
    work = _Subscribing(call, wanted, count, timeout_s, broker or "", access.brokers, durable, end)
    addresses = access.addresses_of(broker)
    trio.run(until_interrupted, lambda: work.run(access, name, addresses))
    work.check_received()


def _parse(text: str) -> "Predicate":
    """Return the predicate in a text.

    Raises:
        UserError: the text cannot be parsed.
    """
    from brokerd.model.predicate import PredicateError
    from brokerd.model.predicate_text import parse_predicate

    try:
        return parse_predicate(text)
    except PredicateError as error:
        raise UserError(str(error)) from None


@dataclass
class _Subscribing:
    """The subscription of one command.

    Attributes:
        count: the number of deliveries to print; None for no end.
        broker: the one broker to connect to; "" for any.
        brokers: the names of the brokers, by number.
        ends: end a durable subscription, and print nothing.
        has_ended: True once the broker has confirmed the end of the subscription.
        received, gaps: numbers of printed lines.
    """

    call: Invocation
    predicate: "Predicate"
    count: int | None
    timeout_s: float
    broker: str
    brokers: tuple[str, ...]
    is_durable: bool
    ends: bool
    has_ended: bool = False
    received: int = 0
    gaps: int = 0

    async def run(self, access: "ClientAccess", name: str, addresses: list[str]) -> None:
        """Print deliveries until the count or the time is reached.

        Raises:
            HostError: the broker refuses the subscription.
            Unreachable: no broker can be reached.
        """
        import trio

        from brokerd.client.client import BrokerUnreachable, Callbacks, ClientError, connect
        from brokerd.client.consumer import BrokerTokens
        from pubsubctl.deployment.client_access import FailedAttempts

        attempts = FailedAttempts(self.call.console, addresses)
        try:
            with access.certificate(name) as tls:
                async with (
                    access.dialling(tls) as dial,
                    connect(
                        addresses,
                        name,
                        deployment_id=access.identity,
                        parameters=access.session,
                        callbacks=Callbacks(on_gap=self._print_gap, on_session=attempts.on_session),
                        tls=tls,
                        dial=dial,
                        tokens=BrokerTokens() if self.is_durable else None,
                    ) as client,
                ):
                    try:
                        with trio.move_on_after(self.timeout_s) as waiting:
                            await attempts.wait_attached(client)
                            await self._receive(client)
                        is_over = waiting.cancelled_caught and not attempts.is_attached
                        if is_over and not self.ends:
                            raise Unreachable(f"{attempts.describe()}{self._so_far()}")
                    finally:
                        if not self.is_durable or self.ends:
                            with trio.CancelScope(shield=True), trio.move_on_after(_LEAVE_S):
                                await client.detach(drain=False)
                                self.has_ended = True
        except BrokerUnreachable as error:
            raise Unreachable(error.cause) from None
        except ClientError as error:
            is_another = "another predicate" in str(error)
            remedy = "; `--end` ends it, or use another --name" if is_another else ""
            raise HostError(f"{error}{remedy}") from None

    def _so_far(self) -> str:
        return f"; {self.received} publications arrived before" if self.received else ""

    async def _receive(self, client: "Client") -> None:
        if self.ends:
            return
        if self.is_durable:
            consumer = await client.consume(self.predicate)
            self._announce(client)
            async for publication in consumer:
                if self._print(publication):
                    await consumer.commit()
                    return
        else:
            await client.subscribe(self.predicate)
            self._announce(client)
            async for publication in client.publications():
                if self._print(publication):
                    return

    def _announce(self, client: "Client") -> None:
        place = f" at {self.broker}" if self.broker else ""
        self.call.console.print(f"subscribed{place} as {client.name}; Ctrl-C ends")

    def _print(self, publication: "Publication") -> bool:
        """Print a delivery; return True if it is the last."""
        from pubsubctl.deployment.publication_lines import delivery_to_mapping, describe_delivery

        if self.call.console.prints_objects:
            self.call.console.line(json.dumps(delivery_to_mapping(publication), ensure_ascii=False))
        else:
            self.call.console.line(describe_delivery(publication, self.brokers))
        self.received += 1
        return self.received == self.count

    def _print_gap(self, gap: "GapAnnounced") -> None:
        from pubsubctl.deployment.publication_lines import describe_source, gap_to_mapping

        self.gaps += 1
        if self.call.console.prints_objects:
            self.call.console.line(json.dumps(gap_to_mapping(gap)))
        else:
            source = describe_source(gap.source, self.brokers)
            self.call.console.line(f"gap: {source}:{gap.first} to {gap.last}: {gap.reason}")

    def check_received(self) -> None:
        """Check the received publications, and the end of a durable subscription.

        Raises:
            ExpectationFailed: a gap was announced, or publications are missing.
            HostError: the broker has not confirmed the end of the durable subscription.
        """
        if self.ends:
            if not self.has_ended:
                raise HostError(f"{self.broker} has not confirmed the end; repeat the command")
            self.call.console.print(f"{self.broker} has ended the durable subscription")
            return
        problems = []
        if self.gaps:
            plural = "s were" if self.gaps > 1 else " was"
            problems.append(f"{self.gaps} gap{plural} announced")
        if self.count is not None and self.received < self.count:
            problems.append(f"{self.received} of {self.count} publications arrived")
        if problems:
            raise ExpectationFailed(*problems)
