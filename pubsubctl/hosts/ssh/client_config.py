"""Configuration files of the OpenSSH client, and the user's own, which only --use-ssh-config reads.

The reader is our own because ssh runs `Match exec` and follows every Include. This reader runs a
command only on request, follows only files below the folder of the first, and keeps the line of
each value. A value that depends on a command that is not run is refused, never guessed.

The configuration completes the inventory, and never overrules the inventory: host name behind an
alias, port, user, key, and route. ProxyCommand and `Match exec` run commands on this machine, so
nothing is read without --use-ssh-config. Host keys always come from the inventory's known_hosts.
"""

import glob
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from brokerd.text import nearest, problem_of
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import LARGEST_FILE_BYTES, shown
from pubsubctl.hosts.ssh.config_syntax import (
    DECIDABLE,
    Target,
    fill_tokens,
    matches_list,
    split_criteria,
    split_words,
)
from pubsubctl.hosts.ssh.errors import describe_error
from pubsubctl.hosts.ssh.fabric_connection import Hop
from pubsubctl.hosts.ssh.host_settings import SSH_PORT, HostSettings, Line, ProxySetting, Resolution
from pubsubctl.hosts.ssh.proxies import read_hops
from pubsubctl.inventory.inventory import Gateway, Inventory

MOST_FILES: Final = 64
DEEPEST_INCLUDE: Final = 16
MOST_WILDCARDS: Final = 2

_BLANKS: Final = " \t\r"
"""Characters that ssh skips between words; other blanks, such as a form feed, are letters."""
_LINE = re.compile(
    rf"[{_BLANKS}]*(\"?)([A-Za-z][A-Za-z0-9]*)\1"
    rf"([{_BLANKS}]*=[{_BLANKS}]*|[{_BLANKS}]+)(.*?)[{_BLANKS}]*",
    re.DOTALL,
)
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

    def place_of(self, name: str) -> str:
        """Return file and line of the first Host line with a name."""
        lines = (line for line in _walk(self._lines) if line.key == "host" and name in line.words)
        return next((line.where for line in lines), str(self._source))

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
            # As ssh does, also at the first letter, which may be a form feed.
            raw = raw[:1] + raw[1:].rstrip(f"{_BLANKS}\f")
            begin = raw.lstrip(_BLANKS)
            if not begin or begin.startswith("#"):
                continue
            where = f"{source}:{number}"
            match = _LINE.fullmatch(raw)
            if match is None or not match[4]:
                problem = "expected a keyword with a value"
                if begin[0].isspace():
                    problem = f"begins with {begin[0]!a}, which is no blank for ssh"
                self._problems.append(f"{where}: {shown(raw.strip())}: {problem}")
                continue
            if match[1] and "=" in match[3]:
                problem = "ssh takes the = after a keyword in quotes for a part of the value"
                self._problems.append(f"{where}: {shown(raw.strip())}: {problem}")
                continue
            words = split_words(match[4])
            if words is None:
                self._problems.append(f"{where}: {shown(raw.strip())}: a quote is not closed")
                continue
            line = Line(where, match[2], match[4], tuple(words))
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
            raise UserError(f"{file}: {problem_of(error)}") from None

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


MOST_GATEWAYS: Final = 8


class UserConfig:
    """Hosts and gateways of an inventory, completed."""

    def __init__(self, inventory: Inventory, path: Path) -> None:
        """
        Raises:
            UserError: the file cannot be read.
        """
        self._path = path
        try:
            with path.expanduser().open("rb") as file:
                content = file.read(LARGEST_FILE_BYTES + 1)
            if len(content) > LARGEST_FILE_BYTES:
                raise UserError(f"{path}: larger than {LARGEST_FILE_BYTES >> 20} MiB")
            self._config = ClientConfig(content.decode("utf-8"), path, follow_all=True)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: {describe_error(error)}") from None
        self._gateways = dict(inventory.gateways)
        self._settled: dict[tuple[bool, str, tuple[str, ...]], Hop] = {}
        self._commands: dict[tuple[bool, str, tuple[str, ...]], str] = {}

    @property
    def gateways(self) -> Mapping[str, Gateway]:
        """Return the gateways of the inventory and of the configuration."""
        return self._gateways

    def settle(self, hop: Hop) -> Hop:
        """Return the host or gateway with every setting filled in.

        Raises:
            UserError: the route is endless, or cannot be parsed.
        """
        key = _key(hop)
        if key not in self._settled:
            found = self._settle(hop, 0)
            self._settled[key] = found
            self._settled[_key(found)] = found  # nothing is looked up twice
        return self._settled[key]

    def proxy_command(self, hop: Hop) -> str | None:
        """Return the command through which a settled host is reached, if any."""
        return self._commands.get(_key(hop))

    def _settle(self, hop: Hop, depth: int) -> Hop:
        if depth > MOST_GATEWAYS:
            raise UserError(f"{self._path}: more than {MOST_GATEWAYS} gateways to {hop.name}")
        port = None if hop.port == SSH_PORT else hop.port
        settings = self._config.settings(hop.address, hop.user, port, run_commands=True)
        identities = hop.identities or settings.identities
        found = replace(
            hop,
            address=settings.hostname,
            port=settings.port or SSH_PORT,
            user=settings.user,
            identity=next(iter(identities), None),
            more_identities=identities[1:],
        )
        proxy = settings.proxy
        if hop.jump or proxy is None or proxy.text.lower() == "none":
            return found
        target = Target(
            hop.address, found.address, found.port, found.user or "", settings.key_alias
        )
        if proxy.is_jump:
            return replace(found, jump=self._route(proxy, target, depth))
        self._commands[_key(found)] = fill_tokens(proxy.text, target.tokens(), proxy.where)
        return found

    def _route(self, proxy: ProxySetting, target: Target, depth: int) -> tuple[str, ...]:
        """Return the gateways of a ProxyJump, outermost first, by generated names."""
        way: tuple[str, ...] = ()
        text = fill_tokens(proxy.text, target.tokens(), proxy.where)
        for spec, hop in zip(text.split(","), read_hops(text, proxy.where), strict=True):
            name = f"{self._path}: {spec}"
            named = Gateway(name, hop.host, hop.port or SSH_PORT, hop.user or None, jump=way)
            gateway: Hop = self._settle(named, depth + 1)
            assert isinstance(gateway, Gateway), gateway
            self._gateways[name] = gateway
            self._settled[_key(gateway)] = gateway
            way = (*gateway.jump, name)
        return way


def _key(hop: Any) -> tuple[bool, str, tuple[str, ...]]:
    return isinstance(hop, Gateway), hop.name, hop.jump
