"""`publish`: publications from the command line, or from lines on standard input."""

import json
import secrets
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pubsubctl.commands.options.runs import Broker, ClientName, seconds_of
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import HostError, Unreachable, UserError

if TYPE_CHECKING:
    from brokerd.client.client import Client
    from brokerd.model.predicate import Scalar
    from pubsubctl.deployment.client_access import ClientAccess

STANDARD_INPUT: Final = "-"
MOST_COUNT: Final = 10_000_000
_PART_BYTES: Final = 1 << 16
_PAUSE_S: Final = 0.05


_Pubend = Annotated[
    int | None,
    typer.Option(
        "--pubend",
        metavar="N",
        min=0,
        max=1_000_000,
        help="Publish to this pubend of the broker, if its protocol has pubends.",
    ),
]


_Timeout = Annotated[
    str,
    typer.Option(
        "--timeout",
        metavar="TIME",
        help="Wait for a broker, and for acknowledgements at the end.",
    ),
]


def publish(
    context: typer.Context,
    attributes: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC|ATTRIBUTES|-",
            help="A topic, or kind=order,price=30, or a JSON object; - for a line of JSON per "
            'publication on standard input: {"attributes": {…}, "payload": "…"}.',
        ),
    ],
    payload: Annotated[str, typer.Argument(metavar="[PAYLOAD]", help="A text.")] = "",
    payload_file: Annotated[
        Path | None, typer.Option("--payload-file", metavar="FILE", help="Read the payload.")
    ] = None,
    count: Annotated[
        int, typer.Option("--count", metavar="N", min=1, max=MOST_COUNT, help="Publish N.")
    ] = 1,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="RATE", help="Publish no faster, such as 50/s or 90/min."),
    ] = None,
    pubend: _Pubend = None,
    broker: Broker = None,
    name: ClientName = None,
    timeout: _Timeout = "30s",
) -> Result | None:
    """Publish to the deployment, and print the acknowledgements.

    Ends when all publications are acknowledged, in the sense of the protocol's promise. Status 5:
    some are not in time, or the broker refuses; status 6: no broker can be reached. In a pipe or a
    file, each line is a JSON object.
    """
    import trio

    from pubsubctl.deployment.client_access import reach_brokers
    from pubsubctl.deployment.publication_lines import attributes_of

    call = invocation(context)
    call.refuse_dry_run("publish")
    publishing = _Publishing(call, _per_s(rate), seconds_of("--timeout", timeout), pubend)
    name = name or f"publish-{secrets.token_hex(4)}"
    is_piped = attributes == STANDARD_INPUT
    if is_piped and (payload or payload_file is not None or count != 1):
        raise UserError("a line on standard input has its own payload, and no --count")
    given = None if is_piped else attributes_of(attributes)
    content = _read_payload(payload, payload_file)
    access = reach_brokers(call, name)
    given = {access.topic_attribute: attributes} if given is None else given
    source = _read_lines() if is_piped else _repeat(given, content, count)
    try:
        trio.run(publishing.run, access, name, access.addresses_of(broker), source)
    except KeyboardInterrupt:
        call.console.print(publishing.describe_counts())
        raise
    return publishing.result()


def _per_s(text: str | None) -> float | None:
    """Return publications per second; None for as fast as possible.

    Raises:
        UserError: the text is no rate above 0.
    """
    from bench.spec.values import parse_rate

    if text is None:
        return None
    try:
        per_s = parse_rate(text).per_second
    except ValueError as error:
        raise UserError(f"--rate {text}: {error}") from None
    return None if per_s is None else float(per_s)


def _read_payload(text: str, path: Path | None) -> bytes:
    if path is None:
        return text.encode("utf-8", "surrogateescape")
    if text:
        raise UserError("give either a payload or --payload-file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"--payload-file {path}: {(error.strerror or str(error)).lower()}"
        ) from None


async def _repeat(
    attributes: "Mapping[str, Scalar]", payload: bytes, count: int
) -> "AsyncIterator[tuple[Mapping[str, Scalar], bytes]]":
    for _ in range(count):
        yield attributes, payload


async def _read_lines() -> "AsyncIterator[tuple[Mapping[str, Scalar], bytes]]":
    import trio

    from pubsubctl.deployment.publication_lines import PublicationReader

    reader = PublicationReader()
    # A thread that waits for input cannot be stopped, and must not keep the program. It would keep
    # the lock of a buffer, without which Python cannot end in order.
    read = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer).read
    part: bytes | None = None
    while part != b"":
        part = await trio.to_thread.run_sync(read, _PART_BYTES, abandon_on_cancel=True)
        if part is None:  # another program has made the input non-blocking
            await trio.sleep(_PAUSE_S)
            continue
        for publication in reader.read(part):
            yield publication


