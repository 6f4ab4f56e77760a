"""The settings of one host in an OpenSSH client configuration, evaluated as `ssh -G` does.

The first value of a keyword wins, keys accumulate, and a second evaluation follows where the
configuration asks for one. A block whose condition is not evaluated leaves a doubt about its
keywords, so that no later block replaces the value.
"""

import re
import subprocess
from dataclasses import dataclass, field
from typing import Final

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown
from pubsubctl.hosts.ssh.config_syntax import (
    Target,
    connection_tokens,
    fill_tokens,
    is_address,
    local_user,
    matches,
    matches_list,
    read_port,
    split_criteria,
)

MOST_IDENTITIES: Final = 16
SSH_PORT: Final = 22

_MOST_DOTS = 1
_WANTED = ("hostname", "port", "user", "tag", "hostkeyalias")
_CANONICAL = (
    "canonicalizehostname",
    "canonicaldomains",
    "canonicalizemaxdots",
    "canonicalizepermittedcnames",
)


@dataclass(frozen=True)
class Line:
    """A line with a keyword.

    Attributes:
        key: the keyword in lower case.
        text: all after the keyword, as ProxyCommand and ProxyJump use the line.
        words: the arguments, without quotes and comment.
        included: the lines of each file of an Include.
    """

    where: str
    keyword: str
    text: str
    words: tuple[str, ...]
    included: tuple[tuple["Line", ...], ...] = ()

    @property
    def key(self) -> str:
        """Return the keyword in lower case; one name for each of two."""
        key = self.keyword.lower()
        return "identityfile" if key == "identityfile2" else key


@dataclass(frozen=True)
class ProxySetting:
    """The ProxyJump or ProxyCommand that decides on a route.

    Attributes:
        text: the value, with tokens.
    """

    where: str
    is_jump: bool
    text: str


@dataclass(frozen=True)
class HostSettings:
    """The settings of a host, tokens filled in.

    Attributes:
        alias: the name on the command line of ssh.
        user: the login; None for the local user.
        identities: paths of private keys in order; () if the configuration names no key.
        proxy: the deciding ProxyJump or ProxyCommand; None for a direct connection.
        key_alias: the value of HostKeyAlias; "" if unset.
    """

    alias: str
    hostname: str
    port: int | None
    user: str | None
    identities: tuple[str, ...]
    proxy: ProxySetting | None
    key_alias: str = ""


@dataclass
class _Activity:
    """The state of the current block: active, inactive, or in doubt for a reason."""

    active: bool = True
    doubt: str = ""


