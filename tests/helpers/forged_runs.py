"""Forgeries: changes that make an invalid run folder look VALID, and the expected verdicts.

Each forgery changes the files of a synthetic honest run, and seals the files again. The online
checker reads no file but receives deliveries and notices, so it detects some kinds only.

This module forges faults, statements of the run about itself, seals and gates; `forged_logs` adds
forgeries of logs to the same table.
"""

import shutil

from results.tables.record_files import NOTICE
from tests.helpers import forged_logs as forged_logs
from tests.helpers.forged_folders import FORGERIES as FORGERIES
from tests.helpers.forged_folders import LAST, NEAR, S1, WITHHELD, RunFolder, _withhold, forgery
from tests.helpers.runs import ORIGIN_NS, SECOND

# --- Faults ---------------------------------------------------------------------------------


@forgery("doubt", "was planned and is not in the fault log", blind="faults")
def a_fault_is_not_logged(run: RunFolder) -> None:
    with run.lines("faults/faults.jsonl") as rows:
        del rows[2]


@forgery("doubt", "was never planned", blind="faults")
def a_fault_is_made_up(run: RunFolder) -> None:
    with run.lines("faults/faults.jsonl") as rows:
        rows.append({**rows[0], "fault_id": "excuse", "target": "s1"})


@forgery("doubt", "is not what was planned", blind="faults")
def another_broker_was_struck_than_planned(run: RunFolder) -> None:
    with run.fault(2) as fault:
        fault["target"] = "b2"


@forgery("doubt", "was not applied", blind="faults")
def a_fault_was_not_applied(run: RunFolder) -> None:
    with run.fault(2) as fault:
        fault["t_applied_ns"] = None


@forgery("doubt", "was not observed", blind="faults")
def a_fault_was_not_observed(run: RunFolder) -> None:
    with run.fault(1) as fault:
        fault["t_observed_ns"] = None


@forgery("doubt", "ended or was observed before it was applied", blind="faults")
def a_fault_was_over_before_it_began(run: RunFolder) -> None:
    with run.fault(1) as fault:
        fault["t_healed_ns"] = fault["t_applied_ns"] - SECOND


@forgery("doubt", "reports that it absorbed nothing", blind="faults")
def an_absorb_absorbed_nothing(run: RunFolder) -> None:
    with run.fault(0) as fault:
        fault["absorbed_msgs"] = 0


@forgery("doubt", "does not report what it absorbed", blind="faults")
def an_absorb_does_not_say_what_it_absorbed(run: RunFolder) -> None:
    with run.fault(0) as fault:
        fault["absorbed_msgs"] = None


@forgery("doubt", ") failed: ", blind="faults")
def a_fault_went_wrong(run: RunFolder) -> None:
    with run.fault(0) as fault:
        fault["state"] = "failed"


@forgery("doubt", "nothing was at risk", blind="faults")
def nothing_was_put_to_the_test(run: RunFolder) -> None:
    shutil.rmtree(run.path("faults"))


@forgery("doubt", "its fault log is empty", blind="faults")
def the_schedule_left_no_trace(run: RunFolder) -> None:
    run.path("spec/faults.toml").write_text("")
    shutil.rmtree(run.path("faults"))


@forgery("doubt", "only 112 publications were absorbed", blind="faults")
def the_schedule_asked_for_more(run: RunFolder) -> None:
    run.path("spec/faults.toml").write_text("[exercised]\nabsorbed_msgs_min = 500\n")


@forgery("doubt", "nothing was at risk for the subscribers at s4", blind="faults")
def the_faults_spared_whom_they_should_strike(run: RunFolder) -> None:
    run.path("spec/faults.toml").write_text('[exercised]\nsubscribers_on_path = ["s1", "s4"]\n')


# --- What the run says of itself ------------------------------------------------------------


