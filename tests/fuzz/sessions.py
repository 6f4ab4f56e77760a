"""Whole sessions of hostile clients at real brokers, beside honest clients that must lose nothing.

    python -m tests.fuzz.sessions --protocol gryphon --frames 100000 --seed 1

Three brokers run as processes. Workers open sessions under a few names, at two of the brokers:
sessions of legal messages in any order (`client_script`), of changed or cut frames, of messages
between brokers, of frames of earlier sessions, of bytes that are no frames; with genuine and forged
marks of the broker's state; and sessions that subscribe to everything and read nothing. Honest
clients publish and subscribe at the same two brokers.

The campaign passes if all brokers still run in the first incarnation, reply to `status`, have not
written to standard error, and every honest subscriber has all honest publications once and in
order.

The seed and the replies of the broker determine the frames of a session. The journal records every
frame; `--replay JOURNAL` sends the same frames again, in the same order.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, TextIO

import trio

from brokerd.client.client import Client, ClientError, connect
from brokerd.errors import ControlError, RemoteProtocolError
from brokerd.model.client_messages import Detach, Subscribe
from brokerd.model.predicate import EVERYTHING
from brokerd.protocols.interface import CoreStatus
from brokerd.protocols.registry import DEFINITIONS, definition_of
from brokerd.runtime.control_socket import open_control
from brokerd.sessions.messages import WIRE_VERSION, Farewell, Hello, StateAdvanced, StateMark
from brokerd.sessions.session import client_hello
from brokerd.wire.codec import decode
from brokerd.wire.framing import FrameDecoder
from tests.fuzz.client_script import ClientScript
from tests.fuzz.frames import HEARTBEAT, changed, frame_of, garbage
from tests.fuzz.values import any_message, message_of
from tests.helpers.every_protocol import BROKERS, HOMES, topology_text
from tests.helpers.message_kinds import all_kinds
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import free_address
from tests.helpers.warm_image import start_program

DEPLOYMENT: Final = "fuzz"
LINGER_NS: Final = 1_000_000_000
NAMES: Final = tuple(f"h{number}" for number in range(12))
WORKERS: Final = 6
HONEST: Final = "honest exists"
PUBLISH_EVERY_S: Final = 0.02
_LONGEST_SESSION: Final = 120
_REPLAYED: Final = 400
_ANSWER_S: Final = 2.0
_BEAT_S: Final = 0.2
_DEAF_BEATS: Final = 35
"""A time longer than other clients wait for a client that reads nothing."""
_WINDOW: Final = 100
"""A limit of unacknowledged publications so low that hostile clients make others wait."""


@dataclass(slots=True)
class Counts:
    """Counters of a campaign.

    Attributes:
        frames: frames that hostile clients wrote, Hello included.
        sessions: sessions that hostile clients opened.
        refusals: sessions that a broker ended.
        deliveries: deliveries to honest subscribers.
        hostile_deliveries: frames that hostile clients received.
        published: publications of honest publishers.
        ends: brokers that have ended.
    """

    frames: int = 0
    sessions: int = 0
    refusals: int = 0
    deliveries: int = 0
    hostile_deliveries: int = 0
    published: int = 0
    ends: int = 0


class Fault(Exception):
    """A failure of the campaign, with its reason."""


@dataclass(slots=True)
class Brokers:
    """Processes of three brokers."""

    folder: Path
    addresses: dict[str, str]
    processes: dict[str, subprocess.Popen[str]]

    async def status(self, name: str) -> dict[str, Any]:
        async with open_control(self.folder / name / "control") as control:
            return await control.request("status")

    async def wait_until_ready(self) -> None:
        """Wait until all brokers have all of their sessions."""
        with trio.fail_after(PATIENCE_S):
            for name in BROKERS:
                while not await self._is_ready(name):
                    await trio.sleep(0.05)

    async def _is_ready(self, name: str) -> bool:
        try:
            status = await self.status(name)
        except ControlError:
            return False
        core = CoreStatus.from_mapping(status)
        return core.state == "running" and not core.missing

    def ended(self) -> list[str]:
        """Return the brokers that have ended, or have written to standard error."""
        found = []
        for name, process in self.processes.items():
            errors = (self.folder / name / "stderr").read_text()
            if process.poll() is not None or errors:
                found.append(f"{name}: status {process.returncode}\n{errors[-4_000:]}")
        return found


def parameters_of(protocol: str) -> dict[str, Any]:
    """Return parameters with a short linger and a small window."""
    definition = definition_of(protocol)
    names = [each.name for each in fields(definition.parameters)]
    keeps = definition.promises.keeps_committed or protocol == "ges_reliable"
    wanted = {"client_window": _WINDOW} | ({} if keeps else {"client_linger_ns": LINGER_NS})
    return {name: value for name, value in wanted.items() if name in names}


@contextmanager
def running(protocol: str, folder: Path, **parameters: Any) -> Iterator[Brokers]:
    """Yield three brokers of a protocol; kill them at the end."""
    (folder / "topology.toml").write_text(
        topology_text(protocol, **{**parameters_of(protocol), **parameters})
    )
    addresses = {name: free_address() for name in BROKERS}
    brokers = Brokers(folder, addresses, {})
    try:
        for name in BROKERS:
            brokers.processes[name] = _start(protocol, folder, name, addresses)
        yield brokers
    finally:
        for process in brokers.processes.values():
            process.kill()
            process.wait()


def _start(
    protocol: str, folder: Path, name: str, addresses: dict[str, str]
) -> subprocess.Popen[str]:
    own = folder / name
    own.mkdir(mode=0o700)
    values: dict[str, Any] = {
        "broker": name,
        "topology_file": str(folder / "topology.toml"),
        "protocol": protocol,
        "deployment_id": DEPLOYMENT,
        "listen": addresses[name],
        "state_folder": str(own / "state"),
        "control_socket": str(own / "control"),
        "log_folder": str(own / "log"),
        "fsync": False,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    lines += ["[addresses]", *(f'{key} = "{value}"' for key, value in addresses.items())]
    (own / "broker.toml").write_text("\n".join(lines) + "\n")
    with (own / "stderr").open("wb") as errors:
        return start_program(
            [sys.executable, "-m", "brokerd", "--config", str(own / "broker.toml")], stderr=errors
        )


# ---------------------------------------------------------------- honest clients


class HonestClients:
    """A publisher and a subscriber at every home.

    Args:
        is_owed_at_once: a subscriber is owed what any publisher publishes once the subscriber's
            broker has confirmed the subscription. Otherwise it is owed what follows its first
            delivery of each publisher, which the campaign waits for.
    """

    def __init__(self, brokers: Brokers, counts: Counts, *, is_owed_at_once: bool) -> None:
        self._brokers = brokers
        self._counts = counts
        self._is_owed_at_once = is_owed_at_once
        self._published = dict.fromkeys(HOMES, 0)
        self._owed_after = dict.fromkeys(HOMES, 0)
        self._received: dict[str, dict[tuple[int, int, int], list[int]]] = {}
        self._stop = trio.Event()

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Publish and receive until the end; then wait for all publications.

        Raises:
            Fault: a publication is missing, duplicated or out of order.
        """
        async with contextlib.AsyncExitStack() as stack:
            publishers, subscribers = dict[str, Client](), dict[str, Client]()
            for home in HOMES:
                address = self._brokers.addresses[home]
                subscribers[home] = await stack.enter_async_context(connect(address, f"s-{home}"))
                publishers[home] = await stack.enter_async_context(
                    connect(address, f"p-{home}", publishes=True)
                )
                with trio.fail_after(PATIENCE_S):
                    await subscribers[home].subscribe(HONEST)
            async with trio.open_nursery() as nursery:
                for home in HOMES:
                    nursery.start_soon(self._receive, home, subscribers[home])
                if not self._is_owed_at_once:
                    await self._wait_for_routes(publishers)
                async with trio.open_nursery() as publishing:
                    for home in HOMES:
                        publishing.start_soon(self._publish, home, publishers[home])
                    yield
                    self._stop.set()
                with trio.move_on_after(PATIENCE_S):
                    for publisher in publishers.values():
                        await publisher.flush()
                    while self._wrong(_sources_of(publishers)):
                        await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
            wrong = self._wrong(_sources_of(publishers))
        if wrong:
            raise Fault("\n".join(wrong))

    async def _wait_for_routes(self, publishers: Mapping[str, Client]) -> None:
        """Publish until every subscriber has received a publication of every publisher."""
        with trio.fail_after(PATIENCE_S):
            while len(self._received) < len(HOMES) or any(
                len(received) < len(HOMES) for received in self._received.values()
            ):
                for home, publisher in publishers.items():
                    await self._publish_one(home, publisher)
                await trio.sleep(PUBLISH_EVERY_S)
        self._owed_after = dict(self._published)

    async def _publish_one(self, home: str, publisher: Client) -> None:
        self._published[home] += 1
        self._counts.published += 1
        await publisher.publish({"honest": True, "n": self._published[home]}, b"payload")

    async def _publish(self, home: str, publisher: Client) -> None:
        while not self._stop.is_set():
            await self._publish_one(home, publisher)
            with trio.move_on_after(PUBLISH_EVERY_S):
                await self._stop.wait()

    async def _receive(self, home: str, subscriber: Client) -> None:
        received = self._received[home] = {}
        while True:
            for item in await subscriber.receive():
                received.setdefault(item.run.source, []).extend(item.run.sequences)
                self._counts.deliveries += len(item.run)

    def _wrong(self, sources: dict[str, Any]) -> list[str]:
        found = []
        for at, received in self._received.items():
            for home, source in sources.items():
                after = self._owed_after[home]
                wanted = [*range(after + 1, self._published[home] + 1)]
                got = [each for each in received.get(source, []) if each > after]
                if got != wanted:
                    missing = sorted({*wanted}.difference(got))
                    found.append(
                        f"the subscriber at {at} received {len(got)} of {len(wanted)} publications"
                        f" of {home}; missing: {missing[:10]}"
                    )
        return found