@dataclass
class Resolution:
    """The evaluation of all lines for one host; the first value of a keyword wins.

    Attributes:
        doubts: keyword → the reason why the value is undetermined.
    """

    alias: str
    given_user: str | None
    given_port: int | None
    run_commands: bool
    values: dict[str, Line] = field(default_factory=dict)
    identities: list[Line] = field(default_factory=list)
    proxy: ProxySetting | None = None
    doubts: dict[str, str] = field(default_factory=dict)
    final_pass: bool = False
    final_requested: bool = False
    target: str = ""
    resolved: str = ""

    def __post_init__(self) -> None:
        self.target = self.alias

    def apply(self, lines: tuple[Line, ...]) -> None:
        """Evaluate the lines of a file."""
        self._apply(lines, _Activity(), _Activity())

    def wants_final_pass(self) -> bool:
        """Return True if a line asks for a second evaluation with the resolved host name."""
        return self.final_requested or self._canonicalizes()

    def begin_final_pass(self) -> None:
        """Prepare the second evaluation, in which Host lines match the resolved host name.

        The second evaluation changes the host name no more.
        """
        self.final_pass = True
        self.target = self.resolved = self._hostname()

    def result(self) -> HostSettings:
        """Return the settings.

        Raises:
            UserError: see `ClientConfig.settings`.
        """
        self._refuse_look_up()
        for key in ("hostname", "port", "user", "identityfile", "proxy"):
            if key in self.doubts:
                raise UserError(self.doubts[key])
        hostname = self._hostname()
        port = self._port()
        user = self._user()
        key_alias = self._key_alias()
        tokens = self._tokens()
        identities = dict.fromkeys(
            fill_tokens(line.words[0], tokens, line.where, is_path=True)
            for line in self.identities
            if line.words[0].lower() != "none"
        )
        if len(identities) > MOST_IDENTITIES:
            where = self.identities[MOST_IDENTITIES].where
            raise UserError(f"{where}: IdentityFile: more than {MOST_IDENTITIES} keys")
        return HostSettings(
            self.alias, hostname, port, user, tuple(identities), self.proxy, key_alias
        )

    def _tokens(self) -> dict[str, str]:
        """Return the tokens of the connection; without %k or %j where the value is in doubt."""
        target = Target(
            self.alias,
            self._hostname(),
            self._port() or SSH_PORT,
            self._user() or "",
            self._key_alias(),
        )
        jump = ""
        if self.proxy is not None and self.proxy.is_jump:
            last = self.proxy.text.rpartition(",")[2].rpartition("@")[2]
            jump = re.sub(r"^\[|\]?(:\d+)?/?$", "", last) if last.lower() != "none" else ""
        tokens = connection_tokens(target, jump)
        return {
            token: value
            for token, value in tokens.items()
            if not (token == "k" and "hostkeyalias" in self.doubts)
            and not (token in "jC" and "proxy" in self.doubts)
        }

    def _key_alias(self) -> str:
        line = self.values.get("hostkeyalias")
        return line.words[0] if line else ""

    def _apply(self, lines: tuple[Line, ...], current: _Activity, limit: _Activity) -> None:
        for line in lines:
            if line.key == "host":
                current.active, current.doubt = self._host_matches(line), ""
                self._restrict(current, limit)
            elif line.key == "match":
                self._enter_match(line, current)
                self._restrict(current, limit)
            elif line.included:
                # Each file begins in the block around the Include, whatever the last one ended in.
                for file in line.included:
                    inner = _Activity(current.active, current.doubt)
                    self._apply(file, inner, _Activity(current.active, current.doubt))
            elif current.active:
                self._take(line, current.doubt)

    def _restrict(self, current: _Activity, limit: _Activity) -> None:
        """Bound a block of an included file by the block around the Include."""
        current.active = current.active and limit.active
        current.doubt = current.doubt or limit.doubt

    def _host_matches(self, line: Line) -> bool:
        found = False
        for pattern in line.words:
            if pattern.startswith("!"):
                if matches(self.target, pattern[1:]):
                    return False
            elif matches(self.target, pattern):
                found = True
        return found

    def _enter_match(self, line: Line, current: _Activity) -> None:
        current.active, current.doubt = True, ""
        for negated, name, argument in split_criteria(line.text):
            if name == "final":
                self.final_requested = True
            if name == "exec" and not current.active:
                continue
            found = self._criterion(line, name, argument)
            if isinstance(found, str):
                current.doubt = current.doubt or found
            elif found == negated:
                current.active = False

    def _criterion(self, line: Line, name: str, argument: str) -> bool | str:
        """Return True if a criterion of a Match holds; a reason if this is undetermined."""
        if name == "all":
            return True
        if name in ("final", "canonical"):
            return self.final_pass
        if name == "host":
            return self.doubts.get("hostname") or matches_list(self._hostname().lower(), argument)
        if name == "originalhost":
            return matches_list(self.alias.lower(), argument)
        if name == "user":
            user = self._user() or local_user()
            return self.doubts.get("user") or matches_list(user, argument, lower=False)
        if name == "localuser":
            return matches_list(local_user(), argument, lower=False)
        if name == "tagged":
            tag = self.values["tag"].words[0] if "tag" in self.values else ""
            return self.doubts.get("tag") or matches_list(tag, argument, lower=False)
        if name == "exec" and self.run_commands:
            return self._run(line, argument)
        is_run = "a command, which is not run" if name == "exec" else "not evaluated"
        return f"{line.where}: Match {name} {shown(argument)} decides, and is {is_run}"

    def _run(self, line: Line, command: str) -> bool:
        text = fill_tokens(command, self._tokens(), line.where)
        done = subprocess.run(
            ["/bin/sh", "-c", f"exec {text}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        return done.returncode == 0

    def _take(self, line: Line, doubt: str) -> None:
        """Record a line of an active block, unless an earlier line has decided."""
        key = "proxy" if line.key in ("proxyjump", "proxycommand") else line.key
        if key not in ("proxy", "identityfile", *_WANTED, *_CANONICAL) or key in self.doubts:
            return
        if key == "proxy":
            if self.proxy is not None and not self._follows_no_jump(line):
                return
        elif key != "identityfile" and key in self.values:
            return
        if key == "hostname" and self.final_pass:
            return
        if key in ("user", "port") and getattr(self, f"given_{key}") is not None:
            return
        is_list = key in ("proxy", "canonicaldomains", "canonicalizepermittedcnames")
        if not is_list and len(line.words) != 1 and not doubt:
            why = "more than one value; quote a value with blanks"
            doubt = f"{line.where}: {line.keyword} {shown(line.text)}: {why}"
        if doubt:
            self.doubts[key] = doubt if doubt.startswith(line.where) else f"{doubt}: {line.keyword}"
        elif key == "proxy":
            self._take_proxy(line)
        elif key == "identityfile":
            if line.words not in [known.words for known in self.identities]:
                self.identities.append(line)
        else:
            self.values[key] = line

    def _follows_no_jump(self, line: Line) -> bool:
        """Return True for a ProxyCommand after `ProxyJump none`, which decides on jumps only."""
        assert self.proxy is not None
        is_command = line.key == "proxycommand"
        return is_command and self.proxy.is_jump and self.proxy.text.lower() == "none"

    def _take_proxy(self, line: Line) -> None:
        text = line.text
        if line.key == "proxyjump":
            text = re.sub(r"\s*#.*", "", text).replace('"', "")
        self.proxy = ProxySetting(line.where, line.key == "proxyjump", text)

    def _hostname(self) -> str:
        if self.resolved:
            return self.resolved
        line = self.values.get("hostname")
        found = self.alias
        if line is not None:
            found = fill_tokens(line.words[0], {"h": self.alias}, line.where)
        return found if is_address(found) else found.lower()

    def _port(self) -> int | None:
        line = self.values.get("port")
        if self.given_port is not None or line is None:
            return self.given_port
        port = read_port(line.words[0])
        if not port:
            raise UserError(
                f"{line.where}: Port {shown(line.words[0])} is no number from 1 to 65535"
            )
        return port

    def _user(self) -> str | None:
        if self.given_user is not None or "user" not in self.values:
            return self.given_user
        return self.values["user"].words[0]

    def _canonicalizes(self) -> bool:
        line = self.values.get("canonicalizehostname")
        return line is not None and line.words[0].lower() in ("yes", "always")

    def _refuse_look_up(self) -> None:
        """Refuse a host whose name would be looked up; names are not looked up here.

        Raises:
            UserError: CanonicalizeHostname applies to the host.
        """
        if "canonicalizehostname" in self.doubts:
            raise UserError(self.doubts["canonicalizehostname"])
        if not self._canonicalizes():
            return
        line = self.values["canonicalizehostname"]
        hostname = self._hostname()
        is_direct = self.proxy is None or self.proxy.text.lower() == "none"
        domains = self.values.get("canonicaldomains")
        dots = self.values.get("canonicalizemaxdots")
        most = int(dots.words[0]) if dots and dots.words[0].isdecimal() else _MOST_DOTS
        renames = "canonicalizepermittedcnames" in self.values
        if is_address(hostname) or not (is_direct or line.words[0].lower() == "always"):
            return
        if renames or (domains is not None and hostname.count(".") <= most):
            raise UserError(
                f"{line.where}: CanonicalizeHostname looks {shown(hostname)} up, which is not done"
            )
