"""Tests of state marks: the facts that a mark proves to the broker of a state folder."""

from dataclasses import replace

import pytest

from brokerd.sessions.messages import Farewell, StateMark
from brokerd.sessions.session import Accepted, SelfDescription, SessionTable, client_hello
from brokerd.sessions.state_marks import StateLedger, StateStart, StateWitness

KEY = b"k" * 32
NEW_KEY = b"n" * 32
NAMES = {0: "b0", 1: "b1", 2: "b2"}


def start(incarnation: int, commits: int = 0, groups: int = 0, salt: int = 0) -> StateStart:
    return StateStart(incarnation, bytes([incarnation, salt]) * 4, commits, groups)


def ledger(
    *starts: StateStart, lineage: int = 0, key: bytes = KEY, vouched: tuple[int, ...] = (1,)
) -> StateLedger:
    return StateLedger.from_starts(key, lineage, starts, vouched)


def mark(
    of: StateStart, commits: int, groups: int, lineage: int = 0, key: bytes = KEY
) -> StateMark:
    """Return the mark of a process with these counts since its start."""
    made = StateLedger.from_starts(key, lineage, [of], ())
    made.advance(commits, groups)
    return made.mark()


def test_a_folder_with_all_that_a_mark_counts_has_lost_nothing() -> None:
    now = ledger(start(1), start(2, 7, 9))
    assert now.loss(1, mark(start(1), 7, 9)) is None
    assert now.loss(1, now.mark()) is None


@pytest.mark.parametrize("commits, groups", [(8, 9), (7, 10), (0, 10)])
def test_a_folder_with_less_than_a_mark_counts_is_an_older_copy(commits: int, groups: int) -> None:
    now = ledger(start(1), start(2, 7, 9))
    loss = now.loss(1, mark(start(1), commits, groups))
    assert loss is not None
    assert "older copy" in loss


def test_writes_since_the_start_do_not_compensate_for_missing_ones() -> None:
    now = ledger(start(1), start(2, 7, 9))
    now.advance(100, 100)
    assert now.loss(1, mark(start(1), 8, 10)) is not None


def test_a_later_incarnation_has_run_elsewhere() -> None:
    loss = ledger(start(1), start(2)).loss(1, mark(start(3), 0, 0))
    assert loss is not None
    assert "incarnation 3 has run, and this is 2" in loss


def test_a_clone_of_the_same_incarnation_is_detected() -> None:
    loss = ledger(start(1), start(2)).loss(1, mark(start(2, salt=5), 0, 0))
    assert loss is not None
    assert "on a copy of this folder" in loss


def test_a_mark_with_a_wrong_seal_ends_no_broker_that_a_neighbour_has_vouched_for() -> None:
    forged = replace_mark(mark(start(1), 7, 9), groups=1 << 40)
    with pytest.raises(ValueError, match="wrong seal"):
        ledger(start(1), start(2, 7, 9)).loss(1, forged)


def replace_mark(found: StateMark, groups: int) -> StateMark:
    return found._replace(groups=groups)


def test_an_empty_folder_accepts_a_mark_of_another_key_as_proof_of_loss() -> None:
    loss = ledger(start(1), key=NEW_KEY, vouched=()).loss(1, mark(start(4), 50, 50))
    assert loss is not None
    assert "another state folder, which is lost" in loss


def test_marks_of_before_an_accepted_loss_prove_nothing() -> None:
    now = ledger(start(9), lineage=9, key=NEW_KEY)
    assert now.loss(1, mark(start(4), 50, 50)) is None
    older = ledger(start(1), start(2))
    loss = older.loss(1, mark(start(9), 0, 0, lineage=9))
    assert loss is not None
    assert "older than the loss that was accepted" in loss


def test_a_mark_of_a_start_that_is_not_on_record_any_more_proves_nothing() -> None:
    assert ledger(start(5), start(6)).loss(1, mark(start(1), 3, 3)) is None


def table(number: int, own: StateLedger) -> SessionTable:
    names = {n: NAMES[n] for n in NAMES}
    return SessionTable(
        SelfDescription(
            "p", "d", "t", NAMES[number], number, own.present.incarnation, names, ledger=own
        )
    )


def test_a_dialled_broker_returns_the_mark_that_ends_an_older_copy() -> None:
    """The dialled broker does not replace the mark by the copy's, whatever happens to its reply."""
    witness = table(1, ledger(start(1)))
    witness.witness.take(0, mark(start(1), 7, 9))
    for incarnation in (2, 3):
        starts = [start(1), *(start(n, 5, 5) for n in range(2, incarnation + 1))]
        copy = table(0, ledger(*starts))
        attempt = copy.open(1)
        assert attempt is not None
        decision = witness.accept(copy.hello(attempt))
        assert isinstance(decision, Accepted)
        assert copy.on_answer(attempt, decision.answer) is not None
        assert "older copy" in copy.loss
        assert decision.session is not None
        witness.close(decision.session)