def _sources_of(publishers: Mapping[str, Client]) -> dict[str, Any]:
    return {home: each.source for home, each in publishers.items()}


# ---------------------------------------------------------------- hostile clients


class Campaign:
    """Sessions of hostile clients, drawn from a seed.

    Args:
        journal: the record of all frames.

    Attributes:
        marks: the newest mark of the state of each home, from its own messages.
    """

    def __init__(
        self, protocol: str, seed: int, frames: int, brokers: Brokers, journal: TextIO
    ) -> None:
        self.counts = Counts()
        self.brokers = brokers
        self._seed = f"{protocol}/{seed}"
        self._wanted = frames
        self._journal = journal
        self._random = Random(self._seed)
        self._consumes = definition_of(protocol).promises.keeps_committed
        self._messages = [kind.type for kind in DEFINITIONS[protocol].messages]
        self._scripts: dict[tuple[str, str], ClientScript] = {}
        self._frames: deque[bytes] = deque(maxlen=_REPLAYED)
        self.marks: dict[str, StateMark] = {}

    async def run(self) -> None:
        """Open sessions until enough frames are written, or a broker has ended."""
        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(self._work)

    async def _work(self) -> None:
        while self.counts.frames < self._wanted and not self.brokers.ended():
            self.counts.sessions += 1
            number = self.counts.sessions
            session = HostileSession(self, number, Random(f"{self._seed}/{number}"))
            try:
                await session.run()
            except* (OSError, trio.BrokenResourceError):
                self.counts.refusals += 1

    def script_of(self, home: str, name: str) -> ClientScript:
        """Return the script of a client name at a broker; the script outlives sessions."""
        script = self._scripts.get((home, name))
        if script is None:
            script = self._scripts[home, name] = ClientScript(
                Random(f"{self._seed}/{home}/{name}"), publishes=True, consumes=self._consumes
            )
        return script

    def write_down(self, session: int, home: str, data: bytes) -> None:
        """Count a frame and record the frame in the journal; b"" marks the end of a session."""
        if data:
            self.counts.frames += 1
        self._journal.write(f"{session} {home} {data.hex()}\n")

    def own_message(self, random: Random) -> Any:
        """Return a message that brokers of this protocol exchange."""
        return message_of(random.choice(self._messages), random)

    def remember(self, frame: bytes) -> None:
        """Keep a frame for another session to send again."""
        self._frames.append(frame)

    def earlier(self, random: Random) -> bytes:
        """Return a frame of an earlier session."""
        return random.choice(self._frames) if self._frames else HEARTBEAT


