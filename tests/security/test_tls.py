"""Tests of mutual TLS on links: admission, identity and refusals (S-TLS-1 to S-TLS-4).

All assertions are on the first exchange, never on a client's handshake: in TLS 1.3 the handshake
finishes before the server has checked the client's certificate.
"""

import contextlib
import hashlib
import os
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from brokerd.client.client import ClientError, connect
from brokerd.config import TlsFiles
from brokerd.errors import ConfigError
from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.messages import PublicationCopy, RecoveryFlag
from brokerd.protocols.interface import OpenFailed, SessionEstablished, SessionLost
from brokerd.runtime.tls import HANDSHAKE_LIMIT_BYTES, TlsCredentials, TlsError, TlsStream
from brokerd.sessions.messages import Farewell, Heartbeat, Hello, Identity
from brokerd.sessions.session import client_hello
from brokerd.wire.codec import encode
from tests.helpers.certificates import Certificates
from tests.helpers.memory_broker import MemoryBroker, chain
from tests.helpers.memory_links import (
    LinkedBroker,
    MemoryNet,
    OneBroker,
    join_brokers,
    nursery_of_the_test,
    one_broker,
    securely,
)
from tests.helpers.raw_peer import all_that_comes, answer, broker_hello, say
from tests.helpers.virtual_time import in_virtual_time

YES = RecoveryFlag(True)
PATIENCE_S = 6.0