def test_a_neighbour_with_an_earlier_incarnation_is_refused_with_the_proof() -> None:
    witness = table(1, ledger(start(1)))
    witness.witness.take(0, mark(start(3), 7, 9))
    copy = table(0, ledger(start(1), start(2, 5, 5)))
    attempt = copy.open(1)
    assert attempt is not None
    decision = witness.accept(copy.hello(attempt))
    assert isinstance(decision, Farewell)
    assert not witness.loss
    copy.on_refusal(1, decision)
    assert "incarnation 3 has run" in copy.loss


def test_an_invented_proof_ends_the_session_only() -> None:
    honest = table(0, ledger(start(1), start(2)))
    forged = replace_mark(mark(start(1), 7, 9), groups=1 << 40)
    assert "wrong seal" in (honest.on_state_advance(1, mark(start(1), 0, 0), forged) or "")
    assert not honest.loss


def test_a_witness_keeps_the_newest_mark() -> None:
    witness = StateWitness()
    newest = mark(start(2), 3, 3)
    for each in (mark(start(2), 1, 1), newest, mark(start(1), 9, 9)):
        witness.take(0, each)
    assert witness.marks == {0: newest}


# ---------------------------------------------------------------- each bound of a proof


def test_a_mark_has_the_counts_of_the_newest_start_and_later_writes() -> None:
    now = ledger(start(1, 1, 1), start(2, 7, 9))
    assert now.mark() == mark(start(2, 7, 9), 7, 9)
    now.advance(8, 5)
    assert now.mark() == mark(start(2), 8, 9)
    now.advance(2, 12)
    assert now.mark() == mark(start(2), 8, 12)


def test_a_folder_is_compared_with_the_start_that_followed_the_mark() -> None:
    now = ledger(start(1), start(2, 7, 9), start(3, 50, 50), start(4, 60, 60))
    assert now.loss(1, mark(start(1), 7, 9)) is None
    for commits, groups in ((8, 9), (7, 10)):
        assert now.loss(1, mark(start(1), commits, groups)) is not None
    assert now.loss(1, mark(start(2), 50, 50)) is None
    assert "1 commits and 0 groups" in str(now.loss(1, mark(start(2), 51, 40)))


def test_a_neighbour_that_vouched_for_a_folder_returns_no_mark_of_another_key() -> None:
    now = ledger(start(1), start(2), vouched=())
    assert now.loss(1, mark(start(1), 0, 0)) is None
    forged = mark(start(4), 50, 50, key=NEW_KEY)
    again = ledger(start(1), start(2), start(3), vouched=tuple(now.vouched))
    for each in (now, again):
        with pytest.raises(ValueError, match="wrong seal"):
            each.loss(1, forged)


def test_a_neighbour_that_vouches_for_an_empty_folder_hides_no_proof_of_another() -> None:
    """The disk of the first neighbour is lost, too, or the neighbour is new."""
    lost = mark(start(4), 50, 50)
    empty = table(0, ledger(start(1), key=NEW_KEY, vouched=()))
    ignorant = table(1, ledger(start(1)))
    opened = ignorant.open(0)
    assert opened is not None
    assert isinstance(empty.accept(ignorant.hello(opened)), Accepted)
    own = mark(start(1), 0, 0, key=NEW_KEY)
    assert empty.on_state_advance(1, mark(start(1), 0, 0), own) is None
    witness = table(2, ledger(start(1)))
    witness.witness.take(0, lost)
    for number in (1, 2):
        starts = [start(each) for each in range(1, number + 1)]
        vouched = tuple(empty.own.ledger.vouched) if empty.own.ledger is not None else ()
        empty = table(0, ledger(*starts, key=NEW_KEY, vouched=vouched))
        dialled = empty.open(2)
        assert dialled is not None
        decision = witness.accept(empty.hello(dialled))
        assert isinstance(decision, Farewell)
        empty.on_refusal(2, decision)
        assert empty.loss.startswith("b2 proves that it has run as incarnation 4 with another")
        assert "wrong seal" in (empty.on_state_advance(1, own, lost) or "")
    accepted = ledger(start(9), lineage=9, key=NEW_KEY, vouched=())
    assert accepted.loss(2, lost) is None
    assert accepted.loss(2, accepted.mark()) is None
    assert [*accepted.vouched] == [2]
    for _ in range(2):
        table(0, accepted).forget(2)
        assert not accepted.vouched


