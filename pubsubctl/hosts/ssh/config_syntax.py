"""Words of OpenSSH configurations, and quotes of command lines for SSH.

The words are quotes, patterns, criteria of Match, tokens and variables. SSH takes text instead of
an argument list, and the login shell of the host parses the text. `command_line` is the only
function that turns a list into such a text, so every name, path and option stays literal.
"""

import getpass
import hashlib
import ipaddress
import os
import re
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown

_PLAIN_CRITERIA: Final = ("all", "canonical", "final")
DECIDABLE: Final = (
    *_PLAIN_CRITERIA,
    *("host", "originalhost", "user", "localuser", "tagged"),
)
"""Criteria of Match that depend on the configuration and the local user only."""
_CRITERIA: Final = (
    *DECIDABLE,
    *("exec", "localnetwork", "version", "sessiontype", "command"),
)
_CRITERION = re.compile(r"(!?)([A-Za-z]+)")
_ARGUMENT = re.compile(r"(?:\s*=\s*|\s+)(?:\"([^\"]*)\"|([^\s\"=#]\S*))")
_TOKEN = re.compile(r"%(.?)|\$\{([^}]*)\}", re.DOTALL)
_ESCAPED = ("'", '"', "\\")


def split_words(text: str) -> list[str] | None:
    """Return the arguments of a line without quotes and comment; None if a quote is not closed."""
    words: list[str] = []
    at = 0
    while at < len(text):
        if text[at] in " \t":
            at += 1
            continue
        if text[at] == "#":
            break
        word, quote = "", ""
        while at < len(text):
            char, after = text[at], text[at + 1 : at + 2]
            if char == "\\" and after and (after in _ESCAPED or (not quote and after == " ")):
                word += after
                at += 1
            elif not quote and char in " \t":
                break
            elif not quote and char in "\"'":
                quote = char
            elif char == quote:
                quote = ""
            else:
                word += char
            at += 1
        if quote:
            return None
        words.append(word)
    return words


def split_criteria(text: str) -> Iterator[tuple[bool, str, str]]:
    """Yield the criteria of a Match line: negation, name in lower case, argument.

    Raises:
        ValueError: a criterion is unknown or lacks an argument.
    """
    at = count = 0
    while at < len(text):
        if text[at] in " \t":
            at += 1
            continue
        if text[at] == "#":
            return
        match = _CRITERION.match(text, at)
        name = match[2].lower() if match else ""
        if match is None or name not in (*_PLAIN_CRITERIA, *_CRITERIA):
            raise ValueError(f"{shown(text[at:])} is no criterion of Match")
        at = match.end()
        if name == "all" and (count > 1 or not re.fullmatch(r"\s*(#.*)?", text[at:])):
            raise ValueError("Match all is combined with other criteria")
        count += 1
        argument = ""
        if name not in _PLAIN_CRITERIA:
            value = _ARGUMENT.match(text, at)
            if value is None:
                raise ValueError(f"Match {name} lacks an argument")
            argument = value[1] if value[1] is not None else value[2]
            at = value.end()
        yield match[1] == "!", name, argument


def matches(text: str, pattern: str) -> bool:
    """Return True if a pattern with * and ? matches all of the text, in quadratic time at most."""
    at = in_pattern = 0
    star, resume = -1, 0
    while at < len(text):
        if in_pattern < len(pattern) and pattern[in_pattern] == "*":
            star, resume = in_pattern, at
            in_pattern += 1
        elif in_pattern < len(pattern) and pattern[in_pattern] in ("?", text[at]):
            in_pattern += 1
            at += 1
        elif star >= 0:
            resume += 1
            in_pattern, at = star + 1, resume
        else:
            return False
    return not pattern[in_pattern:].strip("*")


def matches_list(text: str, patterns: str, *, lower: bool = True) -> bool:
    """Return True if any pattern matches and no negated pattern does; patterns have commas."""
    found = False
    for pattern in (patterns.lower() if lower else patterns).split(","):
        if pattern.startswith("!"):
            if matches(text, pattern[1:]):
                return False
        elif matches(text, pattern):
            found = True
    return found


