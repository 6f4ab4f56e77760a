"""The ledger's file: counts per version of the code, with safe concurrent updates."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brokerd.files import lock_folder, write_whole
from brokerd.simulator.search.ledger import Campaign, LedgerError, check_ledger, empty_ledger
from pubsubctl.errors import UserError


def campaign_of(
    protocol: str,
    row: str = "",
    mutants: frozenset[str] = frozenset(),
    settings: tuple[str, ...] = (),
    profile: str = "",
) -> Campaign:
    """Return the campaign with the present version of the code; call before the run."""
    from bench.run.run_directory import program_facts

    facts = program_facts()
    return Campaign(
        commit=facts["git_commit"] or "",
        dirty=facts["git_dirty"] is not False,
        protocol=protocol,
        row=row,
        mutants=tuple(sorted(mutants)),
        settings=settings,
        profile=profile,
    )


def read_ledger(path: Path | None) -> dict[str, Any]:
    """Return the ledger in a file; an empty ledger without a file.

    Raises:
        UserError: the file is invalid or cannot be read; names file and problem.
    """
    if path is None or not path.exists():
        return empty_ledger()
    try:
        return check_ledger(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, LedgerError) as error:
        raise UserError(f"{path}: no ledger: {error}") from None


def update_ledger(
    path: Path | None, add: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Return the ledger after `add`, written to the file if there is a file.

    The file is read again for the update: another command may have counted in the meantime. A lock
    serialises updates, and a reader never sees half a file.

    Raises:
        UserError: the file is invalid or cannot be written; names file and problem.
    """
    if path is None:
        return add(empty_ledger())
    try:
        with lock_folder(path.parent):
            document = add(read_ledger(path))
            write_whole(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    return document