@pytest.mark.parametrize(
    "known, told, loss",
    [
        (None, (2, 0, 0), ""),
        ((2, 0, 0), (2, 0, 0), ""),
        ((2, 0, 0), (3, 0, 0), ""),
        ((2, 0, 0), (1, 0, 0), "has run before"),
        ((2, 0, 0), (2, 5, 0), "another broker"),
        ((2, 0, 0), (3, 5, 0), ""),
        ((2, 0, 8), (3, 0, 0), "has run before"),
        ((2, 0, 8), (2, 5, 9), ""),
        ((2, 0, 8), (1, 0, 9), ""),
    ],
)
def test_a_witness_compares_lineage_incarnation_and_start_of_marks(
    known: tuple[int, int, int] | None, told: tuple[int, int, int], loss: str
) -> None:
    """A mark is an incarnation, the salt of its start, and a lineage."""

    def marked(incarnation: int, salt: int, lineage: int) -> StateMark:
        return mark(start(incarnation, salt=salt), 1, 1, lineage)

    witness = StateWitness()
    if known is not None:
        witness.take(0, marked(*known))
    found = witness.loss(0, marked(*told))
    assert (found is None) == (not loss)
    assert loss in (found or "")


def test_only_another_mark_changes_the_disk_of_a_witness() -> None:
    witness = StateWitness()
    first, more = mark(start(2), 1, 1), mark(start(2), 2, 2)
    for told, changes in (
        (first, True),
        (first, False),
        (more, True),
        (mark(start(1), 9, 9), False),
    ):
        witness.changed.clear()
        witness.take(0, told)
        assert (0 in witness.changed) == changes
    witness.take(1, first)
    witness.forget(1)
    assert (witness.marks, witness.changed) == ({0: more}, {})
    witness.forget(1)


def test_a_hello_without_a_mark_is_accepted_from_a_broker_whose_mark_is_known() -> None:
    witness, caller = table(1, ledger(start(1))), table(0, ledger(start(1), start(2)))
    witness.witness.take(0, mark(start(1), 7, 9))
    attempt = caller.open(1)
    assert attempt is not None
    hello = replace(caller.hello(attempt), state=None)
    assert isinstance(witness.accept(hello), Accepted)


def test_the_latest_lost_incarnation_and_the_first_proof_are_kept() -> None:
    copy = table(0, ledger(start(1), start(2)))
    for incarnation in (4, 5, 3):
        assert copy.on_state_advance(1, mark(start(1), 0, 0), mark(start(incarnation), 0, 0))
    assert copy.lost_incarnation == 5
    assert copy.loss.startswith("b1 proves that")
    assert "incarnation 4 has run" in copy.loss
    assert copy.witness.marks == {}
    assert copy.on_state_advance(1, mark(start(1), 0, 0), mark(start(1), 0, 0)) is None
    assert copy.witness.marks == {1: mark(start(1), 0, 0)}


# ---------------------------------------------------------------- clients


def greet_as_client(broker: SessionTable, witnessed: StateMark | None) -> Accepted | Farewell:
    decision = broker.accept(client_hello("c", "d", 1, 1, witnessed))
    if isinstance(decision, Accepted) and decision.session is not None:
        broker.close(decision.session)
    return decision


def test_a_client_returns_the_mark_that_ends_an_older_copy() -> None:
    """If all brokers are put back from older copies, no neighbour proves the loss."""
    before = greet_as_client(table(0, ledger(start(1), start(2))), None)
    assert isinstance(before, Accepted)
    assert before.answer.state == mark(start(2), 0, 0)
    same = table(0, ledger(start(1), start(2), start(3)))
    assert isinstance(greet_as_client(same, before.answer.state), Accepted)
    copy = table(0, ledger(start(1), start(2, salt=1)))
    decision = greet_as_client(copy, before.answer.state)
    assert isinstance(decision, Farewell)
    assert decision.kind == "stopping"  # it retries: a newer copy may be put back
    assert copy.loss.startswith("client 'c' proves that another broker has run")
    assert copy.lost_incarnation == 2


@pytest.mark.parametrize("is_vouched", [False, True])
def test_a_mark_that_a_client_invents_proves_nothing_and_vouches_for_nothing(
    is_vouched: bool,
) -> None:
    vouched = (1,) if is_vouched else ()
    own = ledger(start(1), start(2), vouched=vouched)
    forged = replace_mark(mark(start(9), 7, 9), groups=1 << 40)
    for witnessed in (forged, mark(start(9), 1, 1, key=b"x" * 32), own.mark()):
        broker = table(0, own)
        assert isinstance(greet_as_client(broker, witnessed), Accepted)
        assert (broker.loss, tuple(own.vouched)) == ("", vouched)