class HostileSession:
    """One connection of a hostile client, from its Hello to its end."""

    def __init__(self, campaign: Campaign, number: int, random: Random) -> None:
        self._campaign = campaign
        self._number = number
        self._random = random
        self._home = random.choice(HOMES)
        self._name = random.choice(NAMES)
        self._is_over = False
        self._script = campaign.script_of(self._home, self._name)
        self._way = random.choices(
            ("legal", "changed", "typed", "replayed", "garbage", "deaf"), (60, 15, 12, 10, 3, 0.5)
        )[0]

    async def run(self) -> None:
        """Send Hello and further frames until the broker or the seed ends the session."""
        host, _, port = self._campaign.brokers.addresses[self._home].rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        async with stream, trio.open_nursery() as nursery:
            if self._way != "deaf":
                nursery.start_soon(self._read, stream)
            try:
                await (self._wait(stream) if self._way == "deaf" else self._say(stream))
            finally:
                self._campaign.write_down(self._number, self._home, b"")
                nursery.cancel_scope.cancel()

    async def _say(self, stream: trio.SocketStream) -> None:
        random = self._random
        self._script.begin()
        await self._write(stream, frame_of(self._hello()))
        if random.random() < 0.9:
            await trio.sleep(0.002)
        waited = 0
        for count in range(random.choice((3, 20, _LONGEST_SESSION))):
            if self._is_over:
                self._campaign.counts.refusals += 1
                return
            frame = self._next_frame()
            if frame is None:
                waited += 1
                if waited > _LONGEST_SESSION:
                    return
                await trio.sleep(0.001)
                continue
            await self._write(stream, frame)
            if random.random() < 0.3 or count % 16 == 15:
                await trio.sleep(0.001)

    async def _wait(self, stream: trio.SocketStream) -> None:
        """Subscribe to everything, read nothing, and send heartbeats until the broker evicts us."""
        ask_for = [Subscribe(number, EVERYTHING) for number in (1, 2)]
        leave = [Detach(drain=True, done_through=0)] if self._random.random() < 0.3 else []
        self._script.begin()
        await self._write(stream, frame_of(self._hello()))
        for message in (self._script.connect(), *ask_for):
            await trio.sleep(0.1)
            await self._write(stream, frame_of(message))
        for number in range(_DEAF_BEATS):
            await trio.sleep(_BEAT_S)
            if number == _DEAF_BEATS // 2 and leave:
                await self._write(stream, frame_of(leave[0]))
            await self._write(stream, HEARTBEAT)

    async def _write(self, stream: trio.SocketStream, frame: bytes) -> None:
        self._campaign.write_down(self._number, self._home, frame)
        with trio.move_on_after(_ANSWER_S) as waiting:
            await stream.send_all(frame)
        if waiting.cancelled_caught:
            self._is_over = True

    def _hello(self) -> Hello:
        random = self._random
        deployment = random.choice(("", DEPLOYMENT))
        hello = client_hello(self._name, deployment, 1, self._number, self._witnessed())
        if self._way in ("legal", "replayed") or random.random() < 0.9:
            return hello
        if random.random() < 0.5:  # no broker of this deployment: it has not its digest
            role = random.choice(("broker", "probe"))
            return Hello(
                WIRE_VERSION, "", DEPLOYMENT, "", role, "c2", 1, 1, self._number, 0, False, ()
            )
        made: Hello = message_of(Hello, random)
        return made

    def _witnessed(self) -> StateMark | None:
        """Return a mark of the broker as this client might have kept it, or a forged mark."""
        random, mark = self._random, self._campaign.marks.get(self._home)
        if mark is None or random.random() < 0.5:
            return None
        if self._way == "legal" or random.random() < 0.3:
            return mark
        forged: StateMark = message_of(StateMark, random)
        name = random.choice(StateMark._fields)
        return mark._replace(**{name: getattr(forged, name)})

    def _next_frame(self) -> bytes | None:
        random = self._random
        if self._way == "garbage":
            return garbage(random)
        if self._way == "replayed" and random.random() < 0.7:
            return self._campaign.earlier(random)
        if self._way == "typed" and random.random() < 0.02 and (mark := self._witnessed()):
            return frame_of(StateAdvanced(mark, mark))
        if self._way == "typed" and random.random() < 0.3:
            own = random.random() < 0.5
            return frame_of(self._campaign.own_message(random) if own else any_message(random))
        message = self._script.message()
        if message is None:
            return None
        frame = frame_of(message)
        self._campaign.remember(frame)
        if self._way == "changed" and random.random() < 0.1:
            return changed(frame, random)
        return frame

    async def _read(self, stream: trio.SocketStream) -> None:
        """Feed the script with the broker's messages until the stream closes."""
        decoder = FrameDecoder(1 << 24)
        try:
            while chunk := await stream.receive_some(1 << 16):
                decoder.feed(bytes(chunk))
                while (frame := decoder.next_frame()) is not None:
                    message = decode(*frame)
                    self._campaign.counts.hostile_deliveries += 1
                    self._script.heard(message)
                    if isinstance(message, Farewell):
                        self._is_over = True
                    elif isinstance(message, Hello) and message.state is not None:
                        self._campaign.marks[self._home] = message.state
                    elif isinstance(message, StateAdvanced):
                        self._campaign.marks[self._home] = message.mark
        except (trio.BrokenResourceError, RemoteProtocolError):
            pass
        self._is_over = True