@pytest.fixture
def lab(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def secured(net: MemoryNet, lab: Certificates, number: int, **options: Any) -> LinkedBroker:
    return LinkedBroker(net, number, credentials=lab.credentials("broker", f"b{number}"), **options)


def secured_broker(lab: Certificates) -> OneBroker:
    """Return a running broker b0 with a certificate."""
    return one_broker(lab.credentials("broker", "b0"))


async def answer_to(
    net: MemoryNet, credentials: TlsCredentials, *messages: Any, at: str = "b0"
) -> Any:
    """Return a broker's reply to a peer with this certificate; None if the broker closes."""
    stream = await credentials.dial(await net.dial(at))
    async with stream:
        await say(stream, *messages)
        return await answer(stream)


# ---------------------------------------------------------------- members


@in_virtual_time
async def test_two_brokers_with_certificates_exchange_megabytes(lab: Certificates) -> None:
    net = MemoryNet()
    b0, b1 = secured(net, lab, 0), secured(net, lab, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        source = SourceId(0, 0, 1)
        for first in range(1, 9):
            payload = bytes([first]) * 900_000
            run = PublicationRun(
                source, range(first, first + 1), (b"a",), b"\0", 900_000, (payload,)
            )
            b0.send(1, PublicationCopy(run, (0, 1)))
        b1.send(0, YES)
        await trio.sleep(60)
        assert b1.sequences(0) == list(range(1, 9))
        assert [b"".join(m.run.payload)[-1:] for m in b1.messages(0)] == [
            bytes([first]) for first in range(1, 9)
        ]
        assert b0.messages(1) == [YES]
        assert b0.of(SessionLost) == b1.of(SessionLost) == []


@in_virtual_time
async def test_clients_with_certificates_publish_and_receive(lab: Certificates) -> None:
    net = MemoryNet()
    topology = chain(2)
    brokers = [
        MemoryBroker(net, topology, name, credentials=lab.credentials("broker", name))
        for name in topology.brokers
    ]
    mine = securely(net.dial, lab.credentials("client", "publisher"))
    run = securely(net.dial, lab.credentials("load", "r1"))
    async with nursery_of_the_test() as nursery:
        for broker in brokers:
            await nursery.start(broker.run)
        async with (
            connect("b0", "publisher", publishes=True, deployment_id="d", dial=mine) as publisher,
            connect("b1", "s7.r1", deployment_id="d", dial=run) as subscriber,
        ):
            await subscriber.subscribe("true")
            await publisher.publish({"a": 1}, b"payload")
            assert (await anext(subscriber.publications())).payload == b"payload"


def test_an_identity_has_one_spelling() -> None:
    for identity in (
        Identity("d", "broker", "b1"),
        Identity("2026-x", "client", "Ann/Bob: 100 % ünïcode"),
        Identity("a:b", "load", "r1"),
    ):
        assert Identity.from_uri(identity.uri) == identity
    for other in (
        "urn:pubsub:d:broker/b1/",
        "urn:pubsub:d:broker/",
        "urn:pubsub::broker/b1",
        "urn:pubsub:d:agent/b1",
        "urn:pubsub:d:broker/b%31",
        "urn:pubsub:d:client/a/../b",
        "https://d/broker/b1",
        "",
    ):
        with pytest.raises(ValueError, match="names no member"):
            Identity.from_uri(other)


# ---------------------------------------------------------------- S-TLS-1: peers without access


def _without_certificate(lab: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(lab.files("client", "c").authority)
    return context


def _with(files: TlsFiles, **settings: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(files.authority)
    context.load_cert_chain(files.certificate, files.key)
    for name, value in settings.items():
        setattr(context, name, value)
    return context


@pytest.mark.parametrize(
    "who", ["no certificate", "rogue authority", "expired", "not valid yet", "TLS 1.2"]
)
@in_virtual_time
async def test_a_peer_without_a_valid_certificate_receives_no_answer(
    lab: Certificates, tmp_path: Path, who: str
) -> None:
    rogue = Certificates(tmp_path, "rogue")
    contexts = {
        "no certificate": lambda: _without_certificate(lab),
        "rogue authority": lambda: _with(rogue.files("client", "c", trust=lab)),
        "expired": lambda: _with(lab.files("client", "c", days_ago=30.1)),
        "not valid yet": lambda: _with(lab.files("client", "c", days_ago=-1.1)),
        "TLS 1.2": lambda: _with(lab.files("client", "c"), maximum_version=ssl.TLSVersion.TLSv1_2),
    }
    net = MemoryNet()
    b0, b1 = secured(net, lab, 0), secured(net, lab, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        stream = TlsStream(await net.dial("b0"), contexts[who](), server_side=False)
        answer = b""
        with contextlib.suppress(TlsError, trio.BrokenResourceError):
            stream._read_identity = lambda: Identity("d", "broker", "b0")  # type: ignore[method-assign]
            await stream.handshake()
            await say(stream, client_hello("c", "d", 1, 1))
            answer = await all_that_comes(stream)
        assert answer == b""
        await trio.sleep(1)
        assert len(b0.of(SessionEstablished)) == 1, "only the other broker's"
        assert b0.links.counters["connections_refused"] == 1
        assert [event for event, _ in b0.records].count("stranger_refused") == 1
        b0.send(1, YES)
        await trio.sleep(1)
        assert b1.messages(0) == [YES]


@pytest.mark.parametrize("days_ago", [29.9, -0.9])
@in_virtual_time
async def test_a_certificate_is_good_before_its_end_and_a_day_before_its_making(
    tmp_path: Path, days_ago: float
) -> None:
    """Clocks lag by up to a day, such as with a wrong time zone."""
    lab = Certificates(tmp_path)
    async with secured_broker(lab) as (net, _, _):
        good = TlsCredentials(lab.files("client", "c", days_ago=days_ago))
        good.check("client", "c", "d")
        assert isinstance(await answer_to(net, good, client_hello("c", "d", 1, 1)), Hello)


@in_virtual_time
async def test_plaintext_gets_no_answer_where_there_are_certificates(lab: Certificates) -> None:
    async with secured_broker(lab) as (net, b0, _):
        stream = await net.dial("b0")
        await say(stream, client_hello("c", "d", 1, 1))
        answer = await all_that_comes(stream)
        assert b"b0" not in answer
        assert answer[:1] in (b"", b"\x15"), "nothing, or a TLS alert"
        assert b0.of(SessionEstablished) == []


@in_virtual_time
async def test_a_client_that_was_attached_waits_for_a_renewed_certificate(tmp_path: Path) -> None:
    lab, rogue = Certificates(tmp_path), Certificates(tmp_path, "rogue")
    credentials = [lab.credentials("client", "c")]

    async def dial(address: str) -> trio.abc.Stream:
        return await credentials[-1].dial(await net.dial(address))

    net, topology = MemoryNet(), chain(2)
    broker = MemoryBroker(net, topology, "b0", credentials=lab.credentials("broker", "b0"))
    refused = TlsCredentials(rogue.files("client", "c", trust=lab))
    async with connect("b0", "c", deployment_id="d", dial=dial) as client:
        async with nursery_of_the_test() as nursery:
            await nursery.start(broker.run)
            await client.wait_attached()
            nursery.cancel_scope.cancel()
        credentials.append(refused)
        async with nursery_of_the_test() as nursery:
            await nursery.start(broker.run)
            await trio.sleep(20)
            assert not client.attached
            credentials.append(credentials[0])
            await client.wait_attached()
            nursery.cancel_scope.cancel()


@in_virtual_time
async def test_a_refused_certificate_leads_to_the_next_broker(
    lab: Certificates, tmp_path: Path
) -> None:
    rogue, net, topology = Certificates(tmp_path, "rogue"), MemoryNet(), chain(2)
    authorities = {"b0": rogue, "b1": lab}
    async with nursery_of_the_test() as nursery:
        for name, authority in authorities.items():
            credentials = authority.credentials("broker", name)
            await nursery.start(MemoryBroker(net, topology, name, credentials=credentials).run)
        dial = securely(net.dial, lab.credentials("client", "c"))
        async with connect(["b0", "b1"], "c", deployment_id="d", dial=dial) as client:
            await client.wait_attached()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("address", ["192.0.2.1:7000", "b1.example:7000", "[2001:db8::1]:7000"])
def test_nothing_is_dialled_off_loopback_without_certificates(address: str) -> None:
    async def story() -> None:
        with trio.fail_after(60):
            async with connect(address, "c") as client:
                await client.wait_attached()

    with pytest.raises(Exception, match="it takes certificates") as caught:
        trio.run(story)
    assert type(caught.value).__name__ == "ClientError"


MakeFiles = Callable[[Certificates, Path], TlsFiles]


def _in_shared_folder(lab: Certificates, folder: Path) -> TlsFiles:
    files = lab.files("broker", "b0")
    shared = folder / "shared"
    shared.mkdir()
    copy = shared / "b0.key"
    Path(files.key).rename(copy)
    shared.chmod(0o777)
    (folder / "link.key").symlink_to(copy)
    return replace(files, key=str(folder / "link.key"))


def _with_mode(lab: Certificates, which: str, mode: int) -> TlsFiles:
    files = lab.files("broker", "b0")
    Path(getattr(files, which)).chmod(mode)
    return files


def _damage(which: str, share: float) -> MakeFiles:
    """Return a function that keeps a share of a file; the file is removed for a negative share."""

    def make(lab: Certificates, _: Path) -> TlsFiles:
        files = lab.files("broker", "b0")
        path = Path(getattr(files, which))
        content = path.read_bytes()
        if share < 0:
            path.unlink()
        else:
            path.write_bytes(content[: int(len(content) * share)])
        return files

    return make


UNUSABLE_FILES: dict[str, tuple[MakeFiles, str]] = {
    "key of mode 0644": (lambda lab, _: _with_mode(lab, "key", 0o644), r"key = .*0600"),
    "key of mode 0640": (lambda lab, _: _with_mode(lab, "key", 0o640), r"key = .*0600"),
    "authority of mode 0666": (
        lambda lab, _: _with_mode(lab, "authority", 0o666),
        r"authority = .* can be changed by others",
    ),
    "key in a folder of others": (_in_shared_folder, r"key = .*shared has mode 0777"),
    **{
        f"{how} {which}": (_damage(which, share), rf"tls: {which} = .*{words}")
        for which in ("authority", "certificate", "key")
        for how, share, words in (
            ("empty", 0.0, "in PEM, or cut short; write"),
            ("truncated", 0.5, "in PEM, or cut short; write"),
            ("missing", -1, "No such file"),
        )
    },
    "key of another certificate": (
        lambda lab, _: replace(lab.files("broker", "b0"), key=lab.files("broker", "b1").key),
        r"tls: key = .*broker-b1.*not the key of certificate = .*broker-b0",
    ),
    "certificate of another broker": (
        lambda lab, _: lab.files("broker", "b1"),
        "not of broker 'b0'",
    ),
    "certificate of a client": (lambda lab, _: lab.files("client", "b0"), "that of client 'b0'"),
    "certificate of another deployment": (
        lambda lab, _: lab.files("broker", "b0", deployment="last-week"),
        "deployment 'last-week', not of broker 'b0' of deployment 'd'",
    ),
    "certificate of another authority": (
        lambda lab, path: lab.files("broker", "b0", trust=Certificates(path, "elsewhere")),
        r"certificate = .*another authority issued it \(authority = ",
    ),
    "expired certificate": (lambda lab, _: lab.files("broker", "b0", days_ago=30.1), "has expired"),
    "certificate of tomorrow": (
        lambda lab, _: lab.files("broker", "b0", days_ago=-1.1),
        "not valid yet",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE_FILES)
def test_a_broker_refuses_unusable_files_by_name(tmp_path: Path, case: str) -> None:
    make, words = UNUSABLE_FILES[case]
    files = make(Certificates(tmp_path), tmp_path)
    with pytest.raises(ConfigError, match=words):
        TlsCredentials(files).check("broker", "b0", "d")


def test_a_file_of_another_user_is_refused_except_of_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Certificates(tmp_path).files("broker", "b0")
    TlsCredentials(files)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    if os.getuid() == 0:
        TlsCredentials(files)
        os.chown(files.authority, 2, -1)
    with pytest.raises(ConfigError, match=r"authority = .* belongs to another user"):
        TlsCredentials(files)


KEYS: dict[str, tuple[Callable[[], Any], str]] = {
    "weak": (lambda: rsa.generate_private_key(65_537, 1_024), "tls: key = .*: ee key too small; "),
    "without a signature of TLS 1.3": (
        lambda: ec.generate_private_key(ec.SECP256K1()),
        "tls: certificate = .*: no handshake of TLS 1.3 is possible with its key: ",
    ),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_of_an_unusable_kind_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A broker that loads such files while it runs must not end."""
    make, words = KEYS[kind]
    key, lab = make(), Certificates(tmp_path)
    credentials = lab.credentials("broker", "b0")
    monkeypatch.setattr("pubsubctl.deployment.authority.ec.generate_private_key", lambda _: key)
    files = lab.files("broker", "b1")
    with pytest.raises(ConfigError, match=words):
        TlsCredentials(files).check("broker", "b1", "d")
    credentials._files = files
    with pytest.raises(ConfigError, match=words):
        credentials.reload()


def test_a_client_refuses_the_certificate_of_another_name(tmp_path: Path) -> None:
    files = Certificates(tmp_path).files("client", "c1")

    async def story() -> None:
        async with connect("127.0.0.1:1", "c2", tls=files):
            pass

    with pytest.raises(ConfigError, match=r"that of client 'c1'.*not of client 'c2'"):
        trio.run(story)


def test_a_process_keeps_its_files_until_new_files_fit_together(tmp_path: Path) -> None:
    """A replaced authority is loaded with a certificate of that authority, not before."""
    files = Certificates(tmp_path).files("broker", "b0")
    later = Certificates(tmp_path, "later").files("broker", "b0")
    credentials = TlsCredentials(files)
    for name in ("authority", "certificate", "key"):
        Path(getattr(files, name)).write_bytes(Path(getattr(later, name)).read_bytes())
        if name != "key":
            with pytest.raises(ConfigError, match="tls: "):
                credentials.reload()
            credentials.check("broker", "b0", "d")
    credentials.check("broker", "b0", "d")
    assert credentials.reload() == TlsCredentials(later).reload()


# ---------------------------------------------------------------- S-TLS-2: false identities


@pytest.mark.parametrize(
    "certified, hello",
    [
        (("client", "subscriber-7"), broker_hello()),
        (("load", "b1"), broker_hello()),
        (("broker", "b2"), broker_hello()),
        (("broker", "b1"), client_hello("b1", "d", 1, 1)),
        (("client", "c1"), client_hello("c2", "d", 1, 1)),
        (("load", "r1"), client_hello("s1.r2", "d", 1, 1)),
        (("load", "r1"), client_hello("r1", "d", 1, 1)),
    ],
)
@in_virtual_time
async def test_a_member_that_speaks_as_another_is_refused(
    lab: Certificates, certified: tuple[Any, str], hello: Hello
) -> None:
    async with secured_broker(lab) as (net, b0, _):
        answer = await answer_to(net, lab.credentials(*certified), hello)
        assert isinstance(answer, Farewell)
        assert answer.kind == "refused"
        assert "the certificate is that of" in answer.reason
        assert b0.of(SessionEstablished) == []


@in_virtual_time
async def test_a_member_of_another_deployment_is_refused(lab: Certificates) -> None:
    async with secured_broker(lab) as (net, _, _):
        other = TlsCredentials(lab.files("broker", "b1", deployment="last-week"))
        answer = await answer_to(net, other, broker_hello())
        assert isinstance(answer, Farewell)
        assert "last-week" in answer.reason


@in_virtual_time
async def test_a_client_that_sends_a_broker_message_is_disconnected(lab: Certificates) -> None:
    net = MemoryNet()
    topology = chain(2)
    broker = MemoryBroker(net, topology, "b0", credentials=lab.credentials("broker", "b0"))
    async with nursery_of_the_test() as nursery:
        await nursery.start(broker.run)
        stream = await lab.credentials("client", "c").dial(await net.dial("b0"))
        await say(stream, client_hello("c", "d", 1, 1), YES)
        await all_that_comes(stream)
        assert [details["reason"] for event, details in broker.records if event == "protocol_error"]
        assert broker.links.session_peers() == []


@pytest.mark.parametrize("who", [("broker", "b2"), ("client", "b1"), ("load", "b1")])
@in_virtual_time
async def test_a_broker_sends_no_hello_to_another_peer_than_it_dialled(
    lab: Certificates, who: tuple[Any, str]
) -> None:
    """A peer at b1's address presents another certificate: the broker sends no Hello and closes."""
    files = lab.files(*who)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_verify_locations(files.authority)
    server.load_cert_chain(files.certificate, files.key)
    heard: list[bytes] = []

    async def pretend(listener: Any) -> None:
        while True:
            stream = TlsStream(await listener.accept(), server, server_side=True)
            stream._read_identity = lambda: Identity("d", "broker", "b0")  # type: ignore[method-assign]
            try:
                await stream.handshake()
                heard.append(await all_that_comes(stream))
            except (TlsError, trio.BrokenResourceError):
                heard.append(b"")

    async with secured_broker(lab) as (net, b0, nursery):
        nursery.start_soon(pretend, net.listen("b1"))
        b0.links.open(1)
        failed = await b0.wait_for(OpenFailed)
        assert "certificate" in failed.reason
        assert "certificate" in b0.links.obstacles[1]  # `status` shows it
        assert "certificate" in str(await b0.links.probe(1))
        await trio.sleep(1)
        assert heard == [b"", b""], "both attempts were closed without a word"


REFUSALS = {
    "authority of the broker": "certificate is not accepted: another authority issued it",
    "authority of the client": "does not accept our certificate: another authority issued it",
    "expired": "does not accept our certificate: it has expired, or the clocks differ",
    "not valid yet": "does not accept our certificate: it is damaged, or is not valid yet",
    "deployment": "b0: it is broker 'b0' of deployment 'last-week', not of deployment d",
    "role": "certificate is not accepted: unsuitable certificate purpose",
}


@pytest.mark.parametrize("case", REFUSALS)
@in_virtual_time
async def test_a_client_ends_at_once_if_a_certificate_is_refused(tmp_path: Path, case: str) -> None:
    """Another attempt would end in the same way."""
    lab, other = Certificates(tmp_path), Certificates(tmp_path, "elsewhere")
    broker = {
        "authority of the broker": lambda: other.files("broker", "b0"),
        "deployment": lambda: lab.files("broker", "b0", deployment="last-week"),
        "role": lambda: lab.files("client", "b0"),
    }.get(case, lambda: lab.files("broker", "b0"))
    own = {
        "authority of the client": lambda: other.files("client", "c", trust=lab),
        "expired": lambda: lab.files("client", "c", days_ago=30.1),
        "not valid yet": lambda: lab.files("client", "c", days_ago=-1.1),
    }.get(case, lambda: lab.files("client", "c"))
    async with one_broker(TlsCredentials(broker())) as (net, b0, _):
        dial = securely(net.dial, TlsCredentials(own()))
        async with connect("b0", "c", dial=dial, deployment_id="d") as client:
            with pytest.raises(ClientError, match=REFUSALS[case]):
                await client.subscribe("true")
        assert trio.current_time() < 1
        assert b0.of(SessionEstablished) == []


# ---------------------------------------------------------------- S-TLS-3: unfinished handshakes


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@in_virtual_time
async def test_a_stalled_handshake_is_aborted_after_five_seconds(
    lab: Certificates, share: float
) -> None:
    async with secured_broker(lab) as (net, b0, _):
        stream = await net.dial("b0")
        context = _with(lab.files("client", "c"))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        records = context.wrap_bio(incoming, outgoing)
        with contextlib.suppress(ssl.SSLWantReadError):
            records.do_handshake()
        beginning = outgoing.read()
        await stream.send_all(beginning[: int(len(beginning) * share)])
        await all_that_comes(stream)
        assert 4 < trio.current_time() < PATIENCE_S
        await trio.sleep(0.1)
        assert b0.links.counters["connections_refused"] == 1


@in_virtual_time
async def test_a_handshake_that_never_ends_is_cut_off_by_its_size(lab: Certificates) -> None:
    async with secured_broker(lab) as (net, b0, _):
        stream = await net.dial("b0")
        # The start of a ClientHello with a very large length.
        await stream.send_all(b"\x16\x03\x01\x40\x00\x01\x01\xf0\x00" + bytes(30_000))
        await all_that_comes(stream)
        await trio.sleep(0.1)
        assert trio.current_time() < 1
        (reason,) = [d["reason"] for event, d in b0.records if event == "stranger_refused"]
        assert str(HANDSHAKE_LIMIT_BYTES) in reason or "length" in reason


@in_virtual_time
async def test_an_end_that_rejects_a_certificate_closes_the_connection(
    lab: Certificates, tmp_path: Path
) -> None:
    """A failed client that stays would leave the server waiting for ever."""
    rogue = Certificates(tmp_path, "rogue")
    credentials = TlsCredentials(rogue.files("broker", "b0", trust=lab))
    async with one_broker(credentials) as (net, b0, _):
        transport = await net.dial("b0")
        with pytest.raises(TlsError, match="certificate is not accepted"):
            await lab.credentials("client", "c").dial(transport)
        with pytest.raises(trio.ClosedResourceError):
            await transport.receive_some(1)
        await trio.sleep(0.1)
        assert b0.links.counters["connections_refused"] == 1
        assert trio.current_time() < 1


@in_virtual_time
async def test_a_dial_to_a_silent_server_fails_in_time(lab: Certificates) -> None:
    async with secured_broker(lab) as (net, b0, _):
        net.listen("b1")
        b0.links.open(1)
        assert "no answer in time" in (await b0.wait_for(OpenFailed)).reason
        assert trio.current_time() < PATIENCE_S


# ---------------------------------------------------------------- S-TLS-4: new certificates


@in_virtual_time
async def test_a_certificate_is_renewed_while_sessions_continue(lab: Certificates) -> None:
    net = MemoryNet()
    files = lab.files("broker", "b0", days_ago=29.9)
    fresh = lab.files("broker", "b0")
    credentials = TlsCredentials(files)
    b0 = LinkedBroker(net, 0, credentials=credentials)
    b1 = secured(net, lab, 1)

    async def shown() -> str:
        stream = await lab.credentials("client", "c").dial(await net.dial("b0"))
        der = stream._records.getpeercert(binary_form=True)
        assert der is not None
        return hashlib.sha256(der).hexdigest()

    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        before = await shown()
        Path(files.certificate).write_bytes(Path(fresh.certificate).read_bytes())
        with pytest.raises(ConfigError):
            credentials.reload()
        assert await shown() == before, "without its key it is not taken"
        Path(files.key).write_bytes(Path(fresh.key).read_bytes())
        assert credentials.reload() == await shown() != before
        b0.send(1, YES)
        await trio.sleep(1)
        assert b1.messages(0) == [YES]
        assert b1.of(SessionLost) == []


# ---------------------------------------------------------------- data in flight


@in_virtual_time
async def test_a_client_that_trickles_a_record_is_cut_off(lab: Certificates) -> None:
    async with secured_broker(lab) as (net, b0, nursery):
        stream = await lab.credentials("client", "slow").dial(await net.dial("b0"))
        await say(stream, client_hello("slow", "d", 1, 1))
        await b0.wait_for(SessionEstablished)
        nursery.start_soon(all_that_comes, stream.transport)
        record = stream.encrypt(b"".join(encode(Heartbeat())) * 100)
        with contextlib.suppress(trio.BrokenResourceError):
            for byte in record:
                await stream.transport.send_all(bytes([byte]))
                await trio.sleep(0.2)
        lost = await b0.wait_for(SessionLost)
        assert lost.reason == "protocol_error"
        assert trio.current_time() < 13


@in_virtual_time
async def test_one_changed_byte_ends_the_session_and_is_not_delivered(lab: Certificates) -> None:
    async with secured_broker(lab) as (net, b0, _):
        stream = await lab.credentials("client", "c").dial(await net.dial("b0"))
        await say(stream, client_hello("c", "d", 1, 1), YES)
        await b0.wait_for(SessionEstablished)
        record = bytearray(stream.encrypt(b"".join(encode(RecoveryFlag(False)))))
        record[-3] ^= 1
        await stream.transport.send_all(bytes(record))
        lost = await b0.wait_for(SessionLost)
        assert lost.reason == "protocol_error"
        assert b0.messages("c") == [YES]


class Recorder(trio.abc.Stream):
    """A stream that records writes."""

    def __init__(self, inner: trio.abc.Stream) -> None:
        self.written = b""
        self._inner = inner

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._inner.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._inner.aclose()


@in_virtual_time
async def test_a_recorded_session_that_is_played_again_gets_no_answer(lab: Certificates) -> None:
    """S-WIRE-1: the rule matters between machines, where sessions can be recorded."""
    async with secured_broker(lab) as (net, b0, _):
        recorder = Recorder(await net.dial("b0"))
        stream = await lab.credentials("broker", "b1").dial(recorder)
        await say(stream, broker_hello(), YES)
        await b0.wait_for(SessionEstablished)
        await stream.aclose()
        await b0.wait_for(SessionLost)
        replay = await net.dial("b0")
        with contextlib.suppress(trio.BrokenResourceError):
            await replay.send_all(recorder.written)
        await all_that_comes(replay)
        await trio.sleep(PATIENCE_S)
        assert len(b0.of(SessionEstablished)) == 1
        assert b0.messages(1) == [YES]
