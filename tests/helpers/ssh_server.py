"""A real OpenSSH server on loopback, unprivileged, with separate keys and files."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.helpers.patience import PATIENCE_S

SSHD = next(
    (path for path in ("/usr/sbin/sshd", shutil.which("sshd") or "") if os.access(path, os.X_OK)),
    None,
)
NO_SSHD = "no sshd on this machine (Debian: openssh-server)"
PORTS = range(25_000, 25_100)


@dataclass
class KeyPair:
    """A key in a file, in the format of ssh-keygen.

    Attributes:
        private: the file; the public half is beside it as `.pub`.
        public: key type and base64, as in known_hosts and authorized_keys.
    """

    private: Path
    public: str


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> KeyPair:
    """Make a key pair in files."""
    if kind == "ed25519":
        key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
        key = ed25519.Ed25519PrivateKey.generate()
    elif kind == "ecdsa":
        key = ec.generate_private_key(ec.SECP256R1())
    else:
        key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        encryption = serialization.BestAvailableEncryption(passphrase.encode())
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, encryption
        )
    )
    path.chmod(0o600)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    path.with_name(f"{path.name}.pub").write_bytes(public + b" made for a test\n")
    return KeyPair(path, public.decode())


@dataclass
class Sshd:
    """A running server.

    Attributes:
        host_key: the presented key.
        log: the server's log, at level VERBOSE.
    """

    port: int
    host_key: KeyPair
    folder: Path
    process: subprocess.Popen[bytes]
    address: str = "127.0.0.1"
    children: list[int] = field(default_factory=list)

    @property
    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")

    @property
    def known_hosts_line(self) -> str:
        return f"[{self.address}]:{self.port} {self.host_key.public}\n"

    def login_attempts(self) -> list[str]:
        """Return the lines of the log that show login attempts."""
        words = ("Accepted", "Failed", "Postponed", "userauth", "Invalid user")
        return [line for line in self.log.splitlines() if any(word in line for word in words)]

    def session_pids(self) -> list[int]:
        """Return the processes of open connections."""
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, check=False
        )
        return [int(pid) for pid in found.stdout.split()]


@contextmanager
def running_sshd(
    folder: Path,
    *,
    authorized: Sequence[KeyPair],
    host_key: KeyPair | None = None,
    address: str = "127.0.0.1",
    lines: Sequence[str] = (),
) -> Iterator[Sshd]:
    """Start sshd; stop sshd and all sessions at the end."""
    assert SSHD is not None
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    host_key = host_key or make_key(folder / "host_key")
    keys = folder / "authorized_keys"
    keys.write_text("".join(f"{pair.public} test\n" for pair in authorized))
    keys.chmod(0o600)
    home = folder / "home"
    home.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    config = [
        *lines,  # sshd takes the first value it reads
        f"AddressFamily {'inet6' if ':' in address else 'inet'}",
        f"ListenAddress {address}",
        f"HostKey {host_key.private}",
        f"PidFile {folder}/sshd.pid",
        f"AuthorizedKeysFile {keys}",
        "LogLevel VERBOSE",
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "PrintMotd no",
        "Subsystem sftp internal-sftp",
        f"SetEnv HOME={home}",  # so that no profile of the user's is read
    ]
    server = _start_sshd(folder, config, host_key, address)
    try:
        yield server
    finally:
        for pid in server.session_pids():
            _kill(pid)
        server.process.kill()
        server.process.wait()


def _start_sshd(folder: Path, config: Sequence[str], host_key: KeyPair, address: str) -> Sshd:
    """Start sshd on the first port it can bind; parallel tests take ports, too."""
    assert SSHD is not None
    first = os.getpid() % len(PORTS)
    for port in (*PORTS[first:], *PORTS[:first]):
        (folder / "sshd_config").write_text("\n".join([f"Port {port}", *config]) + "\n")
        (folder / "sshd.log").write_text("")
        process = subprocess.Popen(
            [SSHD, "-D", "-f", folder / "sshd_config", "-E", folder / "sshd.log"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        server = Sshd(port, host_key, folder, process, address)
        if _listens(server):
            return server
    raise AssertionError(f"no port is free in {PORTS}")


def _listens(server: Sshd) -> bool:
    """Wait until sshd listens; return False if another process has the port."""
    deadline = time.monotonic() + PATIENCE_S
    while "Server listening" not in server.log:
        if server.process.poll() is not None:
            assert "Cannot bind" in server.log, f"sshd ended: {server.log}"
            return False
        assert time.monotonic() < deadline, f"sshd does not come up: {server.log}"
        time.sleep(0.01)
    return True


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass
