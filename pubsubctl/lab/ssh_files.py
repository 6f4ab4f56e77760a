"""The files of a lab: keys, each server's configuration, host keys, inventory."""

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from pubsubctl.lab.spec import PORT, USER, LabSpec, Machine

INVENTORY = "inventory.toml"
USER_KEY = "user_key"
SERVER_FOLDER = Path("/etc/ssh")

# Permitted forwarding for users of a machine: gateways forward SSH, hosts nothing. Other limits
# keep OpenSSH's defaults.
_SERVER = """\
{listen}
HostKey {folder}/ssh_host_ed25519_key
AuthorizedKeysFile {folder}/authorized_keys
AllowUsers {user}
PermitRootLogin prohibit-password
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
HostbasedAuthentication no
GSSAPIAuthentication no
KerberosAuthentication no
UsePAM no
StrictModes yes
AllowTcpForwarding {forwarding}
AllowStreamLocalForwarding no
AllowAgentForwarding no
X11Forwarding no
PermitTunnel no
PermitUserRC no
PermitUserEnvironment no
PrintMotd no
PrintLastLog no
UseDNS no
LogLevel VERBOSE
PidFile none
Subsystem sftp internal-sftp
"""


@dataclass(frozen=True)
class Files:
    """The paths of a lab's files, in the lab's folder on the controller."""

    folder: Path
    spec: LabSpec

    @property
    def inventory(self) -> Path:
        return self.folder / INVENTORY

    @property
    def known_hosts(self) -> Path:
        return self.folder / f"known_hosts.{self.spec.name}"

    @property
    def user_key(self) -> Path:
        return self.folder / USER_KEY

    def log(self, machine: Machine) -> Path:
        """Return the log of a machine's SSH server."""
        return self.folder / "log" / f"{machine.name}.log"

    def private_folder(self, machine: Machine, part: str) -> Path:
        """Return a private folder of the machine: ssh, home, tmp."""
        return self.folder / "machines" / machine.name / part

    def write(self) -> None:
        """Write all files, new keys included."""
        user_public = write_key(self.user_key, f"pubsubctl lab {self.spec.name}")
        known: list[str] = []
        (self.folder / "log").mkdir(mode=0o700)
        for machine in self.spec.machines:
            ssh = self.private_folder(machine, "ssh")
            ssh.mkdir(mode=0o700, parents=True)
            self.private_folder(machine, "home").mkdir(mode=0o700)
            self.private_folder(machine, "tmp").mkdir()
            self.private_folder(machine, "tmp").chmod(0o1777)
            public = write_key(ssh / "ssh_host_ed25519_key", machine.name)
            addresses = self.spec.addresses(machine)
            known += [f"{address} {public}" for address in addresses]
            _write(ssh / "authorized_keys", f"restrict,pty,port-forwarding {user_public}\n")
            _write(ssh / "sshd_config", server_configuration(machine, addresses))
        _write(self.known_hosts, "".join(f"{line}\n" for line in known))
        _write(self.inventory, inventory_text(self.spec, self.user_key, python_of_this_machine()))


def write_key(path: Path, comment: str) -> str:
    """Generate a key, write both halves, and return the public half as `type base64`."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    _write(path, private.decode())
    _write(path.with_name(path.name + ".pub"), f"{public} {comment}\n")
    return public


def server_configuration(machine: Machine, addresses: Iterable[str]) -> str:
    """Return the complete configuration of the machine's SSH server."""
    listen = "\n".join(
        f"ListenAddress [{address}]:{PORT}" if ":" in address else f"ListenAddress {address}:{PORT}"
        for address in addresses
    )
    forwarding = "local" if len(machine.legs) > 1 else "no"
    return _SERVER.format(listen=listen, folder=SERVER_FOLDER, user=USER, forwarding=forwarding)


def inventory_text(spec: LabSpec, user_key: Path, python: str) -> str:
    """Return the inventory of a lab; the host keys are in a file beside the inventory."""
    lines = [
        f"# Written by `pubsubctl lab up`; removed by `pubsubctl lab down --name {spec.name}`.",
        'schema = "pubsubctl/inventory/1"',
        f'name = "{spec.inventory_name}"',
        "",
        "[defaults]",
        f'known_hosts = "known_hosts.{spec.name}"',
        'connector = "ssh"',
        f'user = "{USER}"',
        f'identity = "{user_key}"',
        f'python = "{python}"',
    ]
    gateways = [machine for machine in spec.machines if len(machine.legs) > 1]
    if gateways:
        lines.append(f'jump = "{",".join(machine.name for machine in gateways)}"')
    for machine in gateways:
        lines += ["", f"[gateways.{machine.name}]", f'address = "{spec.address(machine)}"']
    for machine in spec.machines:
        if machine not in gateways:
            lines += [
                "",
                "[[hosts]]",
                f'name = "{machine.name}"',
                f'address = "{spec.address(machine)}"',
                'groups = ["brokers", "clients"]',
            ]
    return "\n".join(lines) + "\n"


def python_of_this_machine() -> str:
    """Return the interpreter below our virtual environment.

    The lab's machines have the same path.
    """
    return os.path.realpath(sys.executable)


def list_kept_folders(covered: Iterable[str]) -> list[str]:
    """Return the folders that a machine keeps under its private mounts: the interpreter's."""
    folder = Path(os.path.realpath(sys.base_prefix))
    return [str(folder)] if any(folder.is_relative_to(other) for other in covered) else []


def hidden_folders() -> list[str]:
    """Return the folders hidden from a machine: the source tree of this program, if present."""
    source = Path(__file__).resolve().parents[2]
    return [str(source)] if (source / "pyproject.toml").is_file() else []


def server_program() -> str:
    """Return the path of sshd, which requires an absolute path."""
    from pubsubctl.lab.network import tool_environment

    found = shutil.which("sshd", path=tool_environment()["PATH"])
    assert found is not None, "checked before"
    return os.path.realpath(found)


def _write(path: Path, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