async def replay(journal: Path, brokers: Brokers, counts: Counts) -> None:
    """Send the frames of a journal again, in order."""
    streams: dict[str, trio.SocketStream] = {}
    async with contextlib.AsyncExitStack() as stack:
        for line in journal.read_text().splitlines():
            session, home, text = line.split(" ")
            stream = streams.get(session)
            if stream is None:
                host, _, port = brokers.addresses[home].rpartition(":")
                stream = streams[session] = await trio.open_tcp_stream(host, int(port))
                stack.push_async_callback(stream.aclose)
                counts.sessions += 1
            if not text:
                await stream.aclose()
                continue
            counts.frames += 1
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await stream.send_all(bytes.fromhex(text))
            await trio.sleep(0.0005)


async def look_at_brokers(brokers: Brokers, counts: Counts) -> None:
    """Check that all brokers still run without a restart.

    Raises:
        Fault: a broker has ended, has restarted, or does not reply.
    """
    ended = brokers.ended()
    counts.ends = len(ended)
    if ended:
        raise Fault("\n".join(ended))
    for name in BROKERS:
        with trio.move_on_after(PATIENCE_S) as waiting:
            status = await brokers.status(name)
        if waiting.cancelled_caught:
            raise Fault(f"{name} does not answer")
        if status["incarnation"] != 1 or status["state"] != "running":
            raise Fault(f"{name}: incarnation {status['incarnation']}, {status['state']}")
    await brokers.wait_until_ready()


