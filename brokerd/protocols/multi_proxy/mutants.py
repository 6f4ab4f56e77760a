"""Named bugs of multi_proxy: what a mistake in one of its rules looks like.

Paper: [MP22] §3, §4, rule by rule; several are mistakes that the paper's public code makes.
"""

from typing import Final

from brokerd.named_bugs import Edit, NamedBug

_FOLDER: Final = "brokerd/protocols/multi_proxy"


def _bug(name: str, leaves_out: str, file: str, *texts: tuple[str, str]) -> NamedBug:
    folder = "brokerd/protocols" if file.startswith("parts/") else _FOLDER
    return NamedBug(name, leaves_out, tuple(Edit(f"{folder}/{file}", *text) for text in texts))


BUGS: Final = (
    _bug(
        "stored-before-it-is-written",
        "Stored is what is on disk.",
        "topic_log.py",
        (
            "self._disk.append(LOG, record, store)",
            "store(); self._disk.append(LOG, record, int)",
        ),
    ),
    _bug(
        "puts-twice",
        "A publication that comes twice is put once.",
        "topic_log.py",
        ("rest = run.after(had)", "rest = run"),
    ),
    _bug(
        "put-before-the-one-before",
        "A publication is put behind the one that it names as the one before.",
        "topic_log.py",
        ("if previous > had:", "if previous < 0:"),
    ),
    _bug(
        "chopped-with-its-sources",
        "What was put stays known when its log is chopped.",
        "topic_log.py",
        (
            'changes[PUT, f"{number}.{source}"] = self.topic(number).stored.get(gone.source, 0)',
            "source.strip()",
        ),
    ),
    _bug(
        "chopped-while-it-is-given",
        "What another server has stored stays known when own records are chopped.",
        "topic_log.py",
        (
            "            own.stored[source] = max(through, own.stored.get(source, 0))\n",
            "",
        ),
        (
            'rows.append(Change(PUT, f"{number}.{key}", own.stored[source]))',
            'rows.append(Change(PUT, f"{number}.{key}", own.put[source]))',
        ),
    ),
    _bug(
        "chopped-log-kept",
        "A log that a crash has left longer than it should be is chopped when it is read.",
        "topic_log.py",
        (
            "            self._chop()  # a crash may have kept what was let go of\n",
            "            pass\n",
        ),
    ),
    _bug(
        "positions-begin-anew",
        "A position is one publication's for ever.",
        "topic_log.py",
        ("changes[RELEASED, gone.topic.key] = gone.last", "changes.pop((RELEASED, ''), None)"),
    ),
    _bug(
        "released-when-anybody-is-done",
        "A publication is released when all who follow its topic are done.",
        "server.py",
        (
            "through = min((topic.durable, *done))",
            "through = min(topic.durable, max(done or [1 << 60]))",
        ),
    ),
    _bug(
        "never-released",
        "What all are done with is released.",
        "server.py",
        ("follower.done[part] = wanted.done", "self._machine.now_ns += 0"),
    ),
    _bug(
        "older-follow-kept",
        "The later request of a home counts.",
        "server.py",
        ("version < follower.version", "version < Version(0, 0)"),
    ),
    _bug(
        "gets-of-the-dead",
        "What a home has asked for before it died does not count once it has begun again.",
        "server.py",
        ("if message.incarnation < follower.version.incarnation:", "if message.incarnation < 0:"),
    ),
    _bug(
        "restart-forgotten",
        "That a home has begun again is on disk before it is told where to go on.",
        "server.py",
        (
            "if is_restarted or before.keys() != follower.done.keys():",
            "if before.keys() != follower.done.keys():",
        ),
    ),
    _bug(
        "lost-unsaid",
        "What is lost, and somebody has yet to be told of, is not as if nothing had failed.",
        "server.py",
        ("return (*left, words) if lost else left", "return left if words else ()"),
    ),
    _bug(
        "followed-before-it-is-written",
        "What a home follows is on disk before it is answered.",
        "server.py",
        ("self._disk.commit(changes, written)", "self._disk.commit(changes, int); written()"),
    ),
    _bug(
        "head-before-it-is-written",
        "The positions that a home is told are on disk.",
        "server.py",
        (
            "self.log.sync(lambda: self._answer(home, answer))",
            "self._answer(home, answer)",
        ),
    ),
    _bug(
        "follows-one-too-late",
        "A home goes on behind the position that it was told.",
        "server.py",
        ("part: before.get(part, head) for", "part: before.get(part, head) + 1 for"),
    ),
    _bug(
        "answers-what-is-not-new",
        "A get is answered from behind what it names.",
        "server.py",
        (
            "run = topic.after(after, most)",
            "run = topic.after(after + 1, most)",
        ),
    ),
    _bug(
        "done-when-handed-out",
        "Done is what clients have acknowledged.",
        "gets.py",
        (
            "return self.handed[0].first - 1 if self.handed else self.after or 0",
            "return self.after or 0",
        ),
    ),
    _bug(
        "begins-for-all",
        "A topic goes on where it was if any of its subscriptions does.",
        "gets.py",
        (
            "                    if beginning is None:\n",
            "                    if beginning is None and is_new:\n",
        ),
    ),
    _bug(
        "puts-without-room",
        "What is put waits while those who follow its topic are far behind.",
        "held_puts.py",
        ("reader.after < lowest and", "reader.after < 0 and"),
    ),
    _bug(
        "held-for-ever",
        "What waits for room is put when there is some.",
        "held_puts.py",
        (
            "        while held and not self._is_full(topic):\n",
            "        while held and not held:\n",
        ),
    ),
    _bug(
        "waits-for-the-dead",
        "A follower that comes no further is not waited for for ever.",
        "held_puts.py",
        ("reader.moved_ns > since_ns", "reader.moved_ns >= 0"),
    ),
    _bug(
        "holds-in-silence",
        "Who has put what waits hears that it has come.",
        "puts.py",
        (
            "            chain[0].asked_ns = self._machine.now_ns\n            return\n",
            "            answering.heard_ns = 0\n            return\n",
        ),
    ),
    _bug(
        "kept-for-ever",
        "What is older than it has to be kept is let go of.",
        "retention.py",
        ("if through > topic.released and", "if through > topic.durable and"),
    ),
    _bug(
        "lost-before-its-time",
        "Nothing is let go of that somebody lacks before it is old.",
        "retention.py",
        ("self._machine.now_ns - self.bounds.max_retain_ns", "self._machine.now_ns"),
    ),
    _bug(
        "kept-without-room",
        "What there is no room for is let go of.",
        "retention.py",
        ("if last > topic.released:", "if last > topic.durable:"),
    ),
    _bug(
        "lost-with-room",
        "Nothing is let go of that somebody lacks while there is room for it.",
        "topic_log.py",
        ("left_bytes <= most_bytes or not is_free", "not is_free"),
    ),
    _bug(
        "newest-lost",
        "The newest record is kept, whatever its size.",
        "topic_log.py",
        (" or each.record == self._next - 1", ""),
    ),
    _bug(
        "given-and-lost",
        "What is being given to another server is kept, whatever there is room for.",
        "topic_log.py",
        ("topic.is_here and not topic.is_frozen and each.last", "topic.is_here and each.last"),
    ),
    _bug(
        "room-forgotten",
        "A server that was down knows how much it has in its log.",
        "topic_log.py",
        ("            self.logged_bytes += len(record)\n", ""),
    ),
    _bug(
        "given-up-and-kept-for",
        "Nothing is kept for a home that never comes back.",
        "core.py",
        ("            self.server.drop(broker)\n", "            pass\n"),
    ),
    _bug(
        "given-up-and-waited-for",
        "What is put does not wait for a home that never comes back.",
        "server.py",
        ("for part in follower.done if follower is not None else ():", "for part in ():"),
    ),
    _bug(
        "given-up-and-forgotten",
        "A broker that is given up is so after a restart.",
        "core.py",
        ("        self._gone.recover(event.recovered)\n", "        pass\n"),
    ),
    _bug(
        "given-up-on-a-neighbours-word",
        "A decommission from a neighbour carries the signature of the deployment's authority.",
        "parts/decommissioning.py",
        (
            "if broker not in self._gone and not self._authority.has_signed(broker, signature):",
            "if False:",
        ),
    ),
    _bug(
        "generations-leap",
        "A generation that is too far ahead of the known one is refused.",
        "parts/leaps.py",
        ("if is_leap((0, known), (0, stated)):", "if False:"),
    ),
    _bug(
        "given-up-and-let-in",
        "A broker that is given up is told so when it comes back.",
        "core.py",
        ("        self._gone.met(peer)\n", "        pass\n"),
    ),
    _bug(
        "given-up-and-followed-anew",
        "What a home that is given up has asked for before is not done any more.",
        "core.py",
        ("if message.home in self._gone:", "if message.home in ():"),
    ),
    _bug(
        "given-up-and-expected",
        "No home that is given up is expected to follow a topic that is given to a server.",
        "followers.py",
        ("if carried.home in self._gone:", "if carried.home in ():"),
    ),
    _bug(
        "lost-in-silence",
        "Who has not got what a server has let go of is told so.",
        "clients.py",
        ("            self.windows.deliver(local.client, run, (local,), (handed,), gap)\n", ""),
        ("            handed.open += 1\n", ""),
    ),
    _bug(
        "lost-for-all",
        "Who has what a server has let go of is told of no gap.",
        "clients.py",
        ("if (rest := each.after(had)) is not None]", "if (rest := each) is not None]"),
    ),
    _bug(
        "lost-and-forgotten",
        "A server that was down knows what it had let go of.",
        "topic_log.py",
        ("            lost += [row] if row is not None else []\n", ""),
    ),
    _bug(
        "lost-counts-as-done",
        "What a server has let go of is not what its homes are done with.",
        "topic_log.py",
        ("return self.released if first is None else first - 1", "return self.released"),
    ),
    _bug(
        "over-a-hole",
        "Nothing behind a hole is handed out.",
        "gets.py",
        ("topic.after is None or run.first > topic.after + 1", "topic.after is None"),
    ),
    _bug(
        "begins-unfollowed",
        "A subscription starts when all of its servers know of it.",
        "gets.py",
        ("if beginning is not None and not beginning.awaited:", "if beginning is not None:"),
        (
            "            if not beginning.awaited:\n"
            "                beginning.then(beginning.heads)",
            "            pass",
        ),
    ),
    _bug(
        "goes-on-at-the-head",
        "A home goes on behind what it was done with.",
        "gets.py",
        ("topic.after = each.head if each.topic in new else each.done", "topic.after = each.head"),
    ),
    _bug(
        "begins-with-what-was-kept",
        "Who subscribes begins behind all there is, also of what another server has given.",
        "gets.py",
        ("each.head if each.topic in new else", "each.head if not topic.goes_on else"),
    ),
    _bug(
        "left-before-it-was-said",
        "A home that needs a topic no more has first said that it follows it.",
        "gets.py",
        ("if not topic.followers and topic.number in told:", "if not topic.followers:"),
    ),
    _bug(
        "recovers-unfollowed",
        "A subscription that a crash found half-way is asked for again.",
        "clients.py",
        (
            "            self._on_kept(client, local)\n            return\n",
            "            row = []\n",
        ),
    ),
    _bug(
        "follows-piece-by-piece",
        "A home says at once all that it follows.",
        "gets.py",
        (
            "            if self._incarnation:\n                self._follow(followed)",
            "            self._incarnation = self._incarnation or 1\n"
            "            self._follow(followed)",
        ),
    ),
    _bug(
        "done-with-the-last-topic",
        "A publisher is done when all of its topics are.",
        "puts.py",
        (
            "return min(firsts) - 1 if firsts else self.submitted",
            "return max(firsts) - 1 if firsts else self.submitted",
        ),
    ),
    _bug(
        "puts-only-the-last-again",
        "What is put again begins with the first that has no answer.",
        "puts.py",
        ("        for put in chain:\n", "        for put in [*chain][-1:]:\n"),
    ),
    _bug(
        "never-asks-again",
        "Who has no answer asks again.",
        "ways.py",
        ("        way.asked.clear()\n        self._resend(server)", "        way.asked.clear()"),
    ),
    _bug(
        "keeps-to-its-proxy",
        "Who has no answer asks over another proxy.",
        "ways.py",
        ("way.proxy = self._next_proxy(server, way.proxy)\n        way.asked", "way.asked"),
    ),
    _bug(
        "any-answer-will-do",
        "Who has an answer to something else asks again all the same.",
        "ways.py",
        (
            "        return min(dues, default=self._machine.now_ns) + way.waited_ns\n",
            "        return max(dues, default=self._machine.now_ns) + way.waited_ns\n",
        ),
    ),
    _bug(
        "what-was-overtaken-is-waited-for",
        "What was put before something that is stored, and is not, is lost.",
        "puts.py",
        ("return oldest if oldest < answering.asked_ns else max(", "return max("),
    ),
    _bug(
        "server-at-work-is-asked-again",
        "What has its turn is not put again while its server stores what came before it.",
        "puts.py",
        ("else max(oldest, answering.heard_ns)", "else oldest"),
    ),
    _bug(
        "new-way-begins-empty",
        "A new way carries all that the old one has not answered.",
        "ways.py",
        (
            "            if way.proxy is not None:\n                self._resend(way.server)",
            "            pass",
        ),
    ),
    _bug(
        "owner-told-before-it-is-written",
        "Who owns a topic is on its arbiter's disk before anybody is told.",
        "arbiter.py",
        (
            "                owners = (Owner(topic, decision.server, decision.generation),)\n"
            "                self._answer(home, Located(self._broker, home, owners))\n\n"
            "        self._disk.commit((_row(topic, decision),), kept)",
            "                owners = (Owner(topic, decision.server, decision.generation),)\n"
            "                self._answer(home, Located(self._broker, home, owners))\n\n"
            "        self._disk.commit((_row(topic, decision),), int)\n"
            "        kept()",
        ),
    ),
    _bug(
        "assigned-before-it-is-written",
        "A topic that is assigned to a server is on that server's disk before it says so.",
        "arbiter.py",
        (
            "self._disk.commit(changes, kept)",
            "self._disk.commit(changes, int); kept()",
        ),
    ),
    _bug(
        "newest-candidate-owns",
        "Who owns a topic stays its owner.",
        "arbiter.py",
        ("if decision is not None and decision.is_owner and decision.is_kept:", "if False:"),
        (
            "elif decision.is_kept and decision.server != candidate and self._is_late(decision):",
            "elif decision.server != candidate:",
        ),
    ),
    _bug(
        "decisions-forgotten",
        "An arbiter knows after a restart what it has decided.",
        "arbiter.py",
        ("in recovered.get(OWNERS, {}).items():", "in {}.items():"),
    ),
    _bug(
        "keeps-to-its-candidate",
        "A server that does not take a topic loses it to another one.",
        "arbiter.py",
        ("self._disk.machine.now_ns - decision.since_ns >= self._retry_ns", "False"),
    ),
    _bug(
        "older-generation-owns",
        "What a server says of an assignment that was taken back counts for nothing.",
        "arbiter.py",
        ("if number == decision.generation and decision.is_kept", "if decision.is_kept"),
    ),
    _bug(
        "never-put-when-owned",
        "What has waited for an owner is put when there is one.",
        "puts.py",
        (
            "                self._put_all(server, topic, chain)\n\n    def disowned",
            "                self._put_all(server, topic, ())\n\n    def disowned",
        ),
    ),
    _bug(
        "forgets-its-owners",
        "A home that was down knows the owners that it knew.",
        "clients.py",
        (
            "self._owners.remember(owners)",
            "self._owners.remember(owners[:0])",
        ),
    ),
    _bug(
        "asks-an-arbiter-once",
        "Who asks for an owner asks until it is told.",
        "owners.py",
        (
            "        if self.awaits(server):\n            self._send",
            "        if False:\n            self._send",
        ),
    ),
    _bug(
        "merged-without-subscribers",
        "Who follows one of two owners follows the other when they merge.",
        "server.py",
        (
            "                if self.followers.follows(follower, owner.topic):\n",
            "                if False:\n",
        ),
    ),
    _bug(
        "waited-for-in-vain",
        "A home says that it does not follow a topic to a server that waits for it.",
        "gets.py",
        (
            "            self._add(followed, stream).goes_on = True\n",
            "            number += 0\n",
        ),
    ),
    _bug(
        "kept-for-followers-only",
        "A server keeps what somebody may be owed who follows the topic at another one.",
        "server.py",
        ("through = min(through, self.sharing.known.everywhere(topic))", "through += 0"),
    ),
    _bug(
        "moved-and-begun-anew",
        "What a home has of a topic it has wherever that is followed.",
        "gets.py",
        (
            "            topic.server = server\n",
            "            topic.server, topic.after = server, 0\n",
        ),
    ),
    _bug(
        "untold-of-what-has-come",
        "Who follows a topic hears of what another server has given to it.",
        "sharing.py",
        ("        if unknown:\n", "        if False:\n"),
        (
            "            self._server.tell(home, Merged(home, (self._here(number),)))\n"
            "        self._server.settle_all()",
            "            home += 0\n        self._server.settle_all()",
        ),
    ),
    _bug(
        "given-once",
        "A topic is given until the other server says that it has it.",
        "moves.py",
        (
            "        self._send_all()\n\n    def on_transferred",
            "        self._turn += 0\n\n    def on_transferred",
        ),
    ),
    _bug(
        "given-before-it-is-written",
        "A topic is given when all that was put to it is on disk.",
        "moves.py",
        ("if number not in self._unwritten:", "if number not in self.moved:"),
    ),
    _bug(
        "choice-forgotten",
        "A home knows after a restart to which server it goes for a topic.",
        "causal.py",
        ("in recovered.get(CHOSEN, {}).items())", "in {}.items())"),
    ),
    _bug(
        "expected-for-ever",
        "Who has followed a topic hears where it is until it says whether it still does.",
        "sharing.py",
        (
            "            for number in follower.expected:\n",
            "            for number in ():\n",
        ),
        (
            "        for home, _ in self._server.followers.of(number):\n",
            "        for home, _ in self._server.followers.of(-1):\n",
        ),
    ),
    _bug(
        "begins-with-all-there-is",
        "A subscription begins behind what its server knows of all others.",
        "server.py",
        ("known = self.sharing.known.of(message.topics)", "known = {}"),
    ),
    _bug(
        "taken-with-holes",
        "A topic is another server's when all of it has come there.",
        "moves.py",
        ("elif number not in self._coming and all(self._is_whole(number, message)):", "else:"),
    ),
    _bug(
        "begins-at-what-came-first",
        "What is carried begins where the giver says that it begins.",
        "topic_log.py",
        ("topic.begin_behind(released)", "topic.begin_behind(run.first - 1)"),
    ),
    _bug(
        "taken-before-it-is-written",
        "A topic is another server's when all of it is on disk there.",
        "moves.py",
        ("self._disk.commit(rows, taken)", "self._disk.commit(rows, int); taken()"),
    ),
    _bug(
        "sources-left-behind",
        "How far sources have come goes with a topic.",
        "moves.py",
        ("rows += self._log.put_through(number, dict(message.sources))", "rows += []"),
        (
            "                self._log.topic(number).came(source, through)\n",
            "                pass\n",
        ),
    ),
    _bug(
        "half-of-it-left-behind",
        "What has come of a topic that goes on to another server is not kept.",
        "moves.py",
        ("for topic in self._log.everything(number):", "for topic in self._log.parts(number):"),
    ),
    _bug(
        "followers-left-behind",
        "Who follows a topic goes with it.",
        "moves.py",
        ("            self._followers.expect(each_home, number)\n", "            pass\n"),
    ),
    _bug(
        "expected-and-forgotten",
        "What a home is not known to follow here yet is kept, whatever else it follows.",
        "sharing.py",
        ("if part.topic in wanted or part.topic in follower.expected:", "if part.topic in wanted:"),
    ),
    _bug(
        "expected-and-not-written",
        "A server that was down knows whom it expects, whatever else these had followed.",
        "followers.py",
        ("[*follower.version, own]", "[*follower.version, [*{*own} - {*follower.expected}]]"),
    ),
    _bug(
        "older-word-counts",
        "What a server has said later counts.",
        "known.py",
        ("if self._heard.get(message.server, version) >= version:", "if False:"),
        ("theirs[part] = max(through, theirs.get(part, 0))", "theirs[part] = through"),
    ),
    _bug(
        "asked-for-and-released",
        "What is owed to those who follow a topic at another server is kept until that is given.",
        "known.py",
        ("            if number not in asked:\n", "            if asked is not None:\n"),
    ),
    _bug(
        "put-while-it-is-given",
        "Nothing is put to a topic that is given to another server.",
        "server.py",
        ("if self.sharing is not None and self.sharing.is_away(home, (number,)):", "if False:"),
    ),
    _bug(
        "followed-while-it-is-given",
        "Nobody begins to follow a topic that is given to another server.",
        "sharing.py",
        ("            number not in self.moves.moving\n", "            True\n"),
    ),
    _bug(
        "given-and-forgotten",
        "What is to be another server's is so after a restart.",
        "moves.py",
        ("(self.moved if is_over else self.moving)[int(key)] = owner", "key += str(owner)"),
    ),
    _bug(
        "never-spread",
        "A server with many more topics than another one gives some to it.",
        "claims.py",
        ("if not self._spread or not heard:", "if self._names:"),
    ),
    _bug(
        "moves-what-it-knows",
        "A proxy counts the topics of servers that have said all that they own.",
        "claims.py",
        ("if server in self._heard]", "if self._is_reached(server)]"),
    ),
    _bug(
        "moves-back",
        "A topic does not come back to a server that has given it away.",
        "arbiter.py",
        ("server not in (decision.server, *decision.had):", "server != decision.server:"),
    ),
    _bug(
        "moves-before-it-is-written",
        "That a topic is to move is on its arbiter's disk before anybody is told.",
        "arbiter.py",
        (
            "self._disk.commit((_row(topic, decision),), tell)",
            "self._disk.commit((_row(topic, decision),), int); tell()",
        ),
    ),
    _bug(
        "move-forgotten",
        "An arbiter knows after a restart what is to move, and from whom it has moved.",
        "arbiter.py",
        ("decision.to, decision.had = next(iter(moves[0]), None), (*moves[1],)", "moves.clear()"),
    ),
    _bug(
        "told-to-give-once",
        "A server is told to give a topic away until it has said that it has.",
        "arbiter.py",
        (
            "        self._deadlines.set((GIVING, self._broker), ",
            "        max((GIVING, self._broker), (GIVING, 0)) and int(",
        ),
    ),
    _bug(
        "given-and-not-said",
        "A server says that it has given a topic away whenever it is told to.",
        "giving.py",
        (
            "            if number in self.moves.moved:\n",
            "            if False:\n",
        ),
    ),
    _bug(
        "given-and-not-owned",
        "A server that was given a topic owns it after a restart.",
        "giving.py",
        ("return (self._ownership.assignments.row(number, generation),)", "return ()"),
    ),
    _bug(
        "moved-home-forgotten",
        "A home knows after a restart to which server a topic has moved.",
        "giving.py",
        ("in recovered.get(CHOSEN, {}).items():", "in {}.items():"),
    ),
    _bug(
        "later-owner-first",
        "What a topic's former owner has given comes before what the later one gives.",
        "gets.py",
        ("            if (topic.after or 0) < topic.last:\n", "            if False:\n"),
    ),
    _bug(
        "age-forgotten",
        "A server that was down knows which of the former owners came later.",
        "moves.py",
        ("part.is_here, part.age = True, sum(age)", "part.is_here, part.age = True, -sum(age)"),
    ),
    _bug(
        "older-owner-followed",
        "A home goes by the highest generation in which it was told who owns a topic.",
        "giving.py",
        ("return owner.generation > self._generation(owner)", "return owner.generation > 0"),
    ),
    _bug(
        "row-answers-nobody",
        "Of an owner that a row knows those hear who have asked for it before that row was read.",
        "owners.py",
        (
            "        self._found([owner.topic for owner in owners if owner.topic in sought])\n",
            "",
        ),
    ),
    _bug(
        "owned-before-it-is-given",
        "A server says that it owns what it was told to own, and nothing else.",
        "arbiter.py",
        (" for topic in topics if self.owns(topic)", " for topic in topics"),
    ),
    _bug(
        "first-owner-of-no-generation",
        "A home knows in which generation it was told of a topic's owner, also for the first time.",
        "giving.py",
        (
            "        for owner in owners:\n"
            "            self._generations[owner.topic] = owner.generation\n"
            "        super()._go_by(owners)",
            "        super()._go_by(owners)",
        ),
    ),
    _bug(
        "never-merges",
        "Servers that own the same topic merge.",
        "paper.py",
        ("known.get(owner.topic, owner.server) != owner.server]", "not owner.server + 1]"),
    ),
    _bug(
        "waits-although-its-peer-is-there",
        "A session that its peer closed after long is dialled at once.",
        "neighbours.py",
        (
            "if dials_at_once(",
            "if established_ns < 0 and dials_at_once(",
        ),
    ),
    _bug(
        "dials-whatever-its-peer-closes",
        "A session that its peer closes soon is dialled after a wait.",
        "neighbours.py",
        (
            "if dials_at_once(",
            "if established_ns >= 0 or dials_at_once(",
        ),
    ),
)

MUTANTS: Final = {bug.name: bug for bug in BUGS}
