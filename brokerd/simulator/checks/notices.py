"""Notices of withheld publications: they were published behind a closed gate."""

from brokerd.model.client_messages import Notice
from brokerd.model.identity import ClientId, SourceId
from brokerd.simulator.checks.streams import StreamRegister
from brokerd.simulator.checks.violations import Violations


class NoticeJudge:
    """The judge of notices.

    Attributes:
        announced: number of (publication, subscription) pairs that were announced as withheld.
    """

    def __init__(self, register: StreamRegister, violations: Violations) -> None:
        self._register = register
        self._violations = violations
        self._unnamed: dict[SourceId, list[tuple[ClientId, Notice]]] = {}
        self.announced = 0

    def judge(self, client: ClientId, notice: Notice) -> None:
        """Judge a notice of withheld publications."""
        publisher = self._register.by_source.get(notice.source)
        subject = f"{client}/{notice.subscription} receives the notice that {notice} is withheld"
        subscription = self._register.subscriptions.get((client, notice.subscription))
        if subscription is None:
            self._violations.add("ended", f"{subject} after its end")
            return
        if publisher is None:
            # The broker may count publications of a source that its client has not named yet.
            self._unnamed.setdefault(notice.source, []).append((client, notice))
            return
        if notice.ranges[-1][1] > len(publisher.contents):
            self._violations.add("phantom", f"{subject}, which was never published")
            return
        stream = self._register.stream(subscription, publisher)
        for first, last in notice.ranges:
            for sequence in range(first, last + 1):
                if sequence not in stream.ranks:
                    continue  # whole stretches are named, also publications that do not match
                self.announced += 1
                if stream.at is not None:
                    delivered = stream.matching[stream.at]
                    self._violations.add("gap", f"{subject} after {delivered} was delivered")
                elif stream.fence is not None and sequence > stream.fence:
                    self._violations.add(
                        "gap", f"{subject}, published while the source was reachable"
                    )
                elif sequence <= stream.withheld:
                    self._violations.add("duplicate", f"{subject} again")
                stream.withheld = sequence

    def judge_named(self, source: SourceId) -> None:
        """Judge the notices of a source that its client has named now."""
        for client, notice in self._unnamed.pop(source, ()):
            self.judge(client, notice)

    def judge_end(self) -> None:
        """Judge the notices of sources that no client has named."""
        for source, notices in self._unnamed.items():
            subject = f"{notices[0][0]} received {source}, which does not exist"
            self._violations.add("phantom", subject)
