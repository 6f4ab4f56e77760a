"""OpenSSH client configurations: their files, and the evaluation for one host as `ssh -G` does.

The evaluation of an OpenSSH client configuration for one host, as `ssh -G` evaluates.

The first value of a keyword wins, keys accumulate, and a second evaluation follows where the
configuration asks for one. A block whose condition is not evaluated leaves a doubt about its
keywords, so that no later block replaces the value.

Configuration files of the OpenSSH client, resolved for one host as `ssh -G` does.

The reader is our own because ssh runs `Match exec` and follows every Include. This reader runs a
command only on request, follows only files below the folder of the first, and keeps the line of
each value. A value that depends on a command that is not run is refused, never guessed.
"""

import glob
import itertools
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from brokerd.text import nearest
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import LARGEST_FILE_BYTES, shown
from pubsubctl.hosts.ssh.config_syntax import (
    DECIDABLE,
    Target,
    connection_tokens,
    fill_tokens,
    is_address,
    local_user,
    matches,
    matches_list,
    split_criteria,
    split_words,
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
        text = line.words[0]
        if text.isalpha():
            try:
                return socket.getservbyname(text, "tcp")
            except OSError:
                pass
        if not re.fullmatch(r"\+?\d{1,20}", text) or not 0 < int(text) < 1 << 16:
            raise UserError(f"{line.where}: Port {shown(text)} is no number from 1 to 65535")
        return int(text)

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


MOST_FILES: Final = 64
DEEPEST_INCLUDE: Final = 16
MOST_WILDCARDS: Final = 2

_LINE = re.compile(r"\s*(\"?)([A-Za-z][A-Za-z0-9]*)\1(?:\s*=\s*|\s+)(.*?)\s*", re.DOTALL)
_SPELT: Final = (
    *("host", "match", "hostname", "port", "user"),
    *("identityfile", "proxyjump", "proxycommand", "include"),
)
"""Keywords that decide on a connection; another keyword close to one of these is refused."""
_KEYWORDS: Final = frozenset(
    re.findall(
        r"\w+",
        """
    addkeystoagent addressfamily afstokenpassing batchmode bindaddress bindinterface
    canonicaldomains canonicalizefallbacklocal canonicalizehostname canonicalizemaxdots
    canonicalizepermittedcnames casignaturealgorithms certificatefile
    challengeresponseauthentication channeltimeout checkhostip cipher ciphers
    clearallforwardings compression compressionlevel connectionattempts connecttimeout
    controlmaster controlpath controlpersist dsaauthentication dynamicforward
    enableescapecommandline enablesshkeysign escapechar exitonforwardfailure fallbacktorsh
    fingerprinthash forkafterauthentication forwardagent forwardx11 forwardx11timeout
    forwardx11trusted gatewayports globalknownhostsfile globalknownhostsfile2
    gssapiauthentication gssapiclientidentity gssapidelegatecredentials gssapikexalgorithms
    gssapikeyexchange gssapirenewalforcesrekey gssapiserveridentity gssapitrustdns
    hashknownhosts host hostbasedacceptedalgorithms hostbasedauthentication hostbasedkeytypes
    hostkeyalgorithms hostkeyalias hostname identitiesonly identityagent identityfile
    identityfile2 ignoreunknown include ipqos kbdinteractiveauthentication kbdinteractivedevices
    keepalive kerberosauthentication kerberostgtpassing kexalgorithms keychainintegration
    knownhostscommand localcommand localforward loglevel logverbose macs match
    nohostauthenticationforlocalhost numberofpasswordprompts obscurekeystroketiming
    passwordauthentication permitlocalcommand permitremoteopen pkcs11provider port
    preferredauthentications protocol proxycommand proxyjump proxyusefdpass
    pubkeyacceptedalgorithms pubkeyacceptedkeytypes pubkeyauthentication refuseconnection
    rekeylimit remotecommand remoteforward requesttty requiredrsasize revokedhostkeys
    rhostsauthentication rhostsrsaauthentication rsaauthentication securitykeyprovider sendenv
    serveralivecountmax serveraliveinterval sessiontype setenv skeyauthentication
    smartcarddevice stdinnull streamlocalbindmask streamlocalbindunlink stricthostkeychecking
    syslogfacility tag tcpkeepalive tisauthentication tunnel tunneldevice updatehostkeys
    useblacklistedkeys usekeychain useprivilegedport user userknownhostsfile userknownhostsfile2
    useroaming usersh verifyhostkeydns versionaddendum visualhostkey warnweakcrypto
    xauthlocation
""",
    )
)
_NOT_TAKEN_OVER: Final = (
    *("localcommand", "remotecommand", "knownhostscommand", "certificatefile"),
    *("identityagent", "pkcs11provider", "hostkeyalias"),
)


class ClientConfig:
    """A configuration file with its included files.

    Attributes:
        notes: content that is not taken over, and followed files, with their lines.
    """

    def __init__(self, text: str, source: Path, *, follow_all: bool = False) -> None:
        """
        Args:
            follow_all: follow Include to all folders, as ssh does.

        Raises:
            UserError: lines are malformed; names all.
        """
        self.notes: list[str] = []
        self._source = source
        self._follow_all = follow_all
        self._folder = source.expanduser().parent.resolve()
        self._size_bytes = len(text)
        self._files = 1
        self._problems: list[str] = []
        self._ignored: list[str] = []
        self._lines = self._read(text, source, 0)
        if self._problems:
            raise UserError(*self._problems)

    def names(self) -> list[str]:
        """Return all hosts that a Host line, or `Match originalhost`, names in full."""
        found: dict[str, None] = {}
        for line in _walk(self._lines):
            patterns: list[str] = []
            if line.key == "host":
                patterns = list(line.words)
            elif line.key == "match":
                for negated, name, argument in split_criteria(line.text):
                    if name == "originalhost" and not negated:
                        patterns += argument.split(",")
            found |= dict.fromkeys(p for p in patterns if p and not re.search(r"[*?!]", p))
        return list(found)

    def settings(
        self,
        alias: str,
        user: str | None = None,
        port: int | None = None,
        *,
        run_commands: bool = False,
    ) -> HostSettings:
        """Return the settings of a host; user and port of a command line take precedence.

        Args:
            run_commands: run the commands of `Match exec` on this machine.

        Raises:
            UserError: a deciding value cannot be determined, or is invalid; names file and line.
        """
        resolution = Resolution(alias, user, port, run_commands)
        resolution.apply(self._lines)
        if resolution.wants_final_pass():
            resolution.begin_final_pass()
            resolution.apply(self._lines)
        return resolution.result()

    def _read(self, text: str, source: Path, depth: int) -> tuple[Line, ...]:
        found = []
        for number, raw in enumerate(text.split("\n"), start=1):
            raw = raw.rstrip(" \t\r\f")
            if not raw.strip() or raw.lstrip().startswith("#"):
                continue
            where = f"{source}:{number}"
            match = _LINE.fullmatch(raw)
            if match is None or not match[3]:
                self._problems.append(
                    f"{where}: {shown(raw.strip())}: expected a keyword with a value"
                )
                continue
            words = split_words(match[3])
            if words is None:
                self._problems.append(f"{where}: {shown(raw.strip())}: a quote is not closed")
                continue
            line = Line(where, match[2], match[3], tuple(words))
            problem = _problem_of(line) or self._problem_of_keyword(line)
            if problem:
                self._problems.append(f"{where}: {shown(raw.strip())}: {problem}")
                continue
            if line.key == "include":
                line = replace(line, included=self._include(line, depth))
            elif line.key in _NOT_TAKEN_OVER:
                self._note(f"{where}: {line.keyword} is not taken over")
            elif line.key == "match" and any(
                name not in DECIDABLE for _, name, _ in split_criteria(line.text)
            ):
                self._note(f"{where}: Match is not taken over")
            found.append(line)
        return tuple(found)

    def _include(self, line: Line, depth: int) -> tuple[tuple[Line, ...], ...]:
        """Return the lines of each file of an Include that lies below the folder of the first."""
        found: list[tuple[Line, ...]] = []
        for pattern in line.words:
            path = self._folder / os.path.expanduser(pattern)
            files: list[Path] = []
            outside = not self._is_inside(path)
            if not outside:
                files = [Path(name) for name in sorted(glob.glob(str(path)))]
                outside = not all(self._is_inside(file) for file in files)
            if outside or not files:
                why = f"leads out of {self._folder}" if outside else "matches no file"
                self._note(
                    f"{line.where}: Include is not followed: {shown(pattern)} {why}; "
                    "import the file by itself"
                )
                continue
            for file in files:
                if depth + 1 > DEEPEST_INCLUDE:
                    raise UserError(f"{line.where}: Include: more than {DEEPEST_INCLUDE} deep")
                found.append(self._read(self._text_of(file, line), file, depth + 1))
            self._note(
                f"{line.where}: Include is followed: {shown(pattern)}, "
                f"{len(files)} file{'' if len(files) == 1 else 's'} in {self._folder}"
            )
        return tuple(found)

    def _is_inside(self, pattern: Path) -> bool:
        """Return True if a pattern matches files in the folder only, after a bounded search."""
        if "\0" in str(pattern):
            return False
        if self._follow_all:
            return True
        wild = [part for part in pattern.parts if set(part) & set("*?[")]
        literal = itertools.takewhile(lambda part: not set(part) & set("*?["), pattern.parts)
        inside = Path(*literal).resolve().is_relative_to(self._folder)
        return inside and len(wild) <= MOST_WILDCARDS and ".." not in pattern.parts

    def _text_of(self, file: Path, line: Line) -> str:
        self._files += 1
        if self._files > MOST_FILES:
            raise UserError(f"{line.where}: Include: more than {MOST_FILES} files")
        try:
            if not file.is_file():
                raise UserError(f"{line.where}: Include: {file} is no file")
            with file.open("rb") as opened:
                content = opened.read(LARGEST_FILE_BYTES + 1)
            self._size_bytes += len(content)
            if self._size_bytes > LARGEST_FILE_BYTES:
                raise UserError(f"{line.where}: Include: more than {LARGEST_FILE_BYTES >> 20} MiB")
            return content.decode("utf-8")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"{line.where}: Include: {file}: {reason}") from None
        except UnicodeDecodeError as error:
            raise UserError(f"{file}: not UTF-8 (byte {error.start})") from None

    def _problem_of_keyword(self, line: Line) -> str:
        """Note a keyword that no OpenSSH has; return the problem of a misspelt one, or ""."""
        if line.key == "ignoreunknown":
            self._ignored.append(",".join(line.words).lower())
        if line.key in _KEYWORDS or any(matches_list(line.key, text) for text in self._ignored):
            return ""
        near = nearest(line.key, _SPELT)
        if "did you mean" in near:
            return f"{shown(line.keyword)} is no keyword of OpenSSH{near}"
        self._note(f"{line.where}: {line.keyword} is no keyword of OpenSSH, and is skipped")
        return ""

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _problem_of(line: Line) -> str:
    """Return the reason why a line is malformed, or ""."""
    if not line.words and line.key not in ("proxycommand", "proxyjump"):
        return "expected a value before the comment"
    if line.key == "host" and "" in line.words:
        return "a pattern is empty"
    if line.key == "match":
        try:
            list(split_criteria(line.text))
        except ValueError as error:
            return str(error)
    return ""


def _walk(lines: tuple[Line, ...]) -> Iterator[Line]:
    for line in lines:
        yield line
        for file in line.included:
            yield from _walk(file)