def _lost_links(folder: Path) -> Iterator[str]:
    """Yield the ends of sessions between brokers, from the brokers' own logs."""
    for name in BROKERS:
        for line in (folder / name / "log" / "events.jsonl").read_text().splitlines():
            found = json.loads(line)
            if found["event"] == "session_lost" and found["peer"] in BROKERS:
                yield f"{name}: the session with {found['peer']} ended: {found['reason']}"


def encode_every_kind() -> None:
    """Load the messages of all protocols, and make their encoders."""
    random = Random(0)
    for kind in all_kinds():
        frame_of(message_of(kind, random))


async def fuzz(
    protocol: str,
    seed: int,
    frames: int,
    folder: Path,
    journal: Path | None = None,
    **parameters: Any,
) -> Counts:
    """Run a campaign, or replay the journal of a campaign.

    Raises:
        Fault: a broker has ended or does not reply, or an honest client has lost a publication.
    """
    with running(protocol, folder, **parameters) as brokers, (folder / "journal").open("w") as log:
        await brokers.wait_until_ready()
        encode_every_kind()  # later, honest clients of this process would be silent meanwhile
        campaign = Campaign(protocol, seed, frames, brokers, log)
        counts = campaign.counts
        try:
            owed = definition_of(protocol).promises.exactly_once
            async with HonestClients(brokers, counts, is_owed_at_once=owed).beside():
                if journal is None:
                    await campaign.run()
                else:
                    await replay(journal, brokers, counts)
                await look_at_brokers(brokers, counts)
        except* (Fault, ClientError) as group:
            first: BaseException = group
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            ended = "\n".join([*brokers.ended(), *_lost_links(folder)])
            raise Fault(f"{first}\n{ended}\n{asdict(counts)}") from None
        await look_at_brokers(brokers, counts)
    return counts


