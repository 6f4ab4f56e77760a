"""Stories about a deployment with certificates: the view from outside, and leftovers.

S-INV-4, S-PERM-1, S-TLS-1 and S-TLS-4 on real processes; tests/security tests the single rules.
"""

import json
import shutil
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import trio

from brokerd.client.client import connect
from brokerd.config import TlsFiles
from pubsubctl.deployment.authority import Authority
from tests.end_to_end.conftest import Lab
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import OWN_PORTS

pytestmark = pytest.mark.end_to_end

INVENTORY = f"""\
schema = "pubsubctl/inventory/1"
name = "e2e"
transport = "tls"
[[hosts]]
name = "e[1:2]"
connector = "local"
groups = ["brokers", "clients"]
[hosts.vars]
ports = "{OWN_PORTS[0]}-{OWN_PORTS[-1]}"
"""

WORKLOAD = """\
schema = "pubsubctl/workload/1"
name = "secured"
topology = "chain3"
protocol = "delta_tree"
seed = 9
[phases]
warmup = "500ms"
measure = "4s"
drain = "120s"
[thresholds]
"loadgen.lateness_p99" = "< 60s"
[attributes]
symbol = { choose = 5 }
[[publishers]]
at = "c1"
rate = "100/s"
[[subscribers]]
at = "c3"
filter = "true"
"""

SCHEDULE = """\
schema = "pubsubctl/faults/1"
name = "cut"
[[step]]
id = "cut"
at = "1s"
do = "cut"
on = "c1-c2"
for = "1s"
"""

TOKEN = "canary-5b1f0c7e-token"


@pytest.fixture
def secured(lab: Lab) -> Lab:
    """Return a lab with certificates of brokers and clients, and a token in its environment."""
    project = lab.folder / "project"
    (project / "inventories" / "local.toml").write_text(INVENTORY)
    (project / "secured.toml").write_text(WORKLOAD)
    (project / "cut.toml").write_text(SCHEDULE)
    lab.environment["PUBSUBCTL_TEST_TOKEN"] = TOKEN
    return lab


def keys_below(folder: Path) -> set[str]:
    """Return a line of the body of each private key below a folder, before its public part."""
    keys = [path.read_text().splitlines() for path in folder.rglob("*.key")]
    return {lines[min(2, len(lines) - 2)] for lines in keys}


@contextmanager
def command_lines() -> Iterator[set[str]]:
    """Yield all command lines on this machine while the block runs."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            for process in psutil.process_iter(["cmdline"]):
                seen.add(" ".join(process.info["cmdline"] or []))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def files_with(secrets: set[str], *folders: Path) -> list[str]:
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix != ".key":
                content = path.read_bytes()
                found += [str(path) for secret in secrets if secret.encode() in content]
    return found


async def publish_to_oneself(address: str, files: TlsFiles) -> None:
    """Publish and subscribe as a user's program does."""
    with trio.fail_after(PATIENCE_S):
        async with connect(address, "me", publishes=True, tls=files) as client:
            await client.subscribe("true")
            await client.publish({"a": 1}, b"mine")
            assert (await anext(client.publications())).payload == b"mine"


