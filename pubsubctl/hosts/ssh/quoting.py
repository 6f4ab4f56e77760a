"""Command lines for SSH, which takes text instead of an argument list.

The login shell of the host parses the text. `command_line` is the only function that turns a list
into such a text, so every name, path and option stays literal.
"""

import shlex
from collections.abc import Sequence

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown

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
