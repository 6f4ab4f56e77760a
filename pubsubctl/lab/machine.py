"""Start script for a machine of a lab; `lab up` runs the script once per machine.

The machine is a process in private namespaces, an OpenSSH server, with all its children: network,
process numbers, host name, mounts. When the first process ends, the kernel ends all processes of
the machine. Home, /tmp, /etc/ssh, /run and /var/log are private; the rest of the file system is
shared with this machine, except for hidden folders.

The script imports only the standard library: a start takes 20 ms, eight times.
"""

import ctypes
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

_NEW_MOUNTS, _NEW_HOST_NAME, _NEW_IPC = 0x00020000, 0x04000000, 0x08000000
_NEW_PROCESSES, _NEW_NETWORK = 0x20000000, 0x40000000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_NO_SUID, _NO_DEVICES, _NO_EXEC, _READ_ONLY = 2, 4, 8, 1

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Read the specification from standard input; write the pid, or exit 1 with the reason."""
    wanted = json.load(sys.stdin)
    reader, writer = os.pipe()
    _call("unshare", _NEW_PROCESSES)
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            _become(wanted)
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.close(writer)
    with open(reader, "rb") as stream:
        problem = stream.read()  # ends without a word when the server takes over
    if problem:
        os.waitpid(pid, 0)
        sys.exit(problem.decode())
    sys.stdout.write(f"{pid}\n")


def _become(wanted: dict[str, Any]) -> NoReturn:
    os.setsid()
    os.umask(0o022)  # the usual umask, which every session inherits
    os.set_inheritable(wanted["lock"], False)
    output = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with open(wanted["namespace"], "rb") as namespace:
        _call("setns", namespace.fileno(), _NEW_NETWORK)
    _call("unshare", _NEW_MOUNTS | _NEW_HOST_NAME | _NEW_IPC)
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    socket.sethostname(wanted["name"])
    _lay_out(wanted)
    for standard, descriptor in enumerate((os.open("/dev/null", os.O_RDONLY), output, output)):
        os.dup2(descriptor, standard)
    os.chdir("/")
    command = wanted["command"]
    os.execve(command[0], command, wanted["environment"])


def _lay_out(wanted: dict[str, Any]) -> None:
    """Mount the machine's private folders.

    Sources below a covered folder are opened before the mount.
    """
    kept = [(folder, os.open(folder, os.O_PATH | os.O_CLOEXEC)) for folder in wanted["kept"]]
    own = [(os.open(of, os.O_PATH | os.O_CLOEXEC), at) for of, at in wanted["own"]]
    for folder in wanted["hidden"]:
        _mount("none", folder, "tmpfs", _NO_SUID | _NO_DEVICES | _NO_EXEC | _READ_ONLY, "size=4k")
    for descriptor, folder in own:
        _mount(f"/proc/self/fd/{descriptor}", folder, None, _BIND)
    for folder in ("/run", "/var/log"):
        _mount("none", folder, "tmpfs", _NO_SUID | _NO_DEVICES, "size=8m,mode=755")
    os.mkdir("/run/sshd", 0o755)
    for folder, descriptor in kept:
        _make_mount_point(Path(folder))
        _mount(f"/proc/self/fd/{descriptor}", folder, None, _BIND | _RECURSIVE)
    # Last, because the mounts above name descriptors through the old /proc.
    _mount("none", "/proc", "proc", _NO_SUID | _NO_DEVICES | _NO_EXEC)
    _mount("none", "/sys", "sysfs", _NO_SUID | _NO_DEVICES | _NO_EXEC)


def _make_mount_point(folder: Path) -> None:
    """Create a mount point, possibly in the machine's own empty home."""
    folder.mkdir(parents=True, exist_ok=True)


def _mount(
    source: str | None, where: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else os.fsencode(value)

    try:
        _call("mount", text(source), text(where), text(kind), flags, text(options))
    except OSError as error:
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)}: mount on {where}") from None


def _call(function: str, *arguments: Any) -> None:
    values = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    if getattr(_libc, function)(*values) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