def fill_tokens(text: str, tokens: Mapping[str, str], where: str, *, is_path: bool = False) -> str:
    """Return the text with %-tokens replaced; in a path also ~ and ${VARIABLES}.

    A path below the home folder begins with ~/, which is the same on each machine.

    Raises:
        UserError: a token is unknown, or a variable is not set.
    """

    def fill(found: "re.Match[str]") -> str:
        if found[2] is not None:
            if not is_path:
                return found[0]
            if found[2] not in os.environ:
                raise UserError(f"{where}: {shown(text)}: {shown(found[0])} is not set")
            return os.environ[found[2]]
        if found[1] == "%":
            return "%"
        if found[1] not in tokens:
            raise UserError(f"{where}: {shown(text)}: {shown(found[0])} cannot be filled in")
        return tokens[found[1]]

    if not is_path:
        return _TOKEN.sub(fill, text)
    begin = os.path.expanduser(re.match(r"~[^/%$]*|", text)[0])  # type: ignore[index]
    rest = text[re.match(r"~[^/%$]*|", text).end() :]  # type: ignore[union-attr]
    return abbreviate_home(begin + _TOKEN.sub(fill, rest))


def abbreviate_home(path: str) -> str:
    """Return a path with ~ in the place of the user's home folder."""
    home = str(Path.home())
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path


def local_user() -> str:
    """Return the login on this machine."""
    return getpass.getuser()


def local_tokens() -> dict[str, str]:
    """Return the tokens of this machine and user."""
    host = socket.gethostname()
    return {
        "d": str(Path.home()),
        "i": str(os.getuid()),
        "l": host,
        "L": host.split(".")[0],
        "u": local_user(),
    }


def connection_tokens(target: "Target", jump: str = "") -> dict[str, str]:
    """Return the tokens of a connection, for paths and for the commands of Match.

    Args:
        jump: the last host of ProxyJump. Behind a jump there is no %C: OpenSSH 9.6 began to hash
            the jump as well.
    """
    tokens = {**local_tokens(), **target.tokens(), "j": jump}
    if not jump:
        text = "".join(tokens[key] for key in "lhpr")
        tokens["C"] = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return tokens


def read_port(text: str) -> int:
    """Return a port from a number or the name of a service; 0 if it is neither."""
    if re.fullmatch(r"\+?\d{1,20}", text):
        return int(text) if int(text) < 1 << 16 else 0
    try:
        return socket.getservbyname(text, "tcp")
    except OSError:
        return 0


@dataclass(frozen=True)
class Target:
    """The machine behind a route, for the tokens of the route.

    Attributes:
        alias: the name on the command line.
        key_alias: the value of HostKeyAlias; "" if unset.
    """

    alias: str
    hostname: str
    port: int = 22
    user: str = ""
    key_alias: str = ""

    def tokens(self) -> dict[str, str]:
        """Return the tokens of ProxyJump and ProxyCommand."""
        return {
            "h": self.hostname,
            "k": self.key_alias or self.alias,
            "n": self.alias,
            "p": str(self.port),
            "r": self.user or local_user(),
        }


def is_address(text: str) -> bool:
    """Return True for an IP address, with or without a scope."""
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


LONGEST_LINE_BYTES = 128 * 1024  # Linux's limit for an argument, which the shell receives


def command_line(command: Sequence[str]) -> str:
    """Return a command as text that a POSIX shell parses back into exactly these words.

    A caller that puts names after options puts `--` between both.

    Raises:
        UserError: a word has a NUL or cannot be encoded, or the whole line is too long.
    """
    assert not isinstance(command, str), "a command is a list of words"
    assert command, "a command has at least one word"
    for word in command:
        if "\0" in word:
            raise UserError(f"{shown(word)}: a word of a command must not contain NUL")
    line = " ".join(shlex.quote(word) for word in command)
    try:
        length = len(line.encode())
    except UnicodeEncodeError:
        raise UserError(f"{shown(line)}: a command line is UTF-8") from None
    if length > LONGEST_LINE_BYTES - 1:
        raise UserError(
            f"{shown(command[0])} with {len(command) - 1} arguments: {length} bytes; a command "
            f"line has at most {LONGEST_LINE_BYTES - 1}"
        )
    return line


def remote_path(path: str) -> str:
    """Return a path for SFTP: absolute, or below the home folder after `~/`.

    Raises:
        UserError: the path is neither, has a `..`, or has characters that no path of ours has.
    """
    inside = path.removeprefix("~/")
    problem = None
    if inside == path and not path.startswith("/"):
        problem = "is neither absolute nor below ~/"
    elif ".." in path.split("/"):
        problem = "has '..' in it"
    elif not path.isprintable():
        problem = "has characters that cannot be printed"
    elif len(path.encode(errors="surrogatepass")) > 4095:
        problem = "is longer than a path can be"
    elif not inside.strip("/"):
        problem = "names no file"
    if problem:
        raise UserError(f"{shown(path)}: {problem}")
    return inside
