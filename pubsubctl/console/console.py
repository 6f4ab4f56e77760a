"""Console output: results on stdout, progress and messages on stderr.

A command returns a `Result`, which is printed once, at the end, as text or as a JSON document. A
running command reports actions, warnings and progress through the `Console`.
"""

import codecs
import io
import json
import os
import re
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, TextIO

from pubsubctl.console.progress_text import cut, estimate_left, fit_numbers, share_of, short
from pubsubctl.console.waits import WaitTimes, key_of
from pubsubctl.errors import PubsubctlError, combine_statuses

Style = Literal["good", "bad", "doubtful", "dim"]
ColorChoice = Literal["auto", "always", "never"]
PLAIN_LINE_EVERY_NS = 1_000_000_000
LOGGED_LINE_EVERY_NS = 60 * PLAIN_LINE_EVERY_NS
LONGEST_MESSAGE = 2_000
_STYLES: Mapping[Style, str] = {"good": "32", "bad": "1;31", "doubtful": "33", "dim": "2"}
_OWN_COLOR = re.compile(rf"(\x1b\[(?:0|{'|'.join(_STYLES.values())})m)")
OUTPUT: Final = "standard output"
_BAR_WIDTH: Final = 12
_NARROW: Final = 100
"""The width of a terminal below which the bar has half of its width."""