def main() -> None:
    """Run campaigns and print the counts; exit with status 1 if a campaign fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sessions")
    parser.add_argument("--protocol", choices=[*DEFINITIONS], action="append")
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replicas", type=int, help="of gryphon and durable: disks of a state")
    parser.add_argument("--replay", type=Path, help="the journal of a campaign that failed")
    parser.add_argument("--folder", type=Path, help="where the brokers' files stay")
    given = parser.parse_args()
    failed = False
    for protocol in given.protocol or [*DEFINITIONS]:
        with contextlib.ExitStack() as stack:
            if given.folder is None:
                temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-"))
                folder = Path(temporary)
            else:
                folder = given.folder / protocol
                folder.mkdir(parents=True)
            told = f"{protocol}: seed {given.seed}"
            try:
                parameters = {} if given.replicas is None else {"replicas": given.replicas}
                campaign = partial(fuzz, **parameters)
                replayed = given.replay
                counts = trio.run(campaign, protocol, given.seed, given.frames, folder, replayed)
            except Fault as fault:
                failed = True
                kept = Path(f"fuzz-{protocol}-{given.seed}.journal").absolute()
                kept.write_bytes((folder / "journal").read_bytes())
                print(f"{told}: FAILED\n{fault}\nreplay: --replay {kept}", flush=True)  # noqa: T201
            else:
                print(f"{told}: {counts_in_words(counts)}", flush=True)  # noqa: T201
    sys.exit(int(failed))


def counts_in_words(counts: Counts) -> str:
    """Return the counts as a line of text."""
    return (
        f"{counts.frames:,} frames in {counts.sessions:,} sessions, {counts.refusals:,} refused; "
        f"{counts.ends} brokers ended; honest: {counts.published:,} published, "
        f"{counts.deliveries:,} delivered; hostile clients received {counts.hostile_deliveries:,}"
    )


if __name__ == "__main__":
    main()
