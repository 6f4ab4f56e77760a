"""Command lines for machines that only take text: SSH has no argument list.

What is sent is read by the login shell of the other side. `command_line` is the one place where
a list becomes such a text, so that no name, path or option in it can mean anything but itself.
"""

import shlex
from collections.abc import Sequence

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown

LONGEST_LINE_BYTES = 128 * 1024  # what Linux takes as one argument: the shell gets it as one


def command_line(command: Sequence[str]) -> str:
    """A command as the text that a POSIX shell reads back as exactly these words.

    Whoever puts names after options puts `--` between them.

    Raises:
        UserError: a word has a NUL in it or cannot be encoded, which no command line can
            carry, or all of them together are too long.
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
    """A path for SFTP: absolute, or below the home folder when it begins with `~/`.

    Raises:
        UserError: it is neither, climbs with `..`, or has characters that no path of ours has.
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
