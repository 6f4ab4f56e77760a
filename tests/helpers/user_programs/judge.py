"""The judge of a random program: every publication is received once, in order, unchanged."""

from brokerd.model.identity import SourceId
from tests.helpers.user_programs.attributes import PREDICATES, shape_of
from tests.helpers.user_programs.history import History, Receipt, SubscriptionRecord


def judge(
    record: SubscriptionRecord,
    history: History,
    *,
    by_kind: bool,
    may_repeat: bool,
    may_lose: bool,
) -> list[str]:
    """Return the violations of a subscription: see the texts.

    Args:
        by_kind: the protocol keeps the order of a source within a kind only.
        may_repeat: the application may receive a publication again, marked.
        may_lose: publications may be missing.
    """
    found = [*record.faults]
    matches = PREDICATES[record.predicate]
    seen: dict[str, None] = {}
    last: dict[tuple[SourceId, str, int], int] = {}
    for receipt in record.receipts:
        published = history.published.get(receipt.name)
        if published is None:
            found.append(f"phantom {receipt.name}")
            continue
        found += _differences(receipt, history)
        if not matches(published.attributes):
            found.append(f"no match {receipt.name}")
        if receipt.name in seen and not (receipt.redelivered and may_repeat):
            found.append(f"duplicate {receipt.name}")
        seen[receipt.name] = None
        if receipt.redelivered:
            continue
        kind = str(published.attributes["kind"]) if by_kind else ""
        stream = receipt.source, kind, receipt.task
        if last.get(stream, 0) >= receipt.sequence:
            found.append(f"order {receipt.name} after {last[stream]}")
        last[stream] = receipt.sequence
    if not may_lose:
        found += _missing(record, history, seen)
    return found + [f"gap {gap}" for gap in record.gaps]


def _differences(receipt: Receipt, history: History) -> list[str]:
    """Return the differences of a publication from the publish call."""
    found: list[str] = []
    published = history.published[receipt.name]
    if published.fate == "cancelled":
        found.append(f"cancelled {receipt.name}")
    if published.fate == "published" and published.sequence != receipt.sequence:
        found.append(f"number {receipt.name}: {receipt.sequence}, not {published.sequence}")
    if shape_of(published.attributes) != shape_of(receipt.attributes):
        found.append(f"attributes {receipt.name}: {receipt.attributes}")
    if published.size_bytes != receipt.size_bytes:
        found.append(f"size {receipt.name}: {receipt.size_bytes} of {published.size_bytes} bytes")
    return found


def _missing(record: SubscriptionRecord, history: History, seen: dict[str, None]) -> list[str]:
    if record.started is None or record.ended is not None:
        return []
    matches = PREDICATES[record.predicate]
    missing = [
        name
        for name, published in history.published.items()
        if published.call > record.started
        and published.fate == "published"
        and name not in seen
        and matches(published.attributes)
    ]
    return [f"missing {len(missing)}: {', '.join(missing[:5])}"] if missing else []
