"""The judge of a random program: every publication is received once, in order, unchanged."""

from brokerd.model.identity import SourceId
from brokerd.model.losses import is_stream_marker
from tests.helpers.user_programs.attributes import PREDICATES, shape_of
from tests.helpers.user_programs.history import Gap, History, Published, Receipt, SubscriptionRecord


def judge(
    record: SubscriptionRecord,
    history: History,
    *,
    by_kind: bool,
    may_repeat: bool,
    may_lose: bool,
    may_have_gaps: bool = False,
    has_storages: bool = False,
) -> list[str]:
    """Return the violations of a subscription: see the texts.

    Args:
        by_kind: the protocol keeps the order of a source within a kind only.
        may_repeat: the application may receive a publication again, marked.
        may_lose: publications may be missing.
        may_have_gaps: a broker has lost its disk. Gaps stand for what is missing, and a publisher
            may have to publish again.
        has_storages: a gap in positions stands for publications of clients of any broker.
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
        may_come_again = may_have_gaps or (receipt.redelivered and may_repeat)
        if receipt.name in seen and not may_come_again:
            found.append(f"duplicate {receipt.name}")
        seen[receipt.name] = None
        if receipt.redelivered or may_have_gaps:
            continue
        kind = str(published.attributes["kind"]) if by_kind else ""
        stream = receipt.source, kind, receipt.task
        if last.get(stream, 0) >= receipt.sequence:
            found.append(f"order {receipt.name} after {last[stream]}")
        last[stream] = receipt.sequence
    if not may_lose:
        found += _missing(record, history, seen, has_storages=has_storages)
    return found if may_have_gaps else found + [f"gap {gap.announced}" for gap in record.gaps]


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


def _missing(
    record: SubscriptionRecord, history: History, seen: dict[str, None], *, has_storages: bool
) -> list[str]:
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
        and not any(_covers(gap, published, has_storages=has_storages) for gap in record.gaps)
    ]
    return [f"missing {len(missing)}: {', '.join(missing[:5])}"] if missing else []


def _covers(gap: Gap, published: Published, *, has_storages: bool) -> bool:
    """Return True if a gap stands for a publication.

    A gap without a source stands for any of its broker; if that is a storage, for any.
    A publication with a source that its publisher never had is in any gap.
    """
    if published.call > gap.call:
        return False
    stream, source = gap.announced.source, published.source
    if source is None or is_stream_marker(stream) or not stream.incarnation:
        return source is None or has_storages or stream.broker == source.broker
    return stream == source and gap.announced.first <= published.sequence <= gap.announced.last
