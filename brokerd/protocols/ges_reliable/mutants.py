"""Named bugs of ges_reliable: what a mistake in one of its rules looks like."""

from typing import Final

from brokerd.named_bugs import Edit, NamedBug

_FOLDER: Final = "brokerd/protocols/ges_reliable"


def _bug(name: str, leaves_out: str, file: str, *texts: tuple[str, str]) -> NamedBug:
    return NamedBug(name, leaves_out, tuple(Edit(f"{_FOLDER}/{file}", *text) for text in texts))


BUGS: Final = (
    _bug(
        "high-water-mark",
        "A publisher is as far as it has come without a gap.",
        "frontier.py",
        (
            "if run.first > self.reached + 1:\n            longest",
            "if not run.first:\n            longest",
        ),
    ),
    _bug(
        "stored-before-disk",
        "A publication is done when it is on disk.",
        "storage.py",
        ("through = self.log.stored(run.source)", "through = run.last"),
    ),
    _bug(
        "begins-before-disk",
        "What a storage says of a subscription is on its disk.",
        "storage.py",
        ("self._disk.commit(rows, written)", "self._disk.commit(rows, lambda: None), written()"),
    ),
    _bug(
        "takes-events-over-a-hole",
        "What lies behind a hole is let go and fetched again.",
        "following.py",
        (
            "if following is None or message.after > following.after:",
            "if following is None:",
        ),
    ),
    _bug(
        "answer-hides-a-hole",
        "An answer says how far all has come for who has all before it only.",
        "following.py",
        ("is_whole = message.after <= following.after", "is_whole = message.after >= 0"),
    ),
    _bug(
        "answer-from-before-it-began",
        "What was answered before a subscription began says nothing of it.",
        "following.py",
        ("following.valid = following.number + 1\n        self._ask", "self._ask"),
    ),
    _bug(
        "done-behind-its-end",
        "What comes of the next tree is not said to be done at the one before.",
        "following.py",
        ("(each.until is None or done <= each.until)", "(each.until is None or done > 0)"),
    ),
    _bug(
        "told-at-another-storage",
        "What one storage was told of a subscription its heir does not know.",
        "following.py",
        ("for each in told if each is not local)", "for each in told if each is local or True)"),
    ),
    _bug(
        "receipt-beyond-what-comes-again",
        "What comes again is not done.",
        "following.py",
        (
            "return min(self.after, *(each.first - 1 for each in self.handed), self.after)",
            "return min((each.first - 1 for each in self.handed), default=self.after)",
        ),
    ),
    _bug(
        "earlier-stay-is-listened-to",
        "Whoever was heard of at another broker later is not listened to.",
        "registrations.py",
        ("generation < latest[0] or", "generation < 0 or"),
    ),
    _bug(
        "older-change-is-news",
        "A change that a later one has overtaken changes nothing.",
        "storage.py",
        ("or number < latest:", "or number < (0, 0):"),
    ),
    _bug(
        "released-by-the-fastest",
        "What is behind the lowest receipt is kept.",
        "registrations.py",
        ("return min((each.received", "return max((each.received"),
    ),
    _bug(
        "without-memory-begins-anew",
        "A client without its memory goes on at its receipt.",
        "registrations.py",
        (
            "            if wish.had is not None:\n",
            "            known.received = max(known.received, wish.had or head)\n"
            "            if wish.had is not None:\n",
        ),
    ),
    _bug(
        "leaves-what-is-not-known-here",
        "A client that leaves ends whatever storages know of it.",
        "clients.py",
        ("self._end_everywhere(_roaming(client), 0, leave)", "leave()"),
    ),
    _bug(
        "answers-itself-in-the-middle",
        "What a broker tells itself waits until it is done with what it is at.",
        "carriage.py",
        ("self._own.append(message)", "self._take(self._broker, message)"),
    ),
    _bug(
        "asks-once",
        "Whoever has got no answer asks again.",
        "following.py",
        (
            "if following.is_fetching:\n            waited_ns",
            "if not following.number:\n            waited_ns",
        ),
    ),
    _bug(
        "released-before-other-roots",
        "A root keeps what another root has not on its disk.",
        "others.py",
        ("if storage in waited or storage in self._place.siblings", "if storage in waited"),
    ),
    _bug(
        "released-before-the-finer-one",
        "A storage keeps what a finer one has not on its disk.",
        "others.py",
        (
            "if storage in waited or storage in self._place.siblings",
            "if storage in self._place.siblings",
        ),
    ),
    _bug(
        "begins-before-its-parent-knows",
        "Nothing begins at a finer storage before its parent gives it.",
        "storage.py",
        (
            "return all(self.profile.begins(predicate) is not None for predicate in wanted)",
            "return True",
        ),
    ),
    _bug(
        "profile-ends-with-the-first",
        "A finer storage asks for what anybody in its unit wants still.",
        "storage.py",
        ("wanted = (*known, *self.others", "wanted = (*self.others"),
    ),
    _bug(
        "early-is-of-whoever-fills-the-hole",
        "What has waited for its turn is given on by the root that a home sent it to.",
        "frontier.py",
        ("run, root = self.early.pop(following)", "run, _ = self.early.pop(following)"),
    ),
    _bug(
        "a-run-with-holes-is-whole",
        "Of a publisher that was elsewhere meanwhile another root has not all.",
        "intake.py",
        ("in _without_holes(whole):", "in (whole,):"),
    ),
    _bug(
        "taken-before-disk",
        "What another root gave may go there when it is on this one's disk.",
        "intake.py",
        ("return feed.open[0].epoch - 1 if feed.open else feed.after", "return feed.after"),
    ),
    _bug(
        "no-room-is-had",
        "What there was no room for is asked for again.",
        "intake.py",
        ("return self._log.has(oldest.source, oldest.first, oldest.last)", "return True"),
    ),
    _bug(
        "asks-no-other-storage",
        "Whoever does not say where it is stored for is asked for at all storages.",
        "clients.py",
        ("if len(self._storages) == 1:", "if self._storages:"),
    ),
    _bug(
        "had-by-its-end",
        "Of what another root gave, all is here that is not asked for again.",
        "intake.py",
        ("oldest.first, oldest.last)", "oldest.last, oldest.last)"),
    ),
    _bug(
        "begun-behind-a-lost-epoch",
        "A subscription begins behind what is on disk.",
        "storage.py",
        ("self.log.sync(write)", "write()"),
    ),
    _bug(
        "heir-gives-again",
        "What a storage gave its heir does not give.",
        "heirs.py",
        ("local.until = max(answer.after, local.handed)", "local.until = answer.after"),
    ),
    _bug(
        "given-by-both",
        "What comes of the heir its predecessor does not give.",
        "clients.py",
        ("part.last if local.until is None else min(local.until, part.last)", "part.last"),
    ),
    _bug(
        "over-before-its-client-is-done",
        "A subscription stays where it was until its client is done with what is there.",
        "following.py",
        (
            "done = following.done if following.leaving else 0",
            "done = following.after",
        ),
    ),
    _bug(
        "goes-on-at-the-heir-first",
        "Of two storages that know a subscription the heir is the second.",
        "clients.py",
        ("key=lambda each: answers[each].heir is None,", "key=lambda each: 0,"),
    ),
    _bug(
        "heir-knows-nothing-of-its-end",
        "A subscription ends at its heir, too.",
        "heirs.py",
        ("[] if begun.heir is None else [begun.heir]", ""),
    ),
    _bug(
        "unsettled-end-is-answered",
        "A subscription has ended when the storage that it went on from knows that it did.",
        "heirs.py",
        ("local.earlier[-1:] if local.settles else []", "[]"),
    ),
    _bug(
        "heirs-forgotten",
        "A storage knows after a restart where what it had has gone on.",
        "registrations.py",
        ("            self._heirs[_read_key(text)] = heir\n", "            pass\n"),
    ),
    _bug(
        "heir-comes-of-nobody",
        "An heir says from whom it comes until that one knows that it is over there.",
        "heirs.py",
        ("wish = Wish(*about, before=local.storage, had_of", "wish = Wish(*about, had_of"),
    ),
    _bug(
        "before-is-asked-for-ever",
        "An heir is told when whoever was before knows that it is over there.",
        "heirs.py",
        ("                self.settle(local)\n", ""),
    ),
    _bug(
        "behind-though-all-is-over",
        "Of one that is over wherever it was before nobody else is asked.",
        "clients.py",
        (
            "elif (is_behind and answer.before is None) or is_unknown:",
            "elif is_behind or is_unknown:",
        ),
    ),
    _bug(
        "finer-storage-takes-clients-back",
        "A finer storage gives no client again what it has had of its root.",
        "registrations.py",
        ("min(wish.had, head) if self._is_root else wish.had", "min(wish.had, head)"),
    ),
    _bug(
        "end-stays-where-it-was",
        "A subscription that ends before its home knows where it is ends there.",
        "heirs.py",
        (
            "        if begun.after is None and begun.heir is not None:\n"
            "            local.earlier.append",
            "        if begun.after is None and begun.heir == -1:\n"
            "            local.earlier.append",
        ),
    ),
    _bug(
        "storage-comes-unseen",
        "Homes hand subscriptions over to a storage that comes.",
        "core.py",
        ("self._homed.change(storages, roots_of(hierarchy))", "pass"),
    ),
    _bug(
        "parent-knows-no-child",
        "A storage that comes takes from its parent.",
        "storage.py",
        ("self.others.change(place)", "pass"),
    ),
    _bug(
        "retired-serves-on",
        "A retired storage takes nothing new.",
        "places.py",
        ("if storage not in hierarchy.retired\n        and _unit", "if _unit"),
    ),
    _bug(
        "behind-what-has-been-elsewhere",
        "What a subscription lacks that has come back is where it was meanwhile.",
        "clients.py",
        ("elif (is_behind and answer.before is None) or is_unknown:", "elif is_unknown:"),
    ),
    _bug(
        "released-before-its-end-is-on-disk",
        "What is over is needed until that is on disk.",
        "registrations.py",
        (
            "min((each.received for each in self.kept())",
            "min((each.received for each in self._known.values())",
        ),
    ),
    _bug(
        "not-asked-for-before-its-end-is-on-disk",
        "What is over is asked for until that is on disk.",
        "storage.py",
        (
            "(each.predicate for each in self.registrations.kept())",
            "(each.predicate for each in self.registrations.known().values())",
        ),
    ),
    _bug(
        "gone-and-begun-anew",
        "Of a client that has gone elsewhere nothing begins.",
        "clients.py",
        ("if any(answer.is_gone for", "if any(not answer for"),
    ),
    _bug(
        "gone-is-unknown",
        "A storage that has heard of a later stay says so.",
        "registrations.py",
        ("return Begun(key, None, is_gone=True), []", "return Begun(key, None), []"),
    ),
    _bug(
        "released-and-not-chopped",
        "What was released before a crash goes off the disk after it.",
        "epoch_log.py",
        ("            self._chop()  # a crash may have come between\n", "            pass\n"),
    ),
    _bug(
        "newcomer-has-no-address",
        "Brokers that join are told of, and answered.",
        "core.py",
        ("        self._carriage.change(hierarchy.addresses)\n", ""),
    ),
    _bug(
        "storages-hear-of-no-newcomer",
        "Who is told of storages hears of brokers that come and go, too.",
        "core.py",
        ("super()._on_overlay_changed(event)\n", "super()\n"),
    ),
    _bug(
        "left-before-it-has-what-the-next-root-had",
        "A root gives all that the next one had when the subscription began there.",
        "crossing.py",
        (
            "if any(here.get(source, 0) < last for",
            "if crossing.then is None and any(here.get(source, 0) < last for",
        ),
    ),
    _bug(
        "given-by-both-roots",
        "What the old root had, and the new one had not, the old one alone gives.",
        "clients.py",
        (
            "    if not had_of:\n        return run\n",
            "    if run:\n        return run\n",
        ),
    ),
    _bug(
        "ended-at-the-old-root-too-early",
        "A subscription stays at its old root until its client is done with what is there.",
        "crossing.py",
        (
            "self._following.leave(local, crossing.then)",
            "crossing.then()",
        ),
    ),
    _bug(
        "given-before-the-old-root-knows",
        "Both storages know where one begins and the other ends before the new one gives anything.",
        "crossing.py",
        (
            "            self._changes.tell(local.storage, wish, _unless_over(local, leave))",
            "            self._changes.tell(local.storage, wish, lambda _: None)\n"
            "            leave(answer)",
        ),
    ),
    _bug(
        "end-is-said-once",
        "What was given behind the end that a root said is behind no end.",
        "crossing.py",
        (
            "elif local.handed > until:",
            "elif local.handed > until > local.handed:",
        ),
    ),
    _bug(
        "given-while-the-end-is-asked-for",
        "Nothing more is given while a root says an end once more.",
        "crossing.py",
        (
            "            self._following.stop(local)\n",
            "",
        ),
    ),
    _bug(
        "third-root-forgotten",
        "What came of an earlier root is not given again by a later one.",
        "crossing.py",
        (
            "for source, last in local.had_of:",
            "for source, last in local.had_of[:0]:",
        ),
    ),
    _bug(
        "goes-on-before-it-is-over",
        "One goes on to a third storage when the first one has heard that it is over there.",
        "heirs.py",
        (
            "first != self._servicing and not local.settles",
            "first != self._servicing",
        ),
    ),
    _bug(
        "settled-anew",
        "What two storages have been told of an end holds for whoever comes next.",
        "heirs.py",
        (
            "elif until is not None:",
            "elif until == -1:",
        ),
    ),
    _bug(
        "epochs-of-another-tree",
        "How far a client has come in one tree says nothing of another.",
        "heirs.py",
        (
            "if self._roots.get(each, each) == root",
            "if root is not None",
        ),
    ),
    _bug(
        "before-is-not-asked",
        "Whoever has what is before comes first.",
        "clients.py",
        (
            "elif answer.after is not None and answer.before not in (None, storage):",
            "elif answer.after is None and answer.before not in (None, storage):",
        ),
    ),
    _bug(
        "before-knows-nothing-of-its-end",
        "A subscription ends at the storage before, too.",
        "heirs.py",
        (
            "more = [begun.before] if begun.before not in (None, local.storage) else []",
            "more = list[BrokerNumber]()",
        ),
    ),
    _bug(
        "end-forgotten",
        "A storage knows after a restart up to where it gives.",
        "registrations.py",
        (
            "self._read_more(self._known[key], *more)",
            "self._read_more(self._known[key], *more[:1])",
        ),
    ),
    _bug(
        "begins-by-its-receipt",
        "Where a subscription goes on in another tree no crash changes.",
        "registrations.py",
        (
            "known.began = max(known.began, known.received)",
            "known.began = min(known.began, known.received)",
        ),
    ),
    _bug(
        "looks-at-the-high-water-mark",
        "A root has come as far as there is no gap.",
        "epoch_log.py",
        (
            "((source, each.reached) for source, each in self._frontiers.items())",
            "((source, max((each.reached, *(part.run.last for part in each.early.values()))))\n"
            "            for source, each in self._frontiers.items())",
        ),
    ),
)
MUTANTS: Final[dict[str, NamedBug]] = {bug.name: bug for bug in BUGS}