_JSON_ESCAPES: Final = "pubsubctl.json_escapes"
"""Name of the handler of characters without an encoding."""


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Return JSON's escapes of characters that an output cannot encode.

    Locales without UTF-8 have no `≤`, and a file name of other bytes has no encoding anywhere.
    """
    assert isinstance(error, UnicodeEncodeError), error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(_JSON_ESCAPES, _escape)


class StandardOutput(io.TextIOWrapper):
    """Standard output; errors of failed writes name it as their file.

    Attributes:
        has_failed: a write failed. Its error was raised, and what is buffered cannot be written.
    """

    has_failed = False

    @classmethod
    def replacing(cls, stream: TextIO) -> Self:
        """Return an output with the buffer and the encoding of a stream, which must stay open.

        A character that the encoding lacks is written as an escape of JSON.
        """
        is_by_line = bool(getattr(stream, "line_buffering", False))
        return cls(stream.buffer, stream.encoding, _JSON_ESCAPES, None, is_by_line)

    def write(self, text: str, /) -> int:
        """Write a text; see `TextIOWrapper.write`."""
        with self._named_errors():
            return super().write(text)

    def flush(self) -> None:
        """Write buffered text; see `TextIOWrapper.flush`."""
        with self._named_errors():
            super().flush()

    def flush_rest(self) -> None:
        """Write buffered text, unless a write has failed: each flush would repeat its error."""
        if not self.has_failed:
            self.flush()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = OUTPUT
            self.has_failed = True
            raise


class OutputClosed(Exception):
    """The reader of the result closed standard output."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a command.

    Attributes:
        document: the whole result, for --json; has a `schema` field.
        text: the same result for people; "" for no output.
        because: the reasons for an exit status other than 0; also added to the document.
        failures: every other failure; the rest of the work was done despite the failure.
    """

    document: Mapping[str, Any]
    text: str = ""
    because: tuple[PubsubctlError, ...] = ()
    failures: tuple[Exception, ...] = ()

    @property
    def exit_status(self) -> int:
        return combine_statuses(error.exit_status for error in self.because)


class Progress:
    """The progress of a long command: a live bar on a terminal, plain lines elsewhere.

    A plain line is written for a message, at the start of a phase, and otherwise at most once a
    second, in a pipe or a file once a minute. The live bar has the share that is done, and the time
    left: by a count such as 3/12 among the numbers of the phase, or by the expected duration.
    """

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._live: Any = None
        self._task: Any = None
        self._phase = ""
        self._last_line_ns = 0
        self._started_ns = 0
        self._numbers: dict[str, Any] = {}

    def phase(self, name: str, expected_s: float | None = None) -> None:
        """Begin a phase.

        Args:
            expected_s: its duration in seconds; None for the duration of earlier commands.
        """
        self._end_phase()
        self._phase, self._numbers, now_ns = name, {}, time.monotonic_ns()
        self._last_line_ns = 0 if self._console.is_watched else now_ns
        self._started_ns = 0 if expected_s is not None else now_ns
        waits, key = self._console.waits, key_of(name)
        if self._live is None:
            known_s = waits.learnt.get(key) if expected_s is None else expected_s
            expected = f" (about {known_s:.0f} s)" if known_s and known_s >= 1 else ""
            self._console.print(f"{name}{expected}")
            return
        if self._task is not None:
            self._live.update(self._task, visible=False)
        usual_s = waits.learnt.get(key) if expected_s is None else expected_s
        self._task = self._live.add_task(name, total=None, numbers={}, usual_s=usual_s, share=None)

    def update(self, numbers: Mapping[str, Any]) -> None:
        """Update the phase's numbers; a later value replaces an earlier value of a name.

        An empty text removes a number.
        """
        self._numbers.update(numbers)
        shown = {name: value for name, value in self._numbers.items() if value != ""}
        now_ns = time.monotonic_ns()
        every_ns = PLAIN_LINE_EVERY_NS if self._console.is_watched else LOGGED_LINE_EVERY_NS
        if self._live is not None and self._task is not None:
            self._live.update(self._task, numbers=shown, share=share_of(self._numbers))
        elif now_ns - self._last_line_ns >= every_ns:
            self._last_line_ns = now_ns
            text = " · ".join(f"{name} {short(value)}" for name, value in shown.items())
            self._console.print(f"  {self._phase}: {text}")

    def print(self, text: str) -> None:
        """Write a permanent line."""
        self._console.print(text)

    def _end_phase(self) -> None:
        """Measure the phase, unless its duration was given."""
        if self._phase and self._started_ns:
            duration_s = (time.monotonic_ns() - self._started_ns) / 1e9
            self._console.waits.measure(key_of(self._phase), duration_s)
        self._phase = ""


class Console:
    """The two output streams of a command.

    Attributes:
        results: the folder of runs whose index has the durations of waits; None for no such folder.

    Args:
        stdout, stderr: output streams; the streams of the process by default.
        as_json: one JSON document instead of text.
        quiet: write only errors to stderr.
        verbose: the number of -v options.
        color: the --color option.
        progress: False for no animation.
        environment: the source of NO_COLOR, which also stops the animation, and related variables.
    """

    def __init__(
        self,
        *,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        as_json: bool = False,
        quiet: bool = False,
        verbose: int = 0,
        color: ColorChoice = "auto",
        progress: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose
        environment = os.environ if environment is None else environment
        self._out_colored = _colorize(self._stdout, color, environment)
        self._err_colored = _colorize(self._stderr, color, environment)
        self._animated = (
            progress
            and not quiet
            and self._stderr.isatty()
            and environment.get("TERM") != "dumb"
            and not environment.get("CI")
            and not environment.get("NO_COLOR")
        )
        self._may_move = progress and environment.get("TERM") != "dumb"
        self._live: Any = None
        self._bars: Any = None
        self._warned: list[str] = []
        self._waits: WaitTimes | None = None
        self.results: Path | None = None

    @property
    def waits(self) -> WaitTimes:
        """The durations of waits: those in the folder of runs, if there is one."""
        if self._waits is None:
            self._waits = WaitTimes() if self.results is None else WaitTimes.read(self.results)
        return self._waits

    @property
    def unicode(self) -> bool:
        """Return True if standard output can encode more than ASCII."""
        return (self._stdout.encoding or "").lower().replace("-", "") == "utf8"

    @property
    def is_screen(self) -> bool:
        """Return True if standard output is a terminal that supports cursor movement."""
        return self._stdout.isatty() and not self.as_json and self._may_move

    @property
    def is_watched(self) -> bool:
        """Return True if the progress is written to a terminal."""
        return self._stderr.isatty()

    @property
    def is_colored(self) -> bool:
        """Return True if standard output is coloured."""
        return self._out_colored

    def line(self, text: str) -> None:
        """Write a line of a result without an end, for example of a followed log.

        Raises:
            OutputClosed: standard output was closed at the other end.
        """
        try:
            self._stdout.write(text + "\n")
            self._stdout.flush()
        except BrokenPipeError:
            # A separate exception, because the option parser turns BrokenPipeError into an exit
            # status.
            raise OutputClosed from None

    @property
    def is_read_by_people(self) -> bool:
        """True if standard output is a terminal."""
        return self._stdout.isatty()

    @property
    def prints_objects(self) -> bool:
        """True if a continuous command prints a JSON object per line: --json, or no terminal."""
        return self.as_json or not self.is_read_by_people

    def print(self, text: str) -> None:
        """Report a step of the command, unless quiet."""
        if not self.quiet:
            self._write_error_line(visible(text))

    def detail(self, text: str) -> None:
        """Report a detail, if -v was given."""
        if self.verbose and not self.quiet:
            self._write_error_line(visible(text))

    def warn(self, text: str) -> None:
        """Write a warning that does not stop the command."""
        self._write_error_line(self._paint("warning: ", "33") + _sanitize(text))

    def warn_once(self, text: str) -> None:
        """Write a warning unless this command has written it, for a run of many alike."""
        if text not in self._warned:
            self._warned.append(text)
            self.warn(text)

    def error(self, text: str) -> None:
        """Write an error, even when quiet."""
        for place, line in enumerate(text.split("\n")):
            start = self._paint("error: ", "1;31") if place == 0 else "       "
            self._write_error_line(start + _sanitize(line))

    def result(self, result: Result) -> None:
        """Print the result of a command; called once per command."""
        if self.as_json:
            document = dict(result.document)
            assert "schema" in document, "a document needs a schema"
            document["exit_status"] = result.exit_status
            if result.because:
                document["because"] = [
                    {"kind": type(error).__name__, "exit_status": error.exit_status, "text": text}
                    for error in result.because
                    for text in error.problems
                ]
            json.dump(document, self._stdout, ensure_ascii=False, indent=2, default=str)
            self._stdout.write("\n")
        elif result.text:
            lines = result.text.rstrip("\n").split("\n")
            self._stdout.write("".join(f"{_with_own_colors(line)}\n" for line in lines))
        self._stdout.flush()

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Yield the progress of the block, animated if the terminal allows animation."""
        progress = Progress(self)
        if not self._animated:
            yield progress
            self._keep_waits(progress)
            return
        bars = self._make_bars()
        with bars:
            progress._live, self._live, self._bars = bars, bars.console, bars
            try:
                yield progress
            finally:
                progress._live = self._live = self._bars = None
        self._keep_waits(progress)

    def _keep_waits(self, progress: Progress) -> None:
        """Write the waits of a block that ended without an error."""
        progress._end_phase()
        if self.results is not None:
            self.waits.write(self.results)

    def _make_bars(self) -> Any:
        """Return the live display: name, share, elapsed time, time left, and numbers."""
        from rich.console import Console as RichConsole
        from rich.progress import Progress as RichProgress
        from rich.progress import ProgressColumn, SpinnerColumn
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        screen = RichConsole(
            file=self._stderr, no_color=not self._err_colored, highlight=False, markup=False
        )

        bar_width = _BAR_WIDTH if screen.width >= _NARROW else _BAR_WIDTH // 2

        class NameColumn(ProgressColumn):
            """The name of the wait, in at most half of the width."""

            def render(self, task: Any) -> Text:
                return Text(cut(task.description, screen.width // 2))

        class ShareColumn(ProgressColumn):
            """A bar with the share of the wait that is done."""

            def render(self, task: Any) -> ProgressBar:
                fields = task.fields
                share, _ = estimate_left(task.elapsed or 0.0, fields["usual_s"], fields["share"])
                return ProgressBar(
                    total=1.0, completed=share or 0.0, width=bar_width, pulse=share is None
                )

        class LeftColumn(ProgressColumn):
            """Share, time left and numbers, in the width that the other columns leave."""

            def render(self, task: Any) -> Text:
                fields, elapsed_s = task.fields, task.elapsed or 0.0
                share, left = estimate_left(elapsed_s, fields["usual_s"], fields["share"])
                parts = [f"{share:.0%}"] if share is not None else []
                parts.append(left or f"{elapsed_s:.0f} s")
                others = min(len(task.description), screen.width // 2) + bar_width + 5
                return Text(fit_numbers(parts, fields["numbers"], screen.width - others))

        return RichProgress(
            SpinnerColumn("line"), NameColumn(), ShareColumn(), LeftColumn(),
            console=screen, transient=True,
        )  # fmt: skip

    def stop_animation(self) -> None:
        """Restore the terminal, for an exit without unwinding."""
        if self._bars is not None:
            self._bars.stop()

    def table(self, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
        """Return a table as text: aligned columns, no frames, no truncated cells."""
        lines = [list(header), *([_cell(value) for value in row] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([self.colorize(texts[0], "dim"), *texts[1:]])

    def grouped_table(
        self, header: Sequence[str], groups: Mapping[str, Sequence[Sequence[object]]]
    ) -> str:
        """Return a table with groups of rows below titles.

        A title is a line of its own, so that the columns of numbers fit on a terminal.
        """
        rows = [(f"  {row[0]}", *row[1:]) for group in groups.values() for row in group]
        head, *lines = self.table(header, rows).split("\n")
        found = [head]
        for title, group in groups.items():
            found += [_cell(title), *lines[: len(group)]]
            del lines[: len(group)]
        return "\n".join(found)

    def colorize(self, text: str, style: Style) -> str:
        """Return text for stdout in a colour that is never the only carrier of the meaning."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._out_colored else text

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._err_colored else text

    def _write_error_line(self, text: str) -> None:
        if self._live is not None:  # above the bars, not into them
            from rich.text import Text

            self._live.print(Text.from_ansi(text))
            return
        try:
            self._stderr.write(text + "\n")
            self._stderr.flush()
        except OSError:
            pass  # stderr was closed, which must not interrupt the command


def _colorize(stream: TextIO, choice: ColorChoice, environment: Mapping[str, str]) -> bool:
    if choice != "auto":
        return choice == "always"
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR") or environment.get("CLICOLOR_FORCE", "0") != "0":
        return True
    return stream.isatty() and environment.get("TERM") != "dumb" and not environment.get("CI")


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return text if text.isprintable() else ascii(text)[1:-1]


def visible(text: str) -> str:
    """Return a line with terminal control characters escaped."""
    if text.isprintable():
        return text
    return "".join(letter if _is_harmless(letter) else ascii(letter)[1:-1] for letter in text)


def _is_harmless(letter: str) -> bool:
    # Spaces of all widths are no printable letters, and steer nothing.
    return letter.isprintable() or letter == "\t" or unicodedata.category(letter) == "Zs"


def _sanitize(line: str) -> str:
    """Return a line of a message, bounded in length, with terminal control characters escaped."""
    more = len(line) - LONGEST_MESSAGE
    return (
        visible(line)
        if more <= 0
        else f"{visible(line[:LONGEST_MESSAGE])}… ({more:,} more characters)"
    )


def _with_own_colors(line: str) -> str:
    """Return a line of a result; escape every terminal control but the colours of `colored`."""
    if line.isprintable():
        return line
    return "".join(
        part if _OWN_COLOR.fullmatch(part) else visible(part) for part in _OWN_COLOR.split(line)
    )
