"""Named bugs of durable subscriptions: what a mistake in one of their rules looks like.

Paper: [DS03] §3, §4, rule by rule.
"""

from typing import Final

from brokerd.named_bugs import Edit, NamedBug

_FOLDER: Final = "brokerd/protocols/durable"


def _bug(name: str, leaves_out: str, file: str, *texts: tuple[str, str]) -> NamedBug:
    folder = "brokerd/protocols" if file.startswith("parts/") else _FOLDER
    return NamedBug(name, leaves_out, tuple(Edit(f"{folder}/{file}", *text) for text in texts))


BUGS: Final = (
    _bug(
        "previous-of-another",
        "A record names the one before of the same subscription.",
        "filter_records.py",
        (
            "previous.append(newest.get(one, NO_RECORD))",
            "previous.append(index - 1 or NO_RECORD)",
        ),
        (
            "words += each, newest.get(each, NO_RECORD)",
            "words += each, index - 1 or NO_RECORD",
        ),
    ),
    _bug(
        "chopped-is-silent",
        "Nobody knows for whom chopped ticks were.",
        "batch_read.py",
        ("limit = max(self._limit, log.chopped_tick)", "limit = self._after"),
    ),
    _bug(
        "newest-in-place-of-oldest",
        "A batch that is full has the oldest matches.",
        "batch_read.py",
        ("self._upto = self._found.pop() - 1", "self._found.popleft()"),
    ),
    _bug(
        "written-twice",
        "A tick that comes again is written once.",
        "filter_log.py",
        ("bisect_right(ticks, self.last_tick)", "bisect_right(ticks, self.last_tick - 8)"),
    ),
    _bug(
        "written-for-who-is-here",
        "What is for whom is written down for those who are away, too.",
        "hosting.py",
        (
            "[local.lane(stream) for local in self._ours(those)]",
            "[local.lane(stream) for local in self._ours(those) if local.is_attached]",
        ),
    ),
    _bug(
        "asked-by-each-alone",
        "What was asked for is not asked for again for another one.",
        "fetching.py",
        ("        if fresh:\n", "        if fresh := list(ranges):\n"),
    ),
    _bug(
        "asked-anew-and-forgotten",
        "What is asked for anew counts from then on.",
        "questions.py",
        ("if waiting and waiting[0][2] <= now_ns:", "if False:"),
    ),
    _bug(
        "rows-before-matches",
        "Matches are on disk before the row that says how far they go.",
        "commits.py",
        (
            "self._disk.sync(self._log, lambda: self._on_synced(taken))",
            "self._on_synced(taken)",
        ),
    ),
    _bug(
        "told-before-rows",
        "Rows are on disk before anybody is told of them.",
        "commits.py",
        (
            "self._disk.commit(self._rows(taken), lambda: self._on_committed(taken))",
            "self._disk.commit(self._rows(taken), int); self._on_committed(taken)",
        ),
    ),
    _bug(
        "chopped-before-rows",
        "Matches go when it is on disk that everybody has them.",
        "hosting.py",
        (
            "        self._changed = {}\n",
            "        self._changed = {}\n"
            "        for each in self._hosted.values():\n"
            "            had = [local.lane(each.identity).acknowledged"
            " for local in self._all.values()]\n"
            "            for effect in each.log.chop(min([each.position, *had])):\n"
            "                self._machine.emit(effect)\n",
        ),
    ),
    NamedBug(
        "released-before-written",
        "No more is released than is written down.",
        (
            Edit(
                f"{_FOLDER}/hosted_streams.py",
                "each.lane(self.identity).committed",
                "each.lane(self.identity).acknowledged",
            ),
            Edit(
                f"{_FOLDER}/hosted_streams.py",
                "min([self.delivered_on_disk, *committed])",
                "min([self.position, *committed])",
            ),
            Edit(
                f"{_FOLDER}/hosting.py",
                "found = self._released.get(stream)",
                "return self._work_out_released(stream)",
            ),
        ),
    ),
    _bug(
        "no-floor",
        "A client is not given again what it has.",
        "catching_up.py",
        ("lane.floor = had\n", "lane.floor = 0\n"),
    ),
    _bug(
        "accepted-before-written",
        "A subscription is on disk before it is accepted.",
        "hosting.py",
        (
            "self._disk.commit(changes, kept)",
            "kept(); self._disk.commit(changes, int)",
        ),
    ),
    _bug(
        "answered-before-committed",
        "Tokens are on disk before their client is answered.",
        "token_commits.py",
        (
            "self._disk.commit(_rows(taken), lambda: self._on_durable(shard, taken))",
            "self._disk.commit(_rows(taken), int); self._on_durable(shard, taken)",
        ),
    ),
    _bug(
        "redelivered-unmarked",
        "What was given before is marked as redelivered.",
        "consuming.py",
        ("if lane.given > lane.acknowledged", "if lane.given > lane.acknowledged < 0"),
    ),
    _bug(
        "restart-marks-nothing",
        "After a restart all that may have been given is marked.",
        "consuming.py",
        ("local.lane(identity).given = ANY", "local.lane(identity).given = 0"),
    ),
    _bug(
        "token-of-the-client",
        "Where the broker holds the tokens, its own count.",
        "consuming.py",
        ("local.presented[stream] = max(last, local.lane(stream).acknowledged)", "continue"),
    ),
    _bug(
        "commit-waits-for-a-pubend",
        "A commit is proved by the pubends that it names, and waits for no other.",
        "consuming.py",
        ("            self._tokens.prove(local)\n", "            return\n"),
    ),
    _bug(
        "commit-of-the-future",
        "Tokens that no pubend has reached are refused.",
        "consuming.py",
        ("            self._tokens.prove(local)\n", "            pass\n"),
    ),
    _bug(
        "committed-again-is-not-answered",
        "A commit that comes again is answered again.",
        "token_commits.py",
        ("self._then(taken)", "self._then([each for each in taken if _rows([each])])"),
    ),
    _bug(
        "not-truncated",
        "What the log has behind the last commit is dropped at a restart.",
        "filter_log.py",
        ("if record.tick > self._keep_through:", "if False:"),
    ),
    _bug(
        "live-too-early",
        "A catch-up stream ends where the common stream is.",
        "catching_up.py",
        ("elif catchup.given >= hosted.position:", "elif catchup.given > lane.floor:"),
    ),
    _bug(
        "released-when-anybody-has",
        "A tick is released when all brokers release it.",
        "release.py",
        (
            "return min([self._own(stream.identity), *below])",
            "return max([self._own(stream.identity), *below])",
        ),
    ),
    _bug(
        "delivered-is-released",
        "The pubend keeps what is delivered until it is released.",
        "retention.py",
        (
            "stream.held = max(self._released[stream.identity], stream.held or 0, self.expired())",
            "stream.held = None",
        ),
    ),
    _bug(
        "silence-said-over-what-is-out",
        "Silence is said behind everything that was given.",
        "silence.py",
        ("if lane.mode is Mode.LIVE and not lane.out and lane.floor <= position:", "if True:"),
    ),
    _bug(
        "future-token-is-a-floor",
        "A token that no pubend has reached is no floor.",
        "tokens.py",
        ("if local.is_attached and lane.floor > self._hosted[lane.stream].position:", "if False:"),
    ),
    _bug(
        "open-matches-forgotten",
        "Matches are done when their clients are.",
        "hosted_streams.py",
        (
            "return self.position > self.delivered or bool(self._open)",
            "return self.position > self.delivered",
        ),
    ),
    _bug(
        "younger-is-lost",
        "What is younger than `max_retain_ns` is kept.",
        "retention.py",
        ("parameters.max_retain_ns\n", "parameters.max_retain_ns // 4\n"),
    ),
    _bug(
        "no-grace",
        "Who was live has time to come back before anything is lost.",
        "retention.py",
        ("self._machine.now_ns + max(self._grace_ns, self._max_retain_ns)", "0"),
    ),
    _bug(
        "lost-before-told",
        "What somebody live was not told of is kept, however old.",
        "retention.py",
        ("self._settle(stream)", "stream.finish(stream.held); self._settle(stream)"),
    ),
    _bug(
        "live-from-the-beginning",
        "Who goes live keeps as its floor what was given before.",
        "catching_up.py",
        (
            "lane.floor = Mode.LIVE, None, catchup.given",
            "lane.floor = Mode.LIVE, None, 0",
        ),
    ),
    _bug(
        "gap-to-the-end-of-what-is-lost",
        "A gap ends with the last loss of what is for its client.",
        "catchup.py",
        ("(self._begun[0] if self._begun else first), last", "first, self.lost.through"),
    ),
    _bug(
        "a-gap-per-batch",
        "Losses that follow each other are one gap.",
        "catchup.py",
        ("if self.given >= self.lost.through:", "if True:"),
    ),
    _bug(
        "lost-is-silent",
        "A loss is announced.",
        "catching_up.py",
        ("self._say_lost(lane, [each])", "pass"),
    ),
    _bug(
        "origins-up-to-what-is-published",
        "A gap names the publications that are lost, and no later ones.",
        "retention.py",
        ("kept.get(source, through + 1) - 1", "through"),
    ),
    _bug(
        "restart-forgets-where-streams-are",
        "A restart goes on where streams had come to.",
        "hosting.py",
        ("subend.position = max(subend.position, hosted.delivered)", "pass"),
    ),
    _bug(
        "hold-forgotten",
        "What is held is not released.",
        "core.py",
        ("return own if held is None else min(own, held)", "return own"),
    ),
    _bug(
        "hold-ends-before-its-client",
        "A hold lasts as long as its client may be away.",
        "holds.py",
        ("self._machine.now_ns + self._lease_ns", "self._machine.now_ns + 60_000_000_000"),
    ),
    _bug(
        "default-hold-ends-before-its-client",
        "A hold lasts as long as its client may be away, unless its lease is set.",
        "parameters.py",
        (
            "hold_lease_ns=max(chosen.client_linger_ns, LEAST_LEASE_NS)",
            "hold_lease_ns=60 * SECOND_NS",
        ),
    ),
    _bug(
        "hold-not-on-disk",
        "What is held is held after a restart.",
        "holds.py",
        ("self._holds[found] = _Named(generation, ticks, is_on_disk=True)", "continue"),
    ),
    _bug(
        "held-before-written",
        "A hold is on disk before it is called so.",
        "holds.py",
        (
            "self._disk.commit((_row(key, named),), held)",
            "held(); self._disk.commit((_row(key, named),), int)",
        ),
    ),
    _bug(
        "let-go-before-written",
        "It is on disk that a subscription has gone before that is said.",
        "moving.py",
        ("self._end(client, [local], then)", "then(); self._end(client, [local], int)"),
    ),
    NamedBug(
        "let-go-before-its-commit",
        "What is not written down yet is kept where a tick is unknown, too.",
        (
            Edit(
                "brokerd/protocols/gryphon/ostreams.py",
                "events.ticks(stream.done_here() + 1, events.last + 1)",
                "events.ticks(stream.subend.done + 1, events.last + 1)",
            ),
        ),
    ),
    _bug(
        "held-for-a-crashed-one",
        "What is held is known from an answer to this incarnation.",
        "arrivals.py",
        ("if message.asked_in != self._incarnation:", "if message.asked_in < 0:"),
    ),
    _bug(
        "held-for-an-earlier-stay",
        "What was held for an earlier stay of the same generation is not held for this one.",
        "arrivals.py",
        ("if arrival is None or message.stay != arrival.stay:", "if arrival is None:"),
    ),
    _bug(
        "let-go-before-it-is-held",
        "A broker lets go when another one holds.",
        "arrivals.py",
        (
            "asked.until_ns > self._machine.now_ns or self._is_over(arrival, asked)\n"
            "            for broker, asked",
            "True\n            for broker, asked",
        ),
    ),
    _bug(
        "come-without-matches",
        "For whom events were before a subscription came is not in its broker's log.",
        "catching_up.py",
        ("max(had, lane.acknowledged, lane.matched_after)", "max(had, lane.acknowledged)"),
    ),
    _bug(
        "answered-from-silence",
        "Only a pubend knows what is silent for everybody.",
        "fetching.py",
        (
            "        if not left:\n            return\n",
            "        if not left:\n            return\n"
            "        if left.last <= knowledge.highest:\n"
            "            self._answer(peer, identity, NOTHING_LOST, list(left), None)\n"
            "            return\n",
        ),
    ),
    _bug(
        "token-forgotten-between-connect-and-subscribe",
        "A token counts until its subscription is asked for.",
        "moving.py",
        (
            "moving.brought = {number: dict(seen) for number, seen in message.resume}",
            "moving.brought = {n: dict(s) for n, s in message.resume"
            " if n not in client.subscriptions}",
        ),
    ),
    _bug(
        "ended-stay-is-told-to-nobody",
        "A stay that has ended is told to the broker that asks.",
        "moving.py",
        (
            "        if local.generation != generation:\n            return\n",
            "        if local.generation != generation or local.is_over:\n            return\n",
        ),
    ),
    _bug(
        "told-of-a-stay-before-it-is-written",
        "A later stay is on disk before its client is told of it.",
        "moving.py",
        (
            "durable.unwritten = generation, False, True",
            "durable.unwritten = generation, True, False",
        ),
    ),
    _bug(
        "later-stay-of-a-first-one",
        "A subscription may have been elsewhere before its first row is on disk.",
        "moving.py",
        (
            "        if durable.generation < generation:\n",
            "        if durable.accepted and durable.generation < generation:\n",
        ),
    ),
    _bug(
        "first-row-starts-a-later-stay",
        "A row of an earlier stay is not that of a later one.",
        "moving.py",
        ("        if not durable.unwritten:\n", "        if True:\n"),
    ),
    _bug(
        "let-go-of-a-later-stay",
        "A broker that a subscription left before does not end its stay that is being written.",
        "arrivals.py",
        (
            "        if local is not None and local.generation > message.generation:\n"
            "            if arrival is None:\n",
            "        if arrival is None and local and local.generation > message.generation:\n"
            "            if arrival is None:\n",
        ),
    ),
    _bug(
        "later-stay-forgotten",
        "What a later stay has to ask for stays on disk when the earlier one is over.",
        "arrivals.py",
        ("            if whose not in self._unbegun:", "            if True:"),
    ),
    _bug(
        "fetched-by-each-alone",
        "What was fetched is kept a while for others.",
        "fetching.py",
        ("            self._lately.add(run)\n", "            pass\n"),
    ),
    _bug(
        "fetched-from-another-stream",
        "What is fetched for a stream is of that stream.",
        "fetched_events.py",
        ("            if run.source != identity:\n", "            if not run:\n"),
    ),
    _bug(
        "asked-for-without-limit",
        "Who catches up asks for no more than its window.",
        "catchup_window.py",
        ("        if self._has_room(lane):\n", "        if hosted:\n"),
    ),
    _bug(
        "one-pubend-for-another",
        "Each pubend has a window of its own.",
        "catchup_window.py",
        (
            "return self._events.get(lane.stream, 0) < self._limit",
            "return sum(self._events.values()) < self._limit",
        ),
    ),
    _bug(
        "not-admitted-again",
        "Who waits for the window is admitted in turn.",
        "catching_up.py",
        ("while not self._is_going_on and", "while self._is_going_on and"),
    ),
    _bug(
        "divergence-unsaid",
        "A catch-up that comes no nearer is said.",
        "catchup_watch.py",
        ("if behind >= before:", "if behind < 0:"),
    ),
    _bug(
        "forgotten-before-it-is-over",
        "A subscription's rows go when its end is on disk.",
        "hosting.py",
        (
            "        super()._on_ended(over)\n        self._commits.soon()\n",
            "        super()._on_ended(over)\n"
            "        lanes = [lane for each in self._ours(over) for lane in each.lanes.values()]\n"
            "        rows = [Change(ACKNOWLEDGED, lane_key(lane), None) for lane in lanes]\n"
            "        self._machine.emit(Commit(tuple(rows), None))\n"
            "        self._commits.soon()\n",
        ),
    ),
    NamedBug(
        "released-by-nobody-and-forgotten",
        "A broker where nobody subscribes knows after a restart what it has released.",
        (
            Edit(
                f"{_FOLDER}/hosting.py",
                "        found = self._released.get(stream)\n",
                "        if not self._all and not self._ending:\n"
                "            return self._hosted[stream].stream.subend.done\n"
                "        found = self._released.get(stream)\n",
            ),
            Edit(
                f"{_FOLDER}/hosting.py",
                "if hosted.position > hosted.seen:",
                "if hosted.position > hosted.seen and self._all:",
            ),
            Edit(f"{_FOLDER}/core.py", "if stream.upstream is not None:", "if False:"),
        ),
    ),
    _bug(
        "done-with-what-a-restart-forgets",
        "A broker is done with what it has on disk, and no more.",
        "core.py",
        ("if stream.upstream is not None:", "if False:"),
    ),
    _bug(
        "chopped-at-the-next-commit",
        "What was released before a crash is chopped at recovery.",
        "hosting.py",
        ("for effect in hosted.log.chop(self.released(identity)):", "for effect in ():"),
    ),
    _bug(
        "quiet-before-its-commit",
        "A broker is not quiet while a commit is to come.",
        "core.py",
        ("if uncommitted := self._durable.uncommitted():", "if uncommitted := ():"),
    ),
    _bug(
        "expected-only-what-is-known",
        "Who has forgotten what it was done with is told of it.",
        "core.py",
        (
            "max(stream.knowledge.highest, stream.subend.expected, stream.done_by(cell))",
            "stream.knowledge.highest",
        ),
    ),
    _bug(
        "decommission-forgotten",
        "A broker that is decommissioned is so after a restart.",
        "parts/decommissioning.py",
        (
            'self._take(int(key), signature if isinstance(signature, bytes) else b"")',
            "pass",
        ),
    ),
    _bug(
        "decommissioned-on-a-neighbours-word",
        "A decommission from a neighbour carries the signature of the deployment's authority.",
        "parts/decommissioning.py",
        (
            "if broker not in self._gone and not self._authority.has_signed(broker, signature):",
            "if False:",
        ),
    ),
    _bug(
        "decommissioned-is-let-in",
        "A decommissioned broker that comes back is told so.",
        "parts/decommissioning.py",
        (
            "for each in self._gone.items() if each[1])",
            "for each in self._gone.items() if each[1] and each[0] != peer)",
        ),
    ),
    _bug(
        "decommissioned-before-all-is-held",
        "Nobody is decommissioned before what came from there is held elsewhere.",
        "core.py",
        ("arrivals = self._durable.arrivals.unheld(broker)", "arrivals = 0"),
    ),
    _bug(
        "decommissioned-is-asked-to-let-go",
        "Nobody waits for the answer of a decommissioned broker.",
        "arrivals.py",
        ("            arrival.untold.pop(broker, None)\n", "            pass\n"),
    ),
    _bug(
        "decommissioned-holds-back",
        "Nobody waits for the acknowledgements of a decommissioned broker.",
        "core.py",
        ("            stream.drop(cell)\n", "            pass\n"),
    ),
    _bug(
        "decommissioned-with-what-is-only-there",
        "No broker is decommissioned that alone has publications.",
        "core.py",
        ("                unfinished,\n", "                False,\n"),
    ),
    _bug(
        "old-session-counts",
        "What was out to an old session is acknowledged by nobody.",
        "lanes.py",
        (
            "        self.out.clear()\n",
            "        [setattr(each, 'open', 0) for each in self.out]; self.settle()\n",
        ),
    ),
    _bug(
        "left-with-its-catch-up",
        "Who goes away leaves no catch-up stream behind.",
        "lanes.py",
        ("self.mode, self.catchup = Mode.AWAY, None", "self.mode = Mode.AWAY"),
    ),
    _bug(
        "answered-without-end",
        "One question is answered with so much, and the rest is deferred.",
        "fetching.py",
        ("                if left_bytes <= 0:\n", "                if left_bytes is None:\n"),
    ),
    _bug(
        "deferred-is-silent",
        "A tick that is deferred is asked for again.",
        "catchup.py",
        ("        self.upto = start - 1\n        return True\n", "        return True\n"),
    ),
    _bug(
        "new-pubend-begins-where-it-is",
        "Who was away misses nothing of a pubend that is new.",
        "hosting.py",
        (
            "had = local.presented.get(identity, lane.acknowledged)",
            "had = local.presented.get(identity, hosted.position)",
        ),
    ),
    _bug(
        "one-position-for-all-streams",
        "How far a client has come in one stream says nothing of another.",
        "hosting.py",
        (
            "had = local.presented.get(identity, lane.acknowledged)",
            "had = min(local.presented.values(), default=lane.acknowledged)",
        ),
    ),
    _bug(
        "silence-is-told-once",
        "Who is behind is told of silence until it has acknowledged all.",
        "silence.py",
        (
            "        if is_behind:\n            self.soon()",
            "        if is_behind and not self._subscriptions:\n            self.soon()",
        ),
    ),
    _bug(
        "silence-is-not-told",
        "Who hears nothing of a stream that goes on is told how far it has come.",
        "silence.py",
        ("self._windows.say(lane, position, silence)", "pass"),
    ),
    _bug(
        "ended-stays-in-the-window",
        "A subscription that ends in mid catch-up leaves the window.",
        "catching_up.py",
        ("            self._window.leave(lane)\n", ""),
    ),
    _bug(
        "admitted-while-it-goes",
        "A client that goes is given nothing more for those of its subscriptions that waited.",
        "catching_up.py",
        (
            "            self._watch.leave(lane)\n        self._admit()\n",
            "            self._watch.leave(lane)\n            self._admit()\n",
        ),
    ),
    _bug(
        "fetched-unbounded",
        "What is fetched is no longer than the room in its window.",
        "fetching.py",
        (
            "room_bytes = min(self._flow.answer_room_bytes(peer, identity), JOINED_BYTES)",
            "room_bytes = JOINED_BYTES",
        ),
    ),
    _bug(
        "fetched-on-by-nobody",
        "A fetch that had no room goes on when there is room.",
        "core.py",
        ("        self._fetching.answer_more(peer)\n", ""),
    ),
    _bug(
        "first-subscription-releases-nothing",
        "What came before a broker's first subscription is released when that is on disk.",
        "hosting.py",
        ("                self._released.pop(hosted.identity, None)\n", ""),
    ),
    _bug(
        "released-as-before-it-came",
        "A subscription that has just come counts in what is released.",
        "hosting.py",
        (
            "        self._released.clear()\n        self._start(local)\n",
            "        self._start(local)\n",
        ),
    ),
    _bug(
        "released-as-before-its-end",
        "A subscription whose end is on disk counts no more in what is released.",
        "hosting.py",
        (
            "            self._released.clear()\n            for hosted",
            "            for hosted",
        ),
    ),
    _bug(
        "adopted-releases-nothing",
        "What a consumer comes back with is released when it is on disk.",
        "consuming.py",
        (
            "                self._moved[lane.stream] = None\n            self._commits.soon()\n",
            "",
        ),
    ),
    _bug(
        "at-rest-before-tokens-let-go",
        "A broker that has to let go of what tokens have moved is not at rest.",
        "consuming.py",
        ("return {**super().uncommitted(), **self._moved}", "return super().uncommitted()"),
    ),
)

MUTANTS: Final = {bug.name: bug for bug in BUGS}
"""By name."""
