"""Comparison of the programs of agents and brokers with the present program."""

from collections.abc import Mapping
from enum import StrEnum

from brokerd.runtime.program import UNVERSIONED_WIRE_VERSION, Program, own_program
from pubsubctl.errors import PreflightFailed

UPGRADE = "`pubsubctl deploy TOPOLOGY --rolling` replaces agents and brokers"
UPGRADE_AT_ONCE = (
    "`pubsubctl deploy TOPOLOGY --rolling --at-once` stops all of them together and starts them "
    "again, with what is durable"
)
EARLIER = "an earlier release, which reports no version"


class Age(StrEnum):
    """The age of a program relative to the present program."""

    SAME = "same"
    OTHER = "other"
    """The program takes the same commands."""
    EARLIER = "earlier"
    LATER = "later"


def age_of(program: Program | None) -> Age:
    """Return the age of a program; None stands for a release without program reports."""
    own = own_program()
    if program is None or program.commands_version < own.commands_version:
        return Age.EARLIER
    if program.commands_version > own.commands_version:
        return Age.LATER
    return Age.SAME if program == own else Age.OTHER


def describe(program: Program | None) -> str:
    """Return a program for people."""
    return EARLIER if program is None else str(program)


def wire_version_of(program: Program | None) -> int:
    """Return a broker's wire version."""
    return UNVERSIONED_WIRE_VERSION if program is None else program.wire_version


def agent_note(host: str, program: Program | None) -> str:
    """Return a line for people about an agent of another program; "" for the present program."""
    age = age_of(program)
    if age is Age.SAME:
        return ""
    text = f"host {host}: its agent runs {describe(program)}, this is {own_program()}; "
    if age is Age.LATER:
        return f"{text}{_later(program)}"
    return f"{text}{UPGRADE}"


def broker_note(broker: str, host: str, program: Program | None) -> str:
    """Return a line for people about a broker of another program; "" for the present program."""
    own = own_program()
    if program == own:
        return ""
    text = f"broker {broker} on {host} runs {describe(program)}, this is {own}; "
    if program is not None and age_of(program) is Age.LATER:
        return f"{text}{_later(program)}"
    return f"{text}{UPGRADE if wire_version_of(program) == own.wire_version else UPGRADE_AT_ONCE}"


def check_agents(programs: Mapping[str, Program | None], *, is_upgrade: bool = False) -> None:
    """Check that these agents, by host, take the commands of this program.

    Args:
        is_upgrade: agents of earlier programs are replaced before use.

    Raises:
        PreflightFailed: an agent does not; names each such agent with a remedy.
    """
    refused = [Age.LATER] if is_upgrade else [Age.EARLIER, Age.LATER]
    notes = [agent_note(host, each) for host, each in programs.items() if age_of(each) in refused]
    if notes:
        raise PreflightFailed(*notes)


def check_wire_versions(programs: Mapping[str, Program | None], *, at_once: bool) -> None:
    """Check that brokers, by name, may be replaced one after the other by this program.

    Raises:
        PreflightFailed: old brokers could have no sessions with brokers replaced earlier.
    """
    own = own_program().wire_version
    found: dict[int, list[str]] = {}
    for broker, program in programs.items():
        if (version := wire_version_of(program)) != own:
            found.setdefault(version, []).append(broker)
    if found and not at_once:
        rows = [f"wire version {each}: {', '.join(found[each])}" for each in sorted(found)]
        raise PreflightFailed(
            f"this program speaks wire version {own}, and brokers of two wire versions cannot have "
            "sessions with each other:",
            *rows,
            UPGRADE_AT_ONCE,
        )


def _later(program: Program | None) -> str:
    release = "" if program is None else f" {program.release}"
    return f"use pubsubctl{release} there, or `pubsubctl down` to stop what runs"
