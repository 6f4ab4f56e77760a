"""The tables of a run: their columns, types, units and meaning.

All code that reads or writes a table uses these definitions, and SCHEMA.md is generated from the
definitions. Times are nanoseconds, 0 at the start of the measure phase. All integers are signed,
because Parquet readers disagree on unsigned integers. Columns are added, never renamed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 6


@dataclass(frozen=True)
class Column:
    """A column: name, Spark type, and content with unit."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        partition: the column that is in folder names instead of in the files, or "".
    """

    name: str
    meaning: str
    columns: tuple[Column, ...]
    partition: str = ""

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def ddl(self) -> str:
        """Return the columns as Spark DDL."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)

    def arrow_schema(self) -> "pa.Schema":
        """Return the columns as an Arrow schema, with their meaning."""
        import pyarrow as pa

        return pa.schema(
            [
                pa.field(column.name, arrow_type(column.type), metadata={"comment": column.meaning})
                for column in self.columns
            ]
        )


def arrow_type(spark_type: str) -> Any:
    """Return the Arrow type for a Spark type of ours."""
    import pyarrow as pa

    simple = {
        "STRING": pa.string(),
        "BIGINT": pa.int64(),
        "INT": pa.int32(),
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        "ARRAY<INT>": pa.list_(pa.int32()),
        "ARRAY<STRING>": pa.list_(pa.string()),
        "MAP<STRING,STRING>": pa.map_(pa.string(), pa.string()),
        "MAP<STRING,BIGINT>": pa.map_(pa.string(), pa.int64()),
    }
    return simple[spark_type]


def _table(name: str, meaning: str, rows: str, partition: str = "") -> Table:
    columns = [Column("run_id", "STRING", "the run")]
    for row in rows.strip().splitlines():
        column, spark_type, text = row.split(maxsplit=2)
        columns.append(Column(column, spark_type, text))
    return Table(name, meaning, tuple(columns), partition)


TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        _table("runs", "The run itself, one row.", """
            experiment STRING its name; runs of one experiment belong together
            started_utc TIMESTAMP wall clock of the controller
            ended_utc TIMESTAMP wall clock of the controller
            state STRING complete, partial, aborted or running
            protocol STRING which delivery protocol the brokers ran
            topology STRING name of the tree of brokers
            git_commit STRING commit of the code, empty where it was no checkout
            git_dirty BOOLEAN whether the checkout had changes on top
            tool_version STRING of pubsubctl
            seed BIGINT everything that is drawn is drawn from it
            labels MAP<STRING,STRING> given by whoever started the run
            params MAP<STRING,STRING> settings of the workload that sweeps vary
        """),
        _table("hosts", "The machines, one row each; logical hosts share a machine.", """
            host_id STRING name in the inventory
            platform STRING operating system and kernel
            cpu_model STRING processor
            cores_logical INT processors that the system may use
            python STRING version that ran the brokers
            boot_id STRING changes when the machine restarts; clocks compare within one boot only
        """),
        _table("procs", "Brokers and load generators, one row per start.", """
            proc_id STRING name of the process
            role STRING broker, publisher or subscriber
            host_id STRING where it ran
            pid INT process id
            t_start_ns BIGINT start
            t_exit_ns BIGINT end
            exit_code INT status it gave, null while unknown or when a signal ended it
            exit_signal INT signal that ended it, null when none did
            exit_cause STRING planned, fault:ID, unexpected or unknown
        """),
        _table("topology_nodes", "The brokers of the tree.", """
            broker STRING name
            parent STRING next broker towards the first of the file, null for that one
            depth INT links up to that one
            delta INT failures at once that the tree is wired for
            neighbourhood ARRAY<STRING> brokers within delta + 1 links
        """),
        _table("topology_edges", "The links of the tree.", """
            a STRING one end
            b STRING other end
            kind STRING primary: of the tree itself
        """),
        _table("phases", "What the run was doing when.", """
            phase STRING deploy, warmup, measure or drain
            t0_ns BIGINT start
            t1_ns BIGINT end
            how STRING fixed: as long as the workload says
        """),
        _table("clock", "The hosts' clocks against the one that all stamps are put on.", """
            phase STRING before or after the load
            host_id STRING whose clock
            ref_host STRING the host whose clock is the time line
            same_clock BOOLEAN whether they are one clock: one boot of one machine
            clock_id STRING equal where two hosts have one clock
            t_ns BIGINT when
            offset_ns BIGINT this clock minus the reference's
            drift_ppb DOUBLE by how much it gains, 0 where too little was seen to tell
            rtt_min_ns BIGINT the quickest round trip
            err_ns BIGINT the offset is not further off than that
            n INT round trips
        """),
        _table("publications", "What publishers sent, one row each, and what it must hold.", """
            publisher STRING client name
            pubend STRING source: broker and publisher number
            broker STRING where it was published
            incarnation INT of the publisher's counter
            seq BIGINT sequence number within source and incarnation
            size_bytes INT payload
            attrs_ref INT attribute set the publisher logged; a fence is the one behind the last
            attrs_expected INT attribute set that the seed decides
            digest BIGINT CRC-32 of attribute blob and payload that the seed decides
            is_fence BOOLEAN opens or closes the window in which everything is owed
            t_intended_ns BIGINT when the schedule wanted it sent
            t_sent_ns BIGINT when it was handed to the socket
            t_acked_ns BIGINT when its broker answered, null without an answer
            outcome STRING acked, rejected or unknown
            phase STRING by intended time
        """),
        _table("subscriptions", "What subscribers asked for.", """
            sub_id STRING client name and the client's own number
            subscriber STRING client name
            broker STRING where it subscribed
            predicate STRING as text
            t_issued_ns BIGINT asked for
            t_accepted_ns BIGINT started
            log_closed BOOLEAN whether the log of its deliveries was ended in order
        """),
        _table("sessions", "Sessions of clients with their brokers.", """
            client STRING client name
            broker STRING its broker
            session INT counted per client
            t_connect_ns BIGINT established
            t_disconnect_ns BIGINT ended, null while it lasted
            reason STRING why it ended
        """),
        _table("deliveries", "What subscribers received, one row each, by broker.", """
            sub_id STRING subscription
            pubend STRING source
            incarnation INT of the publisher's counter
            seq BIGINT sequence number
            kind STRING data, fence, gap, or redelivered: one of the first two, given again
            layer STRING application: what the client library handed on; wire: what it was given
            order_idx BIGINT place in the subscriber's log
            t_recv_ns BIGINT received; of a stretch, when its first one was
            t_intended_ns BIGINT copied from the publication, null where there is none
            t_sent_ns BIGINT copied from the publication
            lat_response_us BIGINT received minus intended, or negative; null if not in a sample
            lat_service_us BIGINT received minus sent
            same_clock BOOLEAN whether both stamps are of one clock
            lat_err_us BIGINT by how much latencies may be wrong: 0 of one clock, null if unknown
            attrs_expected INT copied from the publication
            outcome STRING copied from the publication, null where there is none
            digest_ok BOOLEAN whether the content was the expected one, null where there is none
            phase STRING by intended time
            broker STRING the subscriber's broker
        """, partition="broker"),
        _table("positions", "Where deliveries stand in a stream that is not their source's.", """
            sub_id STRING subscription
            stream STRING protocol's own name of it, its parts with slashes between them
            position BIGINT place in the stream
            order_idx BIGINT place of the delivery in the subscriber's log
            t_recv_ns BIGINT received
        """),
        _table("notices", "What subscribers were told that they do not get.", """
            sub_id STRING subscription
            pubend STRING source
            incarnation INT of the publisher's counter
            first_seq BIGINT first sequence number
            last_seq BIGINT last sequence number; of these, what the predicate matches
            partition STRING who withholds them: detector#incarnation.number:unreachable brokers
            order_idx BIGINT place in the subscriber's log
            t_ns BIGINT told
        """),
        _table("coverage", "What each subscription received of each source.", """
            sub_id STRING subscription
            pubend STRING source
            tick_lo BIGINT lowest sequence number
            tick_hi BIGINT highest sequence number
            n BIGINT deliveries
            n_dup BIGINT of which repeated
            n_out_of_order BIGINT of which after a later one
            n_owed BIGINT data publications it had to receive, without those withheld
            n_missing BIGINT of which it never did
            n_undecided BIGINT of which it may have, where a log is not whole
            n_withheld BIGINT data publications announced as withheld, and not received
            first_ns BIGINT first receipt
            last_ns BIGINT last receipt
            xor_hash BIGINT exclusive or of a hash of each delivery; equal sets have equal ones
        """),
        _table("hist", "Latencies, in buckets that add up across runs.", """
            proc_id STRING subscription
            metric STRING lat_response or lat_service
            phase STRING by intended time
            lo_us BIGINT lowest value of the bucket
            hi_us BIGINT first value above it; 128 buckets per doubling
            n BIGINT deliveries
        """),
        _table("broker_stats", "Each broker once a second.", """
            t_ns BIGINT when
            broker STRING name
            cpu_ratio DOUBLE processor time since the row before, 1 = one core
            rss_bytes BIGINT resident memory
            msgs_in BIGINT publications received so far
            msgs_out BIGINT publications forwarded and delivered so far
            queue_msgs BIGINT publications held
            sessions_active INT sessions
            subs INT subscriptions known
            counters MAP<STRING,BIGINT> everything else the protocol counts
        """),
        _table("loadgen_stats", "Each load generator once a second.", """
            t_ns BIGINT when
            proc_id STRING process
            offered BIGINT publications that were due so far
            sent BIGINT of which sent
            late_p99_us BIGINT how late the latest hundredth of the last second was sent
            cpu_ratio DOUBLE processor time since the row before, 1 = one core
            saturated BOOLEAN whether it could not hold its rate
        """),
        _table("links", "Sessions between brokers, as the brokers saw them.", """
            t_ns BIGINT when
            a STRING the broker that wrote it down
            b STRING its peer
            event STRING up, down, activated, stalled, cut, restored or switched
            cause STRING why, as far as the broker knew
        """),
        _table("retransmission_requests", "Each request of a broker for what it lacks.", """
            t_ns BIGINT when
            broker STRING who asked
            peer STRING whom
            pubend STRING the stream: the broker where it begins, and which one there
            ranges INT that the request names
            asked_ns BIGINT how long a time of the stream they are together
            cumulated_ns BIGINT the same of all requests of this broker so far, this one included
        """),
        _table("retransmission_totals", "Requests per broker, and what became of those to it.", """
            broker STRING name
            asked_ns BIGINT it has asked for, over all streams
            requests BIGINT in so many requests
            asked_of_it_ns BIGINT others have asked it for
            consolidation_ratio DOUBLE asked by it for each asked of it; null where nothing was
        """),
        _table("faults", "What was broken, and how far each fault got.", """
            fault_id STRING name
            step STRING of the schedule
            verb STRING absorb, send-omission, freeze, cut, kill, restart, client-roam and so on
            target STRING broker, link a-b, one direction a->b, or client
            params MAP<STRING,STRING> with the random values drawn
            t_planned_ns BIGINT when the schedule wanted it
            t_requested_ns BIGINT asked for
            t_applied_ns BIGINT done
            t_observed_ns BIGINT seen to have its effect
            t_heal_requested_ns BIGINT asked to end
            t_healed_ns BIGINT ended
            t_recovered_ns BIGINT seen to be over
            state STRING planned, requested, applied, observed, healed, recovered or failed
            healed_by STRING schedule, lease, user or process-death
            evidence STRING what showed the effect
            absorbed_msgs BIGINT publications taken in and held
            absorbed_bytes BIGINT their size
            parts ARRAY<STRING> the brokers and links of the tree that the target is, or client:NAME
            err_ns BIGINT by how far its times may be off; null where nobody compared the clocks
        """),
        _table("violations", "Each proven breach of the guarantee.", """
            check STRING which check found it
            kind STRING missing, duplicate, reordered, phantom, rejected, withheld_late, …
            sub_id STRING subscription
            pubend STRING source
            incarnation INT of the publisher's counter
            seq BIGINT sequence number
            order_idx BIGINT place in the subscriber's log, null for what is missing
            t_ns BIGINT received, or sent where it never was
            active_faults ARRAY<STRING> faults that held at that time
        """),
        _table("verdicts", "What each check came to.", """
            check STRING delivery
            verdict STRING VALID, INVALID or UNKNOWN
            n_checked BIGINT deliveries that were owed
            n_violations BIGINT breaches
            n_unknown BIGINT reasons for doubt
            exercised MAP<STRING,BIGINT> what was put to the test, and how much of it
            reason STRING in words
        """),
        _table("failures", "Of an experiment on trees: which brokers failed in one draw.", """
            fanout INT most neighbours a broker of the tree has
            failed INT how many failed
            run INT counted per point
            brokers ARRAY<INT> their numbers
        """),
        _table("connectivity", "Of an experiment on trees: pairs of brokers, per draw.", """
            fanout INT most neighbours a broker of the tree has
            delta INT failures in a row that are bypassed
            failed INT brokers that failed
            run INT counted per point; the same brokers failed for every delta
            live_pairs BIGINT pairs of brokers that have not failed
            disconnected_pairs BIGINT of which with more than delta failed ones in a row between
        """),
        _table("neighbourhoods", "Of a graph experiment: what each broker has to know.", """
            fanout INT most neighbours a broker of the tree has
            delta INT failures in a row that are bypassed
            broker INT its number
            neighbours INT other brokers within delta + 1 links
        """),
        _table("active_sessions", "Of a graph experiment: sessions of live brokers, per draw.", """
            fanout INT most neighbours a broker of the tree has
            delta INT failures in a row that are bypassed
            failed INT brokers that failed
            run INT counted per point
            by STRING formula: from the tree; protocol: what simulated brokers ended with
            sessions INT live brokers within delta + 1 links with only failed ones between
            brokers BIGINT how many live brokers have so many
        """),
        _table("simulated_points", "Of an experiment on simulated brokers: what each point is.", """
            fanout INT most neighbours a broker of the tree has
            delta INT failures in a row that are bypassed
            failed INT brokers that failed
            run INT counted per point; the same brokers failed for every delta
            live_brokers INT that had not failed at the end
            published BIGINT publications in the window, at live brokers
            deliveries BIGINT in the window, at live brokers
            violations BIGINT deliveries out of order, twice, with a gap, or of something else
            violated ARRAY<STRING> the rules that were broken
            withheld BIGINT publications announced to a subscriber instead of delivered
            suppressed BIGINT publications of a live broker that a live subscriber did not get
            unexplained BIGINT of these, those without more than delta failed in a row between
            duplicates BIGINT receptions of what a broker had received before
            resent BIGINT publications sent again, over another session
            messages BIGINT that were sent, those from and to clients included
            broker_events BIGINT that brokers handled
            processor_s DOUBLE processor time that simulating the point took
        """),
        _table("simulated_brokers", "Of an experiment on simulated brokers: per live broker.", """
            fanout INT most neighbours a broker of the tree has
            delta INT failures in a row that are bypassed
            failed INT brokers that failed
            run INT counted per point
            broker INT its number
            published BIGINT publications of its publisher in the window
            deliveries BIGINT to its subscriber in the window
        """),
        _table("simulated_seconds", "Of an experiment on simulated brokers: per second.", """
            fanout INT most neighbours a broker of the tree has
            delta INT failures in a row that are bypassed
            failed INT brokers that failed
            run INT counted per point
            second INT of the window, from 0
            published BIGINT publications in it
            deliveries BIGINT in it, to all subscribers
        """),
        _table("judged_draws", "Of an experiment around a failure: what each draw came to.", """
            point STRING what tells its point from the others
            run INT counted per point
            deliveries BIGINT of the whole draw
            violations BIGINT deliveries out of order, twice, with a gap, or of something else
            violated ARRAY<STRING> the rules that were broken
        """),
        _table("bypasses", "Of dft11.bypass: per subscriber behind a silent broker.", """
            delta INT failures in a row that are bypassed
            suspicion_ms INT silence after which a peer is suspected
            run INT counted per point
            broker INT of the subscriber
            latency_us BIGINT from the silence to the first delivery of anything published later
        """),
        _table("starts", "Of dft11.starts: per subscription.", """
            brokers INT of the tree
            delta INT failures in a row that are bypassed
            failed_percent INT brokers that failed before
            run INT counted per point
            subscription INT counted per draw
            broker INT of the subscriber
            latency_us BIGINT from asking to being told of the start, null for never
        """),
        _table("overheads", "Of dft11.overhead: per draw.", """
            variant STRING of the parameters
            delta INT failures in a row that are bypassed
            failed INT brokers that fell silent during the window
            run INT counted per point
            published BIGINT publications in the window
            deliveries BIGINT to brokers that live on
            duplicates BIGINT receptions of what a broker had received before
            resent BIGINT publications sent again, over another session
            bytes_between_brokers BIGINT of frames, heartbeats not counted
        """),
        _table("exclusions", "Of dft11.exclusions: per draw and source.", """
            length INT brokers in a row that were down
            partitioned_s INT from the subscription to their return
            run INT counted per point
            source STRING behind or inside: where the publisher is, seen from the subscriber
            published BIGINT by it since the subscription
            deliveries BIGINT of these
            withheld BIGINT of these, announced as withheld
            neither BIGINT of these, neither delivered nor announced
            open_us BIGINT from the return to the first delivery, null for never
        """),
        _table("queues", "Of dft11.queue: per draw and sample.", """
            length INT brokers in a row that were down
            run INT counted per point
            t_ms BIGINT since they fell silent
            queue_publications BIGINT held by the broker before them
            published BIGINT so far
            deliveries BIGINT so far, behind them
        """),
        _table("transmissions", "Of ges.links: per hierarchy, kind of interest and match rate.", """
            topology STRING its name
            interest STRING each client or each broker: for whom it was drawn
            match_percent INT of so many clients a publication is for each
            publications BIGINT published
            brokers_reached BIGINT with a client that one was for, its publisher's not counted
            transmissions BIGINT over one link each, as brokers count what they send on
            owed BIGINT deliveries that there had to be
            delivered BIGINT deliveries
            violations BIGINT deliveries out of order, twice, with a gap, or of something else
        """),
        _table("latency_surfaces", "Of ges.fig7: per hierarchy, match rate, size and rate.", """
            topology STRING its name
            match_percent INT of so many clients a publication is for each
            is_flooding BOOLEAN true: every broker receives every publication
            size_bytes INT of the payload of a publication
            rate INT publications per second, at random times
            publications BIGINT measured, after the warm-up
            delivered BIGINT of these, at the measuring client
            mean_ms DOUBLE latency at the measuring client
            variance_ms2 DOUBLE of the latency
            p99_ms DOUBLE of the latency
            busiest DOUBLE share of the time in which the busiest broker sends
            violations BIGINT missing deliveries of all clients, and wrong ones
        """),
        _table("shapes", "Of ges.scale: per shape of graph and number of brokers.", """
            shape STRING hierarchy, ring or random
            fanout INT members of a unit, at most; of the hierarchy that it stands beside
            brokers INT in it
            links INT between them
            mean_degree DOUBLE links of a broker
            clustering DOUBLE of pairs of neighbours, the share with a link
            mean_path_links DOUBLE on a shortest way, over all pairs
            longest_path_links INT on the longest of these
        """),
        _table("hierarchies", "Of ges.scale: per hierarchy, and broker of it that was drawn.", """
            fanout INT members of a unit, at most
            brokers INT in the hierarchy
            levels INT of links
            links INT between brokers
            broker STRING that was drawn
            graph_units INT brokers and units in its graph, itself among them
            graph_connections INT behind the edges of its graph
            profile_messages BIGINT that told all others of a change of its profile
            answers BIGINT to these
            deciding INT brokers that decide by its profile
            keeper_messages BIGINT with it, if only gatekeepers keep it; null: not counted
            keeper_answers BIGINT to these
            keepers INT brokers that keep its profile then
            mean_kept DOUBLE profiles that a broker of the hierarchy keeps then
            inner_kept INT most that a broker without links out of its cluster keeps then
        """),
        _table("link_load", "Of ges.load: per case and second.", """
            case STRING of the experiment
            second INT from the beginning
            is_slow BOOLEAN the link that is slowed down is slow
            published BIGINT in it
            over_slow BIGINT publications over that link
            delivered BIGINT deliveries
            mean_latency_ms DOUBLE of these; null without any
        """),
        _table("lost_last_events", "Of gd02.dct: per case and draw.", """
            case STRING of the experiment
            run INT counted per case
            recovery_s DOUBLE from the lost event to its last delivery; null: not within the limit
            idle_messages BIGINT between brokers in the idle time of the experiment
            busy_messages BIGINT between brokers in its busy time, other than events
        """),
        _table("churn_messages", "Of control.churn: per protocol and number of brokers.", """
            protocol STRING of the brokers
            title STRING what the experiment calls it
            brokers INT in its overlay
            changes INT subscriptions that came, and that went, together
            messages BIGINT of brokers to brokers meanwhile
            message_bytes BIGINT in these
            idle_messages BIGINT of the same brokers in the same time, when nothing changed
            idle_bytes BIGINT in these
            seconds DOUBLE that it was
            mean_started_s DOUBLE until a subscription had started
            mean_kept DOUBLE subscriptions that a broker keeps, its own and others
            most_kept INT subscriptions that a broker keeps
        """),
        _table("owned_topics", "Of mp22.m3: per kind of ownership, draw and server.", """
            ownership STRING who decides which server owns a topic
            run INT counted per kind of ownership
            server STRING whose topics are counted
            topics INT that homes ask it for, when all proxies have heard of all servers
        """),
        _table("stalled_seconds", "Of mp22.m6: per second, and whether the server stalls then.", """
            ownership STRING who decides which server owns a topic
            run INT counted per kind of ownership
            second INT from the first publication on
            stalled_server BOOLEAN stored at the server that stalls, or at any other
            published INT in that second
            delivered INT of these, to all subscribers
            slowest_ms DOUBLE what the slowest of them took
            last_came_s DOUBLE after the first publication: when all of them had come
            mean_ms DOUBLE what they took, mean
            violations INT of the whole run: missing, twice, out of order or of something else
        """),
        _table("crash_points", "Of mp22.m7: per crash point and draw.", """
            crash_point STRING of the design
            ownership STRING who decides which server owns a topic
            run INT counted per crash point
            broker STRING that died there; empty: none came to it
            owed INT deliveries
            delivered INT deliveries
            violations INT missing, twice, out of order or of something else
            rules STRING that were broken
        """),
        _table("asked_again", "Of mp22.m8: per timeout and stall.", """
            timeout_ms INT how long a home waits for an answer at first
            stall_ms INT how long the only server answers nothing
            run INT counted per timeout and stall
            published INT while it did not
            puts_mean DOUBLE how often each of these was put
            puts_most INT how often one of them was
            known_already INT publications that were put and that the server had stored, or held
            nested_most INT how often one put reaches it with three tries at each of two hops
            slowest_ms DOUBLE until the last one had come
            undelivered INT publications
            violations INT missing, twice, out of order or of something else
        """),
        _table("stored", "Of ds03.pfs: per way to keep what may be missed, and repetition.", """
            way STRING of what is kept, and where
            run INT counted per way
            wall_s DOUBLE until all was durable, dropping included
            processor_s DOUBLE of the process
            written_bytes BIGINT handed to the operating system
            syncs BIGINT how often the disk was waited for; of SQLite its transactions
            events BIGINT in all
            matches BIGINT subscribers that they were for, added up
        """),
        _table("consumed", "Of ds03.jms: per subscribers, way to commit, and repetition.", """
            subscribers INT that have each event committed before they take the next
            lanes INT transactions that may be under way at once
            batch INT commits that share one at most, 0 for any
            run INT counted per way
            consumed BIGINT events that were committed, of all subscribers
            wall_s DOUBLE until the last of them was
            commits BIGINT that the broker has counted, of silence too
            transactions BIGINT that these took
        """),
    )
}  # fmt: skip


def schema_markdown() -> str:
    """Return the text of SCHEMA.md."""
    return "\n".join(_markdown_lines()) + "\n"


def _markdown_lines() -> Iterator[str]:
    yield "# Tables of a run"
    yield ""
    yield "Made from `results/tables/schema.py`; `python -m results.tables.schema` prints it."
    yield ""
    yield (
        "`pubsubctl check` writes these as Parquet into `tables/` of a run's folder. Times are"
        " nanoseconds on the run's own time line: 0 is the start of the measure phase. Tables of"
        " several runs can be read together; each has a `run_id`."
    )
    for table in TABLES.values():
        yield ""
        yield f"## {table.name}"
        yield ""
        yield table.meaning
        yield ""
        yield "| column | type | meaning |"
        yield "|---|---|---|"
        for column in table.columns:
            yield f"| `{column.name}` | {column.type} | {column.meaning} |"


if __name__ == "__main__":
    import sys

    sys.stdout.write(schema_markdown())