@dataclass
class _Publishing:
    """The publications of one command.

    Attributes:
        published, acknowledged: numbers of publications.
        mistake: the line on standard input that ended the publications.
    """

    call: Invocation
    rate: float | None
    timeout_s: float
    pubend: int | None
    published: int = 0
    acknowledged: int = 0
    mistake: UserError | None = None
    _waiting_since_s: deque[float] = field(default_factory=deque)

    async def run(
        self,
        access: "ClientAccess",
        name: str,
        addresses: list[str],
        publications: "AsyncIterator[tuple[Mapping[str, Scalar], bytes]]",
    ) -> None:
        """Publish, and wait for the acknowledgements.

        Raises:
            HostError: publications are not acknowledged in time, or the broker refuses.
            Unreachable: no broker can be reached.
        """
        from brokerd.client.client import BrokerUnreachable, Callbacks, ClientError, connect
        from pubsubctl.deployment.client_access import FailedAttempts

        attempts = FailedAttempts(self.call.console, addresses)
        callbacks = Callbacks(on_acknowledged=self._acknowledge, on_session=attempts.on_session)
        try:
            with access.certificate(name) as tls:
                async with (
                    access.dialling(tls) as dial,
                    connect(
                        addresses,
                        name,
                        publishes=True,
                        pubend=self.pubend,
                        deployment_id=access.identity,
                        parameters=access.session,
                        callbacks=callbacks,
                        tls=tls,
                        dial=dial,
                        unreachable_after_s=self.timeout_s,
                    ) as client,
                ):
                    await attempts.wait_attached(client)
                    await self._publish(client, publications)
        except BrokerUnreachable as error:
            raise Unreachable(f"{error.cause}{self._rest()}") from None
        except ClientError as error:
            raise HostError(f"{error}{self._rest()}") from None

    async def _publish(
        self,
        client: "Client",
        publications: "AsyncIterator[tuple[Mapping[str, Scalar], bytes]]",
    ) -> None:
        import trio

        started_s = trio.current_time()
        try:
            async for attributes, payload in publications:
                if self.rate is not None:
                    await trio.sleep_until(started_s + self.published / self.rate)
                self._waiting_since_s.append(trio.current_time())
                try:
                    await client.publish(attributes, payload)
                except ValueError as error:
                    self._waiting_since_s.pop()
                    raise UserError(str(error)) from None
                self.published += 1
        except UserError as error:
            self.mistake = error
        with trio.move_on_after(self.timeout_s) as waiting:
            await client.flush()
        if waiting.cancelled_caught:
            raise HostError(f"no acknowledgement within {self.timeout_s:g} s{self._rest()}")

    def _rest(self) -> str:
        left = self.published - self.acknowledged
        return f"; {left} of {self.published} publications may or may not arrive" if left else ""

    def _acknowledge(self, first: int, last: int) -> None:
        import trio

        since_s = self._waiting_since_s[0]
        for _ in range(first, last + 1):
            self._waiting_since_s.popleft()
        self.acknowledged += last - first + 1
        after_ms = (trio.current_time() - since_s) * 1e3
        if self.call.console.prints_objects:
            row = {"schema": "pubsubctl/acknowledgement/1", "first": first, "last": last}
            self.call.console.line(json.dumps({**row, "after_ms": round(after_ms, 3)}))
        else:
            numbers = str(first) if first == last else f"{first} to {last}"
            self.call.console.line(f"acknowledged {numbers} after {after_ms:.1f} ms")

    def result(self) -> Result | None:
        """Return the result of the command; None if it stands in the lines already.

        Raises:
            UserError: a line on standard input could not be read.
        """
        if self.mistake is not None:
            before = f"; the {self.published} before are acknowledged" if self.published else ""
            raise UserError(*self.mistake.problems[:-1], f"{self.mistake.problems[-1]}{before}")
        document = {
            "schema": "pubsubctl/published/1",
            "published": self.published,
            "acknowledged": self.acknowledged,
        }
        if self.call.console.prints_objects:
            self.call.console.line(json.dumps(document))
            return None
        return Result(document=document, text=self.describe_counts())

    def describe_counts(self) -> str:
        """Return the numbers of publications and acknowledgements."""
        return f"{self.published:,} published, {self.acknowledged:,} acknowledged"