@forgery("doubt", "the run is partial", blind="manifest")
def the_run_did_not_end(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest["state"] = "partial"


@forgery("doubt", "could not hold their rate", blind="manifest")
def the_load_was_less_than_asked_for(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest["loadgen_saturated"] = True


@forgery("doubt", "never reached its measure phase", blind="manifest")
def nothing_was_measured(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        del manifest["origin_ns"]


@forgery("doubt", "closing fence before the measurement ended", blind="manifest")
def the_measurement_went_on_without_publishers(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest["phases"][2]["t1_ns"] += 60 * SECOND


@forgery("doubt", "the manifest has seed 12", blind="manifest")
def the_manifest_is_of_another_seed(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest["seed"] = 12


@forgery("doubt", "the manifest has topology 'other'", blind="manifest")
def the_manifest_is_of_another_topology(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest["topology"] = "other"


@forgery("doubt", "deliveries were still arriving", online="fences awaited")
def the_drain_ended_while_deliveries_were_arriving(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.all["sequence"] > 25)
    with run.document("manifest.json") as manifest:
        manifest["drain"] = {"ended_by": "bound", "took_s": 300.0, "waiting_for": "24 fences"}


@forgery("violation", "missing", online="fences awaited")
def the_drain_ended_in_silence_and_deliveries_are_missing(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.all["sequence"] > 25)
    with run.document("manifest.json") as manifest:
        manifest["drain"] = {"ended_by": "silence", "took_s": 30.0, "waiting_for": "24 fences"}


# --- The seal -------------------------------------------------------------------------------


@forgery("doubt", "has no seal", blind="seal", sealed=False)
def the_seal_is_gone(run: RunFolder) -> None:
    run.path("SHA256SUMS").unlink()


@forgery("refused", "faults/faults.jsonl has changed", blind="seal", sealed=False)
def a_file_was_changed_after_the_run(run: RunFolder) -> None:
    with run.fault(0) as fault:
        fault["absorbed_msgs"] = 500


@forgery("refused", "faults/faults.jsonl has changed", blind="seal", sealed=False)
def a_line_was_added_that_no_version_writes(run: RunFolder) -> None:
    with run.lines("faults/faults.jsonl") as rows:
        rows.append({"note": "not by us"})


@forgery("refused", "None", blind="faults")
def a_line_that_no_version_writes_is_sealed(run: RunFolder) -> None:
    with run.lines("faults/faults.jsonl") as rows:
        rows.append({"note": "not by us"})


@forgery("refused", "clock.jsonl is", blind="seal", sealed=False)
def a_file_was_added_after_the_run(run: RunFolder) -> None:
    run.path("clock.jsonl").write_text("")


@forgery("refused", "faults/plan.jsonl is missing", blind="seal", sealed=False)
def a_file_was_removed_after_the_run(run: RunFolder) -> None:
    run.path("faults/plan.jsonl").unlink()


@forgery("refused", "plan.jsonl is", blind="seal", sealed=False)
def a_link_leads_out_of_the_folder(run: RunFolder) -> None:
    plan = run.path("faults/plan.jsonl")
    plan.rename(run.folder.parent / f"{run.folder.name}.jsonl")
    plan.symlink_to(run.folder.parent / f"{run.folder.name}.jsonl")


@forgery("refused", "deliveries.rec", blind="sidecars")
def a_sidecar_counts_other_records(run: RunFolder) -> None:
    with run.document(f"raw/{NEAR}/deliveries.rec.json") as sidecar:
        sidecar["rows"] -= 1


@forgery("refused", "deliveries.rec", blind="sidecars")
def a_log_does_not_have_its_sidecars_sum(run: RunFolder) -> None:
    with run.document(f"raw/{NEAR}/deliveries.rec.json") as sidecar:
        sidecar["blake2b"] = "0" * 128


# --- Gates ----------------------------------------------------------------------------------


@forgery("violation", "withheld_unjustified", blind="faults", gated=True)
def a_notice_excuses_a_stream_though_the_fault_came_later(run: RunFolder) -> None:
    """The only faults began seconds after the subscription was accepted."""
    for number in (3, 4):
        with run.fault(number) as fault:
            fault["t_applied_ns"] = fault["t_observed_ns"] = ORIGIN_NS - SECOND
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(kind=NOTICE))
    _withhold(run, LAST)


@forgery("violation", "withheld_unjustified", blind="faults", gated=True)
def a_gate_never_opens(run: RunFolder) -> None:
    """The faults ended so early that the overlay had settled when the stream began."""
    for number in (3, 4):
        with run.fault(number) as fault:
            times = {"t_applied_ns": 30, "t_observed_ns": 30, "t_healed_ns": 17}
            fault |= {name: ORIGIN_NS - s * SECOND for name, s in times.items()}
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(kind=NOTICE))
    _withhold(run, LAST)


@forgery("violation", "withheld_unjustified", blind="faults", gated=True)
def a_notice_has_no_reason(run: RunFolder) -> None:
    for name in ("faults", "plan"):
        with run.lines(f"faults/{name}.jsonl") as rows:
            del rows[3:]


@forgery(
    "doubt",
    "the times of its request and acceptance are unknown",
    blind="subscriptions' log",
    gated=True,
)
def nobody_knows_when_the_gate_was_closed(run: RunFolder) -> None:
    with run.subscription() as line:
        line["t_issued_ns"] = None


@forgery("violation", "withheld_late", online="withheld_late", gated=True)
def a_loss_is_announced_afterwards(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        (place,) = rows.places(subscription=S1, publisher=0, sequence=25)
        rows.all["kind"][place], rows.all["digest"][place] = NOTICE, 1


@forgery("violation", "withheld_delivered", online="withheld_delivered", gated=True)
def what_was_announced_comes_all_the_same(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["digest"][rows.of(kind=NOTICE, publisher=0)] = WITHHELD + 1


@forgery("violation", "missing", online="missing", gated=True)
def a_notice_is_shorter_than_what_is_left_out(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.all["digest"][rows.of(kind=NOTICE, publisher=0)] = WITHHELD - 1
