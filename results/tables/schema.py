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
            protocol STRING the delivery protocol of the brokers
            topology STRING name of the tree of brokers
            git_commit STRING commit of the code, empty without a checkout
            git_dirty BOOLEAN true if the checkout had uncommitted changes
            tool_version STRING of pubsubctl
            seed BIGINT seed of all random choices
            labels MAP<STRING,STRING> labels of the user
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
            host_id STRING its host
            pid INT process id
            t_start_ns BIGINT start
            t_exit_ns BIGINT end
            exit_code INT exit status, null if unknown or ended by a signal
            exit_signal INT signal that ended it, null without one
            exit_cause STRING planned, fault:ID, unexpected or unknown
        """),
        _table("topology_nodes", "The brokers of the tree.", """
            broker STRING name
            parent STRING next broker towards the first of the file, null for that one
            depth INT links up to that one
            delta INT simultaneous failures that the tree tolerates
            neighbourhood ARRAY<STRING> brokers within delta + 1 links
        """),
        _table("topology_edges", "The links of the tree.", """
            a STRING one end
            b STRING other end
            kind STRING primary: of the tree itself
        """),
        _table("phases", "The phases of the run.", """
            phase STRING deploy, warmup, measure or drain
            t0_ns BIGINT start
            t1_ns BIGINT end
            how STRING fixed: as long as in the workload
        """),
        _table("clock", "The hosts' clocks, compared with the clock of the run's time line.", """
            phase STRING before or after the load
            host_id STRING host of the clock
            ref_host STRING host with the clock of the time line
            same_clock BOOLEAN true for one clock: one boot of one machine
            clock_id STRING equal for hosts with one clock
            t_ns BIGINT time of the comparison
            offset_ns BIGINT this clock minus the reference's
            drift_ppb DOUBLE rate by which it gains, 0 if unknown
            rtt_min_ns BIGINT shortest round trip
            err_ns BIGINT bound of the offset's error
            n INT round trips
        """),
        _table("publications", "Publications, one row each, with their expected contents.", """
            publisher STRING client name
            pubend STRING source: broker and publisher number
            broker STRING access broker of the publisher
            incarnation INT of the publisher's counter
            seq BIGINT sequence number within source and incarnation
            size_bytes INT payload
            attrs_ref INT attribute set the publisher logged; a fence is the one behind the last
            attrs_expected INT attribute set by the seed
            digest BIGINT CRC-32 of attribute blob and payload by the seed
            is_fence BOOLEAN opens or closes the window in which everything is owed
            t_intended_ns BIGINT intended time
            t_sent_ns BIGINT time of the write to the socket
            t_acked_ns BIGINT time of its broker's answer, null without an answer
            outcome STRING acked, rejected or unknown
            phase STRING by intended time
        """),
        _table("subscriptions", "Requested subscriptions.", """
            sub_id STRING client name and the client's own number
            subscriber STRING client name
            broker STRING access broker of the subscriber
            predicate STRING as text
            t_issued_ns BIGINT requested
            t_accepted_ns BIGINT started
            log_closed BOOLEAN true if the log of its deliveries is complete
        """),
        _table("sessions", "Sessions of clients with their brokers.", """
            client STRING client name
            broker STRING its broker
            session INT counted per client
            t_connect_ns BIGINT established
            t_disconnect_ns BIGINT ended, null while it lasted
            reason STRING reason for the end
        """),
        _table("deliveries", "Deliveries to subscribers, one row each, by broker.", """
            sub_id STRING subscription
            pubend STRING source
            incarnation INT of the publisher's counter
            seq BIGINT sequence number
            kind STRING data, fence, gap, or redelivered: data or fence again
            layer STRING application: from the client library; wire: to the client library
            order_idx BIGINT place in the subscriber's log
            t_recv_ns BIGINT received; of a stretch, the time of its first delivery
            t_intended_ns BIGINT copied from the publication, null without one
            t_sent_ns BIGINT copied from the publication
            lat_response_us BIGINT received minus intended, or negative; null if not in a sample
            lat_service_us BIGINT received minus sent
            same_clock BOOLEAN true if both stamps are of one clock
            lat_err_us BIGINT bound of the latencies' error: 0 of one clock, null if unknown
            attrs_expected INT copied from the publication
            outcome STRING copied from the publication, null without one
            digest_ok BOOLEAN true if the content is as expected, null without a publication
            phase STRING by intended time
            broker STRING the subscriber's broker
        """, partition="broker"),
        _table("positions", "Positions of deliveries in streams other than their sources'.", """
            sub_id STRING subscription
            stream STRING the protocol's name of the stream, its parts separated by slashes
            position BIGINT place in the stream
            order_idx BIGINT place of the delivery in the subscriber's log
            t_recv_ns BIGINT received
        """),
        _table("notices", "Notices to subscribers of withheld publications.", """
            sub_id STRING subscription
            pubend STRING source
            incarnation INT of the publisher's counter
            first_seq BIGINT first sequence number
            last_seq BIGINT last sequence number; withheld are those that the predicate matches
            partition STRING the reason: detector#incarnation.number:unreachable brokers
            order_idx BIGINT place in the subscriber's log
            t_ns BIGINT received
        """),
        _table("coverage", "The deliveries of each source to each subscription, in summary.", """
            sub_id STRING subscription
            pubend STRING source
            tick_lo BIGINT lowest sequence number
            tick_hi BIGINT highest sequence number
            n BIGINT deliveries
            n_dup BIGINT of these, repeated
            n_out_of_order BIGINT of these, after a later one
            n_owed BIGINT owed data publications, without withheld ones
            n_missing BIGINT of these, never received
            n_undecided BIGINT of these, possibly received, because a log is incomplete
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
            counters MAP<STRING,BIGINT> all other counters of the protocol
        """),
        _table("loadgen_stats", "Each load generator once a second.", """
            t_ns BIGINT when
            proc_id STRING process
            offered BIGINT publications that were due so far
            sent BIGINT of these, sent
            late_p99_us BIGINT 99th percentile of the lateness of sends in the last second
            cpu_ratio DOUBLE processor time since the row before, 1 = one core
            saturated BOOLEAN true if it did not reach its rate
        """),
        _table("links", "Sessions between brokers, by the brokers' logs.", """
            t_ns BIGINT time of the event
            a STRING the broker with the record
            b STRING its peer
            event STRING up, down, activated, stalled, cut, restored or switched
            cause STRING the cause, if the broker has one
        """),
        _table("retransmission_requests", "Retransmission requests of brokers, one row each.", """
            t_ns BIGINT time of the request
            broker STRING the sender
            peer STRING the receiver
            pubend STRING the stream: the broker of its pubend, and the number there
            ranges INT ranges in the request
            asked_ns BIGINT total length of the ranges, in time of the stream
            cumulated_ns BIGINT the same for all requests of this broker so far, with this one
        """),
        _table("retransmission_totals", "Retransmission requests per broker.", """
            broker STRING name
            asked_ns BIGINT length of the requested ranges, over all streams
            requests BIGINT number of its requests
            asked_of_it_ns BIGINT length of the ranges requested from it
            consolidation_ratio DOUBLE length requested by it per length requested from it
        """),
        _table("faults", "Injected faults, with their progress.", """
            fault_id STRING name
            step STRING of the schedule
            verb STRING absorb, send-omission, freeze, cut, kill, restart, client-roam and so on
            target STRING broker, link a-b, one direction a->b, or client
            params MAP<STRING,STRING> parameters, with the drawn values
            t_planned_ns BIGINT planned
            t_requested_ns BIGINT requested
            t_applied_ns BIGINT applied
            t_observed_ns BIGINT its effect observed
            t_heal_requested_ns BIGINT its end requested
            t_healed_ns BIGINT ended
            t_recovered_ns BIGINT its end observed
            state STRING planned, requested, applied, observed, healed, recovered or failed
            healed_by STRING schedule, lease, user or process-death
            evidence STRING evidence of the effect
            absorbed_msgs BIGINT publications received and held
            absorbed_bytes BIGINT their size
            parts ARRAY<STRING> the brokers and links of the tree that the target is, or client:NAME
            err_ns BIGINT bound of the error of its times; null if the clocks were not compared
        """),
        _table("violations", "Each proven breach of the guarantee.", """
            check STRING the check that found it
            kind STRING missing, duplicate, reordered, phantom, rejected, withheld_late, …
            sub_id STRING subscription
            pubend STRING source
            incarnation BIGINT of the publisher's counter
            seq BIGINT sequence number
            order_idx BIGINT place in the subscriber's log, null for a missing publication
            t_ns BIGINT received, or sent if never received
            active_faults ARRAY<STRING> faults that held at that time
        """),
        _table("verdicts", "The verdict of each check.", """
            check STRING delivery
            verdict STRING VALID, INVALID or UNKNOWN
            n_checked BIGINT deliveries that were owed
            n_violations BIGINT breaches
            n_unknown BIGINT reasons for doubt
            exercised MAP<STRING,BIGINT> amounts of the tested behaviour, by kind
            reason STRING in words
        """),
        _table("failures", "Of an experiment on trees: the failed brokers of each draw.", """
            fanout INT most neighbours a broker of the tree has
            failed INT number of failed brokers
            run INT counted per point
            brokers ARRAY<INT> their numbers
        """),
        _table("connectivity", "Of an experiment on trees: pairs of brokers, per draw.", """
            fanout INT most neighbours a broker of the tree has
            delta INT failures in a row that are bypassed
            failed INT brokers that failed
            run INT counted per point; the same brokers failed for every delta
            live_pairs BIGINT pairs of brokers that have not failed
            disconnected_pairs BIGINT of these, with more than delta failed ones in a row between
        """),
        _table("neighbourhoods", "Of a graph experiment: the neighbourhood of each broker.", """
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
            by STRING formula: from the tree; protocol: at the end of a simulation
            sessions INT live brokers within delta + 1 links with only failed ones between
            brokers BIGINT number of live brokers with so many
        """),
        _table("simulated_points", "Of an experiment on simulated brokers: per point.", """
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
            suppressed BIGINT publications of a live broker that a live subscriber did not receive
            unexplained BIGINT of these, those without more than delta failed in a row between
            duplicates BIGINT receptions of what a broker had received before
            resent BIGINT publications sent again, over another session
            messages BIGINT sent messages, those from and to clients included
            broker_events BIGINT events that brokers handled
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
        _table("judged_draws", "Of an experiment around a failure: the verdict of each draw.", """
            point STRING the values of its point
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
            latency_us BIGINT from the request to the report of the start, null for never
        """),
        _table("overheads", "Of dft11.overhead: per draw.", """
            variant STRING of the parameters
            delta INT failures in a row that are bypassed
            failed INT brokers that failed during the window
            run INT counted per point
            published BIGINT publications in the window
            deliveries BIGINT to live brokers
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
            t_ms BIGINT since they failed
            queue_publications BIGINT held by the broker before them
            published BIGINT so far
            deliveries BIGINT so far, behind them
        """),
        _table("transmissions", "Of ges.links: per hierarchy, kind of interest and match rate.", """
            topology STRING its name
            interest STRING each client or each broker: for whom it was drawn
            match_percent INT share of the clients that a publication matches
            publications BIGINT published
            brokers_reached BIGINT with a matching client, without the publisher's broker
            transmissions BIGINT over one link each, by the brokers' counters
            owed BIGINT owed deliveries
            delivered BIGINT deliveries
            violations BIGINT deliveries out of order, twice, with a gap, or of something else
        """),
        _table("latency_surfaces", "Of ges.fig7: per hierarchy, match rate, size and rate.", """
            topology STRING its name
            match_percent INT share of the clients that a publication matches
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
            profile_messages BIGINT that announced a change of its profile to all others
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
        _table("missed_events", "Of ds03.caches: per case and draw.", """
            case STRING of the experiment
            run INT counted per case
            published BIGINT events
            missing BIGINT that subscribers never received
            fetched_from_pubends BIGINT missed events that were read from the log of a pubend
            fetched_from_store BIGINT among events that have passed a broker
            fetched_from_memory BIGINT among events that are not acknowledged at a broker
        """),
        _table("churn_messages", "Of control.churn: per protocol and number of brokers.", """
            protocol STRING of the brokers
            title STRING its name in the experiment
            brokers INT in its overlay
            changes INT started and ended subscriptions, together
            messages BIGINT of brokers to brokers meanwhile
            message_bytes BIGINT in these
            idle_messages BIGINT of the same brokers in the same time without changes
            idle_bytes BIGINT in these
            seconds DOUBLE length of the time
            mean_started_s DOUBLE until a subscription had started
            mean_kept DOUBLE subscriptions that a broker keeps, its own and others
            most_kept INT subscriptions that a broker keeps
        """),
        _table("owned_topics", "Of mp22.m3: per kind of ownership, draw and server.", """
            ownership STRING the rule that assigns topics to servers
            run INT counted per kind of ownership
            server STRING the owner of the topics
            topics INT that access brokers request there, once proxies have all servers
        """),
        _table("stalled_seconds", "Of mp22.m6: per second, and whether the server stalls then.", """
            ownership STRING the rule that assigns topics to servers
            run INT counted per kind of ownership
            second INT from the first publication on
            stalled_server BOOLEAN stored at the server that stalls, or at any other
            published INT in that second
            delivered INT of these, to all subscribers
            slowest_ms DOUBLE longest latency of these
            last_came_s DOUBLE from the first publication to the last delivery of these
            mean_ms DOUBLE mean latency of these
            violations INT of the whole run: missing, twice, out of order or of something else
        """),
        _table("crash_points", "Of mp22.m7: per crash point and draw.", """
            crash_point STRING of the design
            ownership STRING the rule that assigns topics to servers
            run INT counted per crash point
            broker STRING that died there; empty if none reached the point
            owed INT deliveries
            delivered INT deliveries
            violations INT missing, twice, out of order or of something else
            rules STRING that were broken
        """),
        _table("asked_again", "Of mp22.m8: per timeout and stall.", """
            timeout_ms INT first wait of an access broker for an answer
            stall_ms INT time without an answer of the only server
            run INT counted per timeout and stall
            published INT in that time
            puts_mean DOUBLE publish requests per publication, mean
            puts_most INT publish requests per publication, most
            known_already INT publish requests for publications that the server had
            nested_most INT arrivals of one publish request with three tries at each of two hops
            slowest_ms DOUBLE until the last delivery
            undelivered INT publications
            violations INT missing, twice, out of order or of something else
        """),
        _table("stored", "Of ds03.pfs: per way to retain missed events, and repetition.", """
            way STRING the way to retain missed events
            run INT counted per way
            wall_s DOUBLE until all was durable, dropping included
            processor_s DOUBLE of the process
            written_bytes BIGINT handed to the operating system
            syncs BIGINT waits for the disk; of SQLite its transactions
            events BIGINT in all
            matches BIGINT pairs of an event and a matching subscriber
        """),
        _table("consumed", "Of ds03.jms: per subscribers, way to commit, and repetition.", """
            subscribers INT that have each event committed before they take the next
            lanes INT transactions that may be under way at once
            batch INT commits that share one at most, 0 for any
            run INT counted per way
            consumed BIGINT events that were committed, of all subscribers
            wall_s DOUBLE until the last of them was
            commits BIGINT that the broker has counted, of silence too
            transactions BIGINT transactions of these commits
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