def test_a_secured_deployment_reveals_no_secrets(secured: Lab) -> None:
    state = secured.folder / "state"
    printed: list[str] = []

    def call(*arguments: str) -> str:
        answer = secured.call(*arguments)
        assert answer.status == 0, answer.err
        printed.extend((answer.out, answer.err))
        return answer.out

    with command_lines() as seen:
        call("deploy", "chain3")
        call("bench", "secured.toml", "--faults", "cut.toml", "--no-check", "-vv")
        issued = json.loads(call("certificate", "me", "-o", str(secured.folder / "mine"), "--json"))
        mine = TlsFiles(issued["authority"], issued["certificate"], issued["key"])
        before = json.loads(call("status", "--json"))
        call("certificate", "renew")
        after = json.loads(call("status", "--json"))
        pids = [[row["pid"] for row in told["brokers"]] for told in (before, after)]
        assert pids[0] == pids[1]
        assert [sorted(row["ready"]) for row in after["brokers"]] == [
            sorted(row["ready"]) for row in before["brokers"]
        ]
        call("inject", "cut", "c1-c2", "--for", "500ms", "-vv")
        (authority,) = state.rglob("authority.key")
        secrets = keys_below(state) | keys_below(secured.folder / "mine") | {TOKEN}
        whose = "the authority, the operator, three brokers, the load, me; and the token"
        assert len(secrets) == 8, whose

        # What is on the hosts is for one user alone, and the authority's key is not there.
        roots = [secured.state / host for host in ("e1", "e2")]
        for folder in (*roots, secured.folder / "run"):
            for path in folder.rglob("*"):
                mode = stat.S_IMODE(path.lstat().st_mode)
                assert path.is_symlink() or mode & 0o077 == 0, f"{path} has mode {mode:o}"
        assert stat.S_IMODE(authority.stat().st_mode) == 0o600
        kept = keys_below(authority.parent)
        assert len(kept) == 2, "of the authority and of the operator"
        assert files_with(kept, *roots) == []
        on_hosts = [path.read_text() for root in roots for path in root.rglob("*.key")]
        assert not [line for line in kept for text in on_hosts if line in text]

        # No port is open beyond this machine, and a peer without TLS receives no reply.
        listening = [
            row.laddr
            for process in secured.processes()
            for row in process.net_connections("tcp")
            if row.status == psutil.CONN_LISTEN
        ]
        assert {address.ip for address in listening} == {"127.0.0.1"}
        assert {address.port for address in listening} <= set(OWN_PORTS)
        with socket.create_connection(listening[0], timeout=PATIENCE_S) as plain:
            plain.sendall(b"\0\0\0\x10\0\0\0\x0cnot a record")
            try:
                answer = plain.recv(1_000)
            except ConnectionResetError:
                answer = b""
            assert answer[:1] in (b"", b"\x15"), "nothing, or a TLS alert"
        trio.run(
            publish_to_oneself, f"127.0.0.1:{min(listening, key=lambda row: row.port).port}", mine
        )
        call("down", "--verify")

    (run,) = (secured.folder / "results" / "secured").glob("2*")
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["state"], manifest["transport"]) == ("complete", "mutual TLS 1.3")
    assert files_with(secrets, secured.folder / "results", state) == []
    assert not [text for text in (*printed, *seen) for secret in secrets if secret in text]
    assert not list(state.rglob("tls/*"))


@pytest.mark.sampled
def test_a_foreign_operator_home_cannot_change_a_running_deployment(secured: Lab) -> None:
    deployed = secured.call("deploy", "chain3")
    assert deployed.status == 0, deployed.err
    record = json.loads(next(secured.state.glob("*/deployment.json")).read_text())
    certificates = {path: path.read_bytes() for path in secured.state.rglob("tls/*")}
    authorities = secured.state.parent / "authorities"
    ours = authorities / "e2e"
    away = ours.rename(secured.folder / "away")

    for is_there, holds in ((False, "no authority"), (True, "another authority")):
        if is_there:
            Authority.of(ours)
        for command in (
            ("certificate", "renew"),
            ("certificate", "me", "-o", str(secured.folder / "mine")),
            ("bench", "secured.toml", "--no-check"),
            ("deploy", "chain3"),
            ("inject", "--selftest"),
        ):
            refused = secured.call(*command)
            assert refused.status == 4, command
            assert f"deployed by {record['who']}, since {record['since']}" in refused.err
            assert f"{ours} holds {holds}" in refused.err
        assert ours.exists() == is_there
    assert not (secured.folder / "mine").exists()
    assert {path: path.read_bytes() for path in secured.state.rglob("tls/*")} == certificates

    shutil.rmtree(ours)
    away.rename(ours)
    renewed = secured.call("certificate", "renew")
    assert renewed.status == 0, renewed.err
    down = secured.call("down", "--verify")
    assert down.status == 0, down.err
