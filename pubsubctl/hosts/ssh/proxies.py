"""Routes in the notation of ssh: ProxyJump, ProxyCommand of the form `ssh -W`, and ssh options.

A ProxyCommand is parsed, never run. A command that is no `ssh -W` to the host itself (nc, SOCKS,
corkscrew) is refused, because no list of gateways has the same effect.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown
from pubsubctl.hosts.ssh.config_syntax import (
    Target,
    connection_tokens,
    fill_tokens,
    read_port,
    split_words,
)

LONGEST_COMMAND: Final = 4096
DEEPEST_COMMAND: Final = 8

_HOP = re.compile(
    r"(?:(ssh)://)?(?:(\S+)@)?(\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[^@:\[\]\s/]+)"
    r"(?::(\d{1,5}|[A-Za-z][\w-]*))?(/?)"
)
_TAKE_A_VALUE: Final = "BbcDEeFIiJLlmOoPpQRSWw"
_DECIDE: Final = "FIOPQw"
"""Flags with a value that change what a connection is, and have no equivalent here.

Forwarded ports (-D, -L, -R) do not change how a host is reached.
"""
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_UNSUPPORTED: Final = ("canonicalizehostname", "include", "match", "proxyusefdpass", "tag")


@dataclass
class Hop:
    """A machine on the route, as a command line of ssh names a machine.

    Attributes:
        host: the name on the command line.
        address: the name or IP to connect to; "" if open.
        user: the login; "" if open.
        port: 0 if open.
        identities: keys that are tried before all others.
        is_direct: True if no configuration of this machine adds hops before.
        uses_config: False if the command line excludes the user's configuration.
    """

    host: str
    user: str = ""
    port: int = 0
    address: str = ""
    identities: list[str] = field(default_factory=list)
    is_direct: bool = False
    uses_config: bool = True


@dataclass
class CommandLine:
    """The content of a command line of ssh.

    Attributes:
        words: all words that are no options.
        forward: the value of -W.
        settings: lower-case keyword → the first value.
        keys: the values of -i and IdentityFile, with tokens.
        ignored: options without an equivalent that change no route.
    """

    words: list[str] = field(default_factory=list)
    forward: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    is_jump: bool = True
    uses_config: bool = True
    ignored: list[str] = field(default_factory=list)

    def proxy(self) -> str:
        """Return the deciding ProxyJump or ProxyCommand; "" if open."""
        return self.settings.get("proxy", "")

    def identities(self, target: Target, where: str) -> list[str]:
        """Return the paths of keys, with tokens filled in.

        Raises:
            UserError: a token is unknown, or a variable is not set.
        """
        tokens = connection_tokens(target)
        paths = [fill_tokens(key, tokens, where, is_path=True) for key in self.keys]
        return list(dict.fromkeys(paths))


def read_hops(text: str, where: str) -> list[Hop]:
    """Return the hops of a ProxyJump, outermost first; an empty list for "none".

    Raises:
        UserError: the text is not of the form [user@]host[:port],...
    """
    if text.lower() in ("", "none"):
        return []
    found = [_read_hop(part, f"{where}: ProxyJump {shown(text)}") for part in text.split(",")]
    for hop in found[1:]:
        hop.is_direct = True
    return found


def _read_hop(text: str, where: str) -> Hop:
    match = _HOP.fullmatch(text)
    port = read_port(match[4]) if match and match[4] else 0
    if match is None or (match[4] and not port) or (match[5] and not match[1]):
        raise UserError(f"{where}: {shown(text)} is no hop")
    return Hop(match[3].strip("[]"), match[2] or "", port)


def route_of(text: str, *, is_jump: bool, target: Target, where: str, depth: int = 0) -> list[Hop]:
    """Return the route of a ProxyJump or ProxyCommand, outermost hop first.

    Raises:
        UserError: the value is no route over ssh servers; names value and place.
    """
    if text.lower() == "none":
        return []
    if is_jump:
        return _jumps_to(text, target, where)
    place = f"{where}: ProxyCommand {shown(text)}"
    if depth > DEEPEST_COMMAND or len(text) > LONGEST_COMMAND:
        raise UserError(f"{place}: too long, or nested too deeply")
    words = _words_of_command(fill_tokens(text, target.tokens(), where), place)
    if words[0].rpartition("/")[2] != "ssh":
        raise UserError(
            f"{place}: only `ssh -W %h:%p` and ProxyJump have an equivalent, {shown(words[0])} has "
            "none"
        )
    line = read_command_line(words[1:], place)
    if len(line.words) != 1:
        raise UserError(f"{place}: expected one host, without a command for the host")
    wanted = (f"{target.hostname}:{target.port}", f"[{target.hostname}]:{target.port}")
    if line.forward not in wanted:
        forward = f"-W {shown(line.forward)}" if line.forward else "no -W"
        raise UserError(f"{place}: expected -W %h:%p, which is {wanted[0]}; found {forward}")
    return hops_of_command_line(line, line.words[0], place, depth + 1)


def _jumps_to(text: str, target: Target, where: str) -> list[Hop]:
    """Return the hops of a ProxyJump to a machine, which ssh reads before it fills in tokens.

    Raises:
        UserError: the text is no list of hops, or the last hop is the machine itself.
    """
    read_hops(text, where)
    hops = read_hops(fill_tokens(text, target.tokens(), where), where)
    user = target.tokens()["r"]
    for last in hops[-1:]:
        is_same = last.host.lower() == target.hostname.lower() and last.user in ("", user)
        if is_same and (last.port or 22) == target.port:
            raise UserError(f"{where}: ProxyJump {shown(text)}: the last hop is the host itself")
    return hops


def hops_of_command_line(line: CommandLine, host: str, where: str, depth: int) -> list[Hop]:
    """Return the hop that a command line names, after all hops before.

    Raises:
        UserError: user, port or route are invalid.
    """
    named = _read_hop(host, where)
    text = line.settings.get("port", "")
    port = read_port(text) if text else 0
    if text and not port:
        raise UserError(f"{where}: port {shown(text)} is no number from 1 to 65535")
    hop = Hop(
        named.host,
        line.settings.get("user", "") or named.user,
        port or named.port,
        line.settings.get("hostname", ""),
        is_direct=not line.uses_config or bool(line.proxy()),
        uses_config=line.uses_config,
    )
    alias = line.settings.get("hostkeyalias", "")
    target = Target(hop.host, hop.address or hop.host, hop.port or 22, hop.user, alias)
    hop.identities = line.identities(target, where)
    if not line.proxy():
        return [hop]
    before = route_of(line.proxy(), is_jump=line.is_jump, target=target, where=where, depth=depth)
    return [*before, hop]


def read_command_line(words: Sequence[str], where: str) -> CommandLine:
    """Return the content of a command line of ssh; options may stand after the host.

    Raises:
        UserError: an option decides on the connection and has no equivalent here.
    """
    line = CommandLine()
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        if word == "--":
            line.words += reversed(rest)
            break
        if not word.startswith("-") or word == "-":
            line.words.append(word)
            continue
        for at, flag in enumerate(word[1:], start=1):
            if flag not in _TAKE_A_VALUE:
                if flag not in "qTxanN":
                    line.ignored.append(f"-{flag}")
                continue
            value = word[at + 1 :]
            if not value and not rest:
                raise UserError(f"{where}: -{flag} lacks a value")
            _take_flag(line, flag, value or rest.pop(), where)
            break
    return line


def _take_flag(line: CommandLine, flag: str, value: str, where: str) -> None:
    if flag == "W":
        line.forward = value
    elif flag == "o":
        _take_option(line, value, where)
    elif flag == "J":
        _take_proxy(line, "proxyjump", value)
    elif flag == "i":
        _take_identity(line, value)
    elif flag in "lp":
        line.settings.setdefault({"l": "user", "p": "port"}[flag], value)
    elif flag == "F" and value in ("none", "/dev/null"):
        line.uses_config = False
    elif flag == "F":
        raise UserError(
            f"{where}: -F {shown(value)}: another configuration decides; "
            "import that file with `inventory import ssh-config`"
        )
    elif flag in _DECIDE:
        raise UserError(f"{where}: -{flag} {shown(value)} has no equivalent")
    else:
        line.ignored.append(f"-{flag} {value}")


def _take_option(line: CommandLine, text: str, where: str) -> None:
    match = re.fullmatch(r"\s*(\w+)(?:\s*=\s*|\s+)(.*?)\s*", text, re.DOTALL)
    if match is None:
        raise UserError(f"{where}: -o {shown(text)}: expected keyword=value")
    key, value = match[1].lower(), match[2]
    if key in ("proxyjump", "proxycommand"):
        _take_proxy(line, key, value.replace('"', "") if key == "proxyjump" else value)
        return
    words = split_words(value)
    if key in ("user", "port", "hostname", "identityfile"):
        if words is None or len(words) != 1:
            raise UserError(f"{where}: -o {shown(text)}: expected one value")
        if key == "identityfile":
            _take_identity(line, words[0])
        else:
            line.settings.setdefault(key, words[0])
    elif key in _UNSUPPORTED:
        raise UserError(f"{where}: -o {shown(text)} has no equivalent")
    else:
        if key == "hostkeyalias" and words:
            line.settings.setdefault(key, words[0])
        line.ignored.append(f"-o {text}")


def _take_proxy(line: CommandLine, key: str, value: str) -> None:
    if "proxy" not in line.settings:
        line.settings["proxy"] = value
        line.is_jump = key == "proxyjump"


def _take_identity(line: CommandLine, value: str) -> None:
    if value.lower() != "none":
        line.keys.append(value)


def _words_of_command(text: str, where: str) -> list[str]:
    """Return the words that a shell would pass; redirections of errors are dropped.

    Raises:
        UserError: the text is more than a single command.
    """
    for _ in range(2):
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            words = list(lexer)
        except ValueError:
            raise UserError(f"{where}: a quote is not closed") from None
        comment = next((at for at, word in enumerate(words) if word.startswith("#")), len(words))
        words = words[:comment]
        if len(words) != 1 or " " not in words[0]:
            break
        text = words[0]  # a command that is quoted as a whole
    if words[-3:] in (["2", ">", "/dev/null"], ["2", ">>", "/dev/null"]):
        words = words[:-3]
    if words[:1] == ["exec"]:
        words = words[1:]
    if not words:
        raise UserError(f"{where}: no command")
    if any(set(word) <= set("();<>|&") for word in words) or any("`" in word for word in words):
        raise UserError(f"{where}: more than a single command of ssh")
    return [_with_variables(word, os.environ, where) for word in words]


def _with_variables(word: str, variables: Mapping[str, str], where: str) -> str:
    def fill(found: "re.Match[str]") -> str:
        name = found[1] or found[2]
        if name not in variables:
            raise UserError(f"{where}: {shown(found[0])} is not set")
        return variables[name]

    filled = _VARIABLE.sub(fill, word)
    if "$(" in word:
        raise UserError(f"{where}: more than a single command of ssh")
    return filled
