"""The installed `ssh`, which resolves the routes to the hosts of a configuration.

`ssh -G` resolves one host. A route is resolved hop by hop: each hop of ProxyJump, and the host of a
`ssh -W` in ProxyCommand, is resolved by a further `ssh -G` with the options that ssh would pass.
"""

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pubsubctl.hosts.ssh.config_syntax import local_user

OLDEST = (8, 7)
DEEPEST = 8
_HOP = re.compile(r"(?:ssh://)?(?:(.+)@)?(\[[^\]]*\]|[^:]*)(?::(\d+))?/?")


class RefusedError(Exception):
    """A configuration or a host that ssh refuses."""


class NoEquivalentError(Exception):
    """A route that is no list of ssh servers."""


@dataclass(frozen=True)
class RouteHop:
    """A machine on a route, or at its end, with the values that ssh uses."""

    address: str
    port: int
    user: str
    keys: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        """Return the values of a record; the local user is an empty text."""
        user = "" if self.user == local_user() else self.user
        return asdict(self) | {"user": user, "keys": list(self.keys)}


def ssh_version() -> tuple[int, ...]:
    """Return the version of the installed ssh; () if none is installed."""
    if shutil.which("ssh") is None:
        return ()
    text = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False).stderr
    found = re.search(r"OpenSSH_(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else ()


def resolve_hosts(config: Path | str, *arguments: str) -> dict[str, list[str]]:
    """Return keyword → values, as `ssh -G` prints them.

    Raises:
        RefusedError: ssh refuses the configuration or the arguments.
    """
    done = subprocess.run(
        ["ssh", "-G", "-F", str(config), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    if done.returncode:
        raise RefusedError(done.stderr.strip())
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)
    return found


def route_by_ssh(config: Path, alias: str) -> list[RouteHop]:
    """Return all machines on the route to a host, outermost first, and the host.

    Raises:
        RefusedError: ssh refuses the configuration.
        NoEquivalentError: a proxy is no ssh server, or the route is a loop.
    """
    return _hops(config, alias, [], is_direct=False, depth=0)


def _hops(
    config: Path, alias: str, options: list[str], *, is_direct: bool, depth: int
) -> list[RouteHop]:
    if depth > DEEPEST:
        raise NoEquivalentError("a loop")
    values = resolve_hosts(config, *options, alias)
    tokens = {
        "%%": "%",
        "%d": os.environ["HOME"],
        "%h": values["hostname"][0],
        "%k": values.get("hostkeyalias", [alias])[0],
        "%n": alias,
        "%p": values["port"][0],
        "%r": values["user"][0],
        "%u": local_user(),
    }
    keys = [] if values["identityfile"] == _default_keys() else values["identityfile"]
    reached = RouteHop(
        tokens["%h"],
        int(tokens["%p"]),
        tokens["%r"],
        tuple(dict.fromkeys(_path(key, tokens) for key in keys if key.lower() != "none")),
    )
    if is_direct:
        return [reached]
    jump, command = (values.get(key, ["none"])[0] for key in ("proxyjump", "proxycommand"))
    before: list[RouteHop] = []
    if jump != "none":
        jumps = _fill_tokens(jump, tokens).split(",")
        for at, text in enumerate(jumps):
            # ssh gives the earlier ones to the next by -J, in place of a route of its own
            given = ["-J", ",".join(jumps[:at])] if at else []
            before += _resolve_name(config, text, given, is_direct=at > 0, depth=depth + 1)
    elif command != "none":
        words = shlex.split(_fill_tokens(command, tokens), comments=True)
        words = shlex.split(words[0]) if len(words) == 1 else words
        host, options = _gateway(words)
        before = _resolve_name(config, host, options, is_direct=False, depth=depth + 1)
    return [*before, reached]


def _resolve_name(
    config: Path, text: str, options: list[str], *, is_direct: bool, depth: int
) -> list[RouteHop]:
    match = _HOP.fullmatch(text)
    assert match is not None, text
    user = ["-l", match[1]] if match[1] and "-l" not in options else []
    port = ["-p", match[3]] if match[3] else []
    host = match[2].strip("[]")
    return _hops(config, host, [*options, *user, *port], is_direct=is_direct, depth=depth)


def _gateway(words: list[str]) -> tuple[str, list[str]]:
    """Return the host and the options of `ssh [-q] [-l user] [-p port] -W %h:%p host`."""
    if words[0] != "ssh" or "-W" not in words:
        raise NoEquivalentError(words[0])
    options, host, rest = [], "", words[1:]
    while rest:
        word = rest.pop(0)
        if word in ("-l", "-p"):
            options += [word, rest.pop(0)]
        elif word == "-W":
            rest.pop(0)
        elif not word.startswith("-"):
            host = word
        elif word != "-q":
            raise NoEquivalentError(word)
    return host, options


def _fill_tokens(text: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%.", lambda found: tokens.get(found[0], found[0]), text)


def _path(text: str, tokens: dict[str, str]) -> str:
    text = re.sub(r"\$\{(\w+)\}", lambda found: os.environ[found[1]], _fill_tokens(text, tokens))
    home = os.environ["HOME"]
    return text.replace(f"{home}/", "~/", 1) if text.startswith(f"{home}/") else text


_KEYS: list[str] = []


def _default_keys() -> list[str]:
    if not _KEYS:
        _KEYS.extend(resolve_hosts("none", "any.host")["identityfile"])
    return _KEYS
