#!/usr/bin/env python3
"""Writes the Grafana dashboard beside it: `deploy/grafana/dashboard.py > deploy/grafana/gradwire.json`.

Owns titles, texts, units and places of the panels; what a metric means is docs/metrics.md's to say. It needs Python 3
alone: the test that compares it with the committed file (tests/tests/system/prometheus.rs) has no network. Must not write
anything that depends on when or where it runs.
"""

import json
import sys

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# What stands for {job} and {one} in an expression: series of the chosen jobs, and of the chosen processes among them.
JOB = 'job=~"$job", gradwire_job=~"$gradwire_job"'
ONE = JOB + ', instance=~"$instance"'
WIDTH = 24
EVERY = "[$__rate_interval]"
PROCESS = "{{role}} {{rank}} {{instance}}"


def expr(text):
    """`name{one}` and `rate(name{one, label="x"}$every)` with their labels and range."""
    return text.replace("{job}", "{%s}" % JOB).replace("{one}", "{%s}" % ONE).replace("{job,", "{%s," % JOB).replace(
        "{one,", "{%s," % ONE).replace("$every", EVERY)


def rate(name, labels="one"):
    return "rate(%s{%s}$every)" % (name, labels)


def events(name, labels="one"):
    return "increase(%s{%s}$every)" % (name, labels)


def panel(title, about, unit, *targets, kind="timeseries", width=8, height=7, thresholds=None, mappings=(), low=0):
    """One panel; a target is an expression, its legend, and its unit where that is another one."""
    queries = [
        {
            "datasource": SOURCE,
            "editorMode": "code",
            "expr": expr(text),
            "instant": kind != "timeseries",
            "legendFormat": legend,
            "range": kind == "timeseries",
            "refId": chr(ord("A") + number),
        }
        for number, (text, legend, *_) in enumerate(targets)
    ]
    overrides = [
        {
            "matcher": {"id": "byFrameRefID", "options": chr(ord("A") + number)},
            "properties": [{"id": "unit", "value": own}],
        }
        for number, (_, _, *units) in enumerate(targets)
        for own in units
    ]
    steps = [{"color": "green", "value": None}]
    steps += [{"color": color, "value": value} for value, color in thresholds or ()]
    defaults = {
        "color": {"mode": "thresholds" if kind == "stat" else "palette-classic"},
        "custom": {},
        "mappings": list(mappings),
        "thresholds": {"mode": "absolute", "steps": steps},
        "unit": unit,
    }
    if low is not None:
        defaults["min"] = low
    if kind == "timeseries":
        defaults["custom"] = {"drawStyle": "line", "fillOpacity": 8, "lineWidth": 1, "showPoints": "never"}
        options = {
            "legend": {"calcs": ["lastNotNull", "max"], "displayMode": "table", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    else:
        options = {
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "auto",
        }
    return {
        "datasource": SOURCE,
        "description": about,
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "gridPos": {"h": height, "w": width, "x": 0, "y": 0},
        "options": options,
        "targets": queries,
        "title": title,
        "type": kind,
    }


def stat(title, about, unit, *targets, **more):
    return panel(title, about, unit, *targets, kind="stat", width=more.pop("width", 4), height=4, **more)


def says(value, text, color):
    return {"type": "value", "options": {str(value): {"color": color, "index": value, "text": text}}}


SETTING = 'min(gradwire_setting_value{job, name="%s"})'

ROWS = [
    ("Overview", [
        stat("Phase", "1 while the scheduler runs its job; 0 while it waits for members, or the job ends. `gradwire status` shows which.", "short",
             ("gradwire_scheduler_job_running{job}", "job {{gradwire_job}}"),
             mappings=[says(0, "waiting or ending", "orange"), says(1, "running", "green")]),
        stat("Members", "Registered and expected members. Fewer than expected: a member failed and was not replaced.", "short",
             ("sum by (role) (gradwire_scheduler_members{job})", "{{role}}s"),
             ("sum by (role) (gradwire_scheduler_members_expected{job})", "{{role}}s expected")),
        stat("Rounds per second", "Rounds published by all servers, one per chunk.", "cps",
             ("gradwire:rounds:rate2m{job}", "job {{gradwire_job}}")),
        stat("Bytes per second", "Payload that servers received, as it was sent.", "Bps",
             ("gradwire:contribution_bytes:rate2m{job}", "job {{gradwire_job}}")),
        stat("Oldest operation", "How long the oldest operation in flight at any worker has waited. Above a step's usual time: `gradwire status` names the workers it waits for.", "s",
             ("gradwire:oldest_wait_seconds:max{job}", "job {{gradwire_job}}"), thresholds=[(5, "orange"), (15, "red")]),
        stat("Alerts", "Firing alerts of Gradwire. docs/alerts.md explains what to do about each.", "short",
             ('count(ALERTS{job, alertname=~"Gradwire.*", alertstate="firing"}) or vector(0)', "firing"),
             thresholds=[(1, "red")]),
    ]),
    ("Traffic", [
        panel("Workers: bytes sent", "Payload bytes sent, after encoding. Compare with the link's rate.", "Bps",
              (rate("gradwire_worker_sent_bytes_total"), PROCESS), ("gradwire:sent_bytes:rate2m{job}", "all")),
        panel("Workers: bytes received", "Bytes of weights written into workers' memory, and bytes that workers read in servers' memory (views), which cost no copy.", "Bps",
              (rate("gradwire_worker_landed_bytes_total"), "landed " + PROCESS),
              (rate("gradwire_worker_shown_bytes_total"), "shown " + PROCESS), ("gradwire:landed_bytes:rate2m{job}", "landed, all")),
        panel("Servers: bytes received", "Payload bytes of contributions, as they were sent. Uneven between servers: `gradwire top` shows the bytes of each (STORED).", "Bps",
              (rate("gradwire_server_contribution_bytes_total"), PROCESS)),
        panel("Contributions", "Contributions reduced, one per chunk: the server's load.", "cps",
              (rate("gradwire_server_contributions_total"), PROCESS)),
        panel("Batches", "Batches that servers received and workers sent.", "cps",
              (rate("gradwire_server_batches_total"), "taken " + PROCESS), (rate("gradwire_worker_batches_total"), "sent " + PROCESS)),
        panel("Packing", "Chunks sent, repeats included, and chunks per batch: how well small tensors are packed.", "short",
              (rate("gradwire_worker_parts_total"), "a second " + PROCESS, "cps"), ("gradwire:parts_per_batch:ratio5m{job}", "chunks in a batch")),
        panel("Codecs", "Bytes before encoding divided by bytes sent: 1 without codecs.", "short",
              ("gradwire:codec_saving:ratio5m{job}", "saving, job {{gradwire_job}}"),
              ("sum(%s) / sum(%s)" % (rate("gradwire_worker_plain_bytes_total"), rate("gradwire_worker_sent_bytes_total")), "saving, chosen workers")),
        panel("Placements at servers", "How contributions arrived other than in slots: written into key buffers, read from workers' memory, or reduced in workers' memory. Also weights that workers read in the server's memory.", "cps",
              (rate("gradwire_server_placed_total"), "placed " + PROCESS), (rate("gradwire_server_fetches_total"), "read " + PROCESS),
              (rate("gradwire_server_in_place_total"), "in place " + PROCESS), (rate("gradwire_server_views_total"), "shown " + PROCESS),
              (rate("gradwire_server_relieved_total"), "copied for late workers " + PROCESS)),
        panel("Placements at workers", "Chunks written directly into servers' key buffers, and chunks that servers read from workers' memory.", "cps",
              (rate("gradwire_worker_placed_total"), "placed " + PROCESS), (rate("gradwire_worker_referenced_total"), "referenced " + PROCESS)),
        panel("Links by driver", "The drivers between workers and servers. `tcp` instead of `shm` or `verbs`: `/status` has the reason.", "short",
              ("count by (driver) (gradwire_worker_link_info{one})", "{{driver}}")),
        panel("Calls", "Calls received for the programs' handlers, calls whose values handlers could read in workers' memory, and calls of these that were copied when they ended.", "cps",
              (rate("gradwire_server_calls_total"), PROCESS), (rate("gradwire_server_calls_in_place_total"), "in place " + PROCESS),
              (rate("gradwire_server_calls_copied_total"), "copied at their end " + PROCESS)),
        panel("Rows of sparse tables", "Rows pulled, pushed, left out because of admit_after, and evicted. A high rate of evictions: raise rows_max.", "cps",
              (rate("gradwire_server_rows_pulled_total"), "pulled " + PROCESS), (rate("gradwire_server_rows_pushed_total"), "pushed " + PROCESS),
              (rate("gradwire_server_rows_left_out_total"), "left out " + PROCESS), (rate("gradwire_server_rows_evicted_total"), "evicted " + PROCESS)),
    ]),
    ("Rounds and latency", [
        panel("Rounds", "Rounds published, one per chunk; outside mode sync contributions applied. No growth while workers wait: see the oldest waits.", "cps",
              (rate("gradwire_server_rounds_total"), PROCESS)),
        panel("Operations", "Operations completed at workers, and operations answered by servers.", "cps",
              (rate("gradwire_worker_operations_total"), "done " + PROCESS), (rate("gradwire_server_answers_total"), "answered " + PROCESS),
              ("gradwire:operations:rate2m{job}", "done, all")),
        panel("Oldest wait", "How long the oldest operation of each worker and server has waited, and the deadline at which it fails.", "s",
              ("gradwire_worker_oldest_wait_seconds{one}", PROCESS), ("gradwire_server_oldest_wait_seconds{one}", PROCESS),
              (SETTING % "deadlines.operation_ms" + " / 1000", "deadlines.operation_ms")),
        panel("Slow operations", "Operations of workers, and rounds of a chunk at servers, that took longer than log.slow_ms. The log has how the time was spent and which workers were waited for; `gradwire trace` shows it.", "short",
              (events("gradwire_slow_operations_total"), PROCESS)),
        panel("Stragglers", "How long each worker waits on average. In synchronous rounds the slowest worker waits least: the others wait for it.", "s",
              ("gradwire:worker_wait_seconds:avg10m{one}", PROCESS)),
        panel("In flight", "Operations in flight at each worker. If they rise all the time, the trainer submits faster than the cluster completes.", "short",
              ("gradwire_worker_in_flight_operations{one}", PROCESS)),
        panel("Longest stall", "The longest time of a contribution so far, from its submission to its last answer: after a failure, how long training stopped.", "s",
              ("gradwire_worker_longest_stall_seconds{one}", PROCESS)),
        panel("Contributions before their turn", "Share of contributions that were spilled. High: one worker is slower than the others, or rank order costs too much.", "percentunit",
              ("gradwire:spilled:ratio5m{one}", PROCESS), (rate("gradwire_server_spills_total"), "a second " + PROCESS, "cps")),
        panel("Contributions merged", "Contributions a second that came as a part of another worker's of the same host.", "cps",
              (rate("gradwire_server_merged_total"), PROCESS)),
        panel("Contributions too late", "Share of contributions whose round had ended without them. High: the work of the slowest workers is lost.", "percentunit",
              ("gradwire:late:ratio5m{one}", PROCESS), (rate("gradwire_server_late_total"), "a second " + PROCESS, "cps")),
        panel("Barriers", "Barriers with waiting members, and answers to these. Failed: the deadline passed, or a member failed.", "short",
              ("gradwire_scheduler_barriers_pending{job}", "pending"),
              (rate("gradwire_scheduler_barrier_waits_total", "job"), "{{result}} a second", "cps")),
        panel("Operations that fail", "Operations that failed at workers, and operations whose deadline passed at servers. The trainer's error has the cause and a fix.", "short",
              (events("gradwire_worker_failures_total"), "failed " + PROCESS), (events("gradwire_server_deadlines_total"), "too late " + PROCESS)),
        panel("Rounds without new weights", "A sum of integers did not fit its type.", "short",
              (events("gradwire_server_bad_rounds_total"), PROCESS)),
        panel("Tensors", "Declared tensors, and their bytes. Growth during training: a trainer declares in its loop.", "short",
              ("gradwire_scheduler_tensors{job}", "tensors"), ("gradwire_scheduler_tensor_bytes{job}", "bytes", "bytes")),
    ]),
    ("Memory and credits", [
        panel("Inbox slots", "Slots of each server's inbox, and free ones. 0 free all the time, with credit waits: raise memory.inbox_slots.", "short",
              ("gradwire_server_credits_free{one}", "free " + PROCESS), ("gradwire_server_credits{one}", "all " + PROCESS)),
        panel("Credit waits", "How often a batch waited for a credit.", "cps", (rate("gradwire_worker_credit_waits_total"), PROCESS)),
        panel("Spill area", "Spill blocks: used, reserved as key buffers, and all. Near the total, retries follow.", "short",
              ("gradwire_server_spill_blocks_used{one}", "used " + PROCESS), ("gradwire_server_key_buffers{one}", "key buffers " + PROCESS),
              ("gradwire_server_spill_blocks{one}", "all " + PROCESS)),
        panel("Quarantine", "Slots and spill blocks that a worker whose channel has ended may still be writing: its process was stopped in the middle of a copy. `/status` of the server names it.", "bytes",
              ("gradwire_server_quarantined_bytes{one}", PROCESS)),
        panel("Spill area used", "Share of the spill blocks in use.", "percentunit", ("gradwire:spill_used:ratio{one}", PROCESS),
              thresholds=[(0.9, "red")]),
        panel("Sent again for lack of room", "Operations that servers returned, and chunks that workers sent again because of that. The spill area is full.", "cps",
              (rate("gradwire_server_retries_total"), PROCESS), (rate("gradwire_worker_retries_total"), PROCESS)),
        panel("Stored", "Bytes of weights, accumulators and optimizer state. Near the host's memory: use more servers.", "bytes",
              ("gradwire_server_stored_bytes{one}", PROCESS)),
        panel("Rows", "Rows of sparse tables in the memory of each server.", "short", ("gradwire_server_rows{one}", PROCESS)),
        panel("Calls kept", "Calls in progress, and answered calls that their worker has not yet confirmed. High: handlers are slow or missing.", "short",
              ("gradwire_server_calls_kept{one}", PROCESS)),
        panel("Bytes of calls", "Bytes of these calls. Near memory.call_bytes for each lane: workers retry later.", "bytes",
              ("gradwire_server_call_bytes{one}", PROCESS)),
        panel("Registered memory", "Bytes registered with the RDMA device, and therefore pinned, and the smallest budget (memory.registered_bytes). 0 without a device.", "bytes",
              ("gradwire_registered_bytes{one}", PROCESS), (SETTING % "memory.registered_bytes", "memory.registered_bytes")),
        panel("Registered of the budget", "Share of memory.registered_bytes that is registered, and objects that a device did not release.", "percentunit",
              ("gradwire:registered:ratio{one}", PROCESS), ("gradwire_device_objects_kept{one}", "objects kept " + PROCESS, "short")),
        panel("RDMA port", "Counters of the RDMA devices' ports, for all processes that use them, with the kernel's names. Those with err, retry, out_of or rnr should stay at 0. Absent without a device.", "cps",
              (rate("gradwire_rdma_port_total"), "{{counter}} {{device}} port {{port}} " + PROCESS)),
        panel("Certificates", "Time until each process's certificate expires; absent without certificates.", "s",
              ("gradwire_certificate_expiry_timestamp_seconds{one} - time()", PROCESS), thresholds=[(0, "red"), (14 * 86400, "green")]),
        panel("Control connections", "1 if both sides have certificates, 0 if peers are not authenticated: on loopback without certificates, or with security.mode off.", "short",
              ("gradwire_control_plane_tls{one}", "{{mode}} " + PROCESS)),
        panel("What trainers report", "Values that trainers report by name, such as their loss.", "short",
              ("gradwire_worker_metric{one}", "{{name}} " + PROCESS)),
        panel("Trainers' own buffers", "Operations that sent a buffer in place, operations that copied it first, and buffers evicted from the registration cache.", "cps",
              (rate("gradwire_worker_registration_hits_total"), "in place " + PROCESS), (rate("gradwire_worker_registration_copies_total"), "copied " + PROCESS),
              (rate("gradwire_worker_registration_evictions_total"), "evicted " + PROCESS)),
        panel("Pool of registered buffers", "Bytes in use at each worker, the smallest limit, and calls that waited for memory. Waits all the time: fewer calls in flight, or a larger memory.pool_bytes.", "bytes",
              ("gradwire_worker_pool_used_bytes{one}", PROCESS),
              (SETTING % "memory.pool_bytes", "memory.pool_bytes"),
              (rate("gradwire_worker_pool_waits_total"), "waits a second " + PROCESS, "cps")),
        panel("Registration cache", "Bytes of trainers' own buffers that stay registered, and the smallest limit.", "bytes",
              ("gradwire_worker_registration_cache_bytes{one}", PROCESS),
              (SETTING % "memory.registration_cache_bytes", "memory.registration_cache_bytes")),
    ]),
    ("Recovery and checkpoints", [
        panel("Members", "Registered and expected members.", "short",
              ("gradwire_scheduler_members{job}", "{{role}}s"), ("gradwire_scheduler_members_expected{job}", "{{role}}s expected")),
        panel("Silence", "Longest time since any message of a member of the role, and the time after which it counts as failed.", "s",
              ("gradwire_scheduler_member_silence_seconds{job}", "{{role}}s"), (SETTING % "deadlines.silence_ms" + " / 1000", "deadlines.silence_ms")),
        panel("Failures", "Failed members, by cause.", "short", (events("gradwire_scheduler_deaths_total", "job"), "{{cause}}")),
        panel("Changes", "Effects of failures, joins and restarts since the scheduler's start.", "short",
              ("gradwire_scheduler_changes{job}", "{{kind}}")),
        panel("Epoch", "Term (grows when the scheduler is restarted) and counter (grows with every change of the roster or of tensors).", "short",
              ("gradwire_scheduler_term{job}", "term"), ("gradwire_scheduler_epoch{job}", "counter")),
        panel("Scheduler", "Time since its start: a decrease is a restart. Also how long servers have had no scheduler: restart it within deadlines.scheduler_ms.", "s",
              ("gradwire_scheduler_uptime_seconds{job}", "up"), ("gradwire_server_scheduler_away_seconds{one}", "away from " + PROCESS)),
        panel("Replicas", "Bytes of replicas on other servers: up to date, and being made. Below the tensors' bytes with cluster.replicas = 1: a server failure now would end the job.", "bytes",
              ("gradwire_scheduler_copy_bytes{job}", "{{state}}"), ("gradwire_scheduler_tensor_bytes{job}", "all tensors")),
        panel("Replicated share", "Share of the tensors' bytes with an up-to-date replica; 0 with cluster.replicas = 0.", "percentunit",
              ("gradwire:copied:ratio{job}", "job {{gradwire_job}}"),
              ('gradwire_setting_value{job, name="cluster.replicas"}', "cluster.replicas", "short")),
        panel("Chunks of servers", "Chunks of each server: served, served without a replica, being replicated, its replicas of others, and replicas being received.", "short",
              ("gradwire_server_chunks_served{one}", "served " + PROCESS), ("gradwire_server_chunks_alone{one}", "alone " + PROCESS),
              ("gradwire_server_chunks_copying{one}", "copying " + PROCESS), ("gradwire_server_copies{one}", "copies " + PROCESS),
              ("gradwire_server_copies_arriving{one}", "arriving " + PROCESS)),
        panel("Streams between servers", "Streams to replicas that are down (rounds wait), and streams that were connected or ended.", "short",
              ("gradwire_server_streams_down{one}", "down " + PROCESS), (events("gradwire_server_streams_connected_total"), "connected " + PROCESS),
              (events("gradwire_server_streams_broken_total"), "broken " + PROCESS)),
        panel("Take-over", "For the last failed server: from its last message to the decision which server takes over. Also failovers seen by workers.", "short",
              ("gradwire_scheduler_promotion_seconds{job}", "take-over", "s"), ("gradwire_worker_failovers_total{one}", "failovers " + PROCESS)),
        panel("Sent again", "Chunks sent again because the server did not serve them, or because their channel closed, and connections that were made again. A burst with each failure is normal.", "cps",
              (rate("gradwire_worker_reroutes_total"), "rerouted " + PROCESS), (rate("gradwire_worker_replays_total"), "replayed " + PROCESS),
              (rate("gradwire_worker_reconnects_total"), "reconnected " + PROCESS)),
        panel("Duplicates", "Duplicate operations that servers did not apply again, and repeated results that workers ignored. Normal after a reconnection.", "cps",
              (rate("gradwire_server_duplicates_total"), PROCESS), (rate("gradwire_worker_duplicates_total"), PROCESS)),
        panel("Checkpoints", "Checkpoints completed, skipped because another one was being written, or abandoned, since the scheduler's start.", "short",
              ("gradwire_scheduler_checkpoints_completed{job}", "complete"), ("gradwire_scheduler_checkpoints_skipped{job}", "skipped"),
              ("gradwire_scheduler_checkpoints_failed{job}", "failed"),
              ('gradwire_setting_value{job, name="checkpoint.every_rounds"}', "checkpoint.every_rounds")),
        panel("Checkpoint in progress", "Missing parts of the checkpoint in progress, and chunks that it waits for. For a long time: a slow disk, or tensors without rounds.", "short",
              ("gradwire_scheduler_checkpoint_parts_missing{job}", "part of server {{server}}, lane {{lane}}"),
              ("gradwire_server_checkpoint_chunks_left{one}", "chunks left " + PROCESS)),
        panel("Checkpoint memory", "Bytes copied and not yet written, and the smallest limit, at which rounds wait for the disk.", "bytes",
              ("gradwire_server_checkpoint_bytes{one}", PROCESS), (SETTING % "checkpoint.memory_bytes", "checkpoint.memory_bytes")),
    ]),
    ("Refusals and security", [
        panel("Registrations", "Answers to registrations. Refused: wrong job, version or too many members; the refused process logs the reason.", "short",
              (events("gradwire_scheduler_registrations_total", "job"), "{{result}}")),
        panel("Declarations", "Answers to declarations of tensors. Refused: the worker's error names the reason.", "short",
              (events("gradwire_scheduler_declarations_total", "job"), "{{result}}")),
        panel("Connections dropped", "Connections dropped before they registered. Steady growth: another program connects to this port.", "short",
              (events("gradwire_scheduler_connections_refused_total", "job"), "{{reason}}")),
        panel("Operations refused", "A mistake in the trainer, or mixed versions; the worker's error names the tensor and the reason.", "short",
              (events("gradwire_server_refusals_total"), PROCESS)),
        panel("Never normal", "Invalid encoded contributions, batches that changed on the way, and workers disconnected because they broke the protocol.", "short",
              (events("gradwire_server_malformed_total"), "malformed " + PROCESS), (events("gradwire_server_corrupt_batches_total"), "corrupt " + PROCESS),
              (events("gradwire_server_expelled_total"), "expelled " + PROCESS)),
        panel("Control connections", "Heartbeats per second, and bytes queued for the connection with the longest queue (at 64 MiB its member counts as failed).", "short",
              (rate("gradwire_scheduler_heartbeats_total", "job"), "heartbeats", "cps"), ("gradwire_scheduler_unsent_bytes{job}", "unsent", "bytes")),
    ]),
    ("Processes", [
        panel("Targets up", "1 for each process that answers Prometheus.", "short", ("up{one}", PROCESS)),
        panel("Processor", "Processor time of each process, in cores.", "short", (rate("process_cpu_seconds_total"), PROCESS)),
        panel("Resident memory", "Resident memory of each process.", "bytes", ("process_resident_memory_bytes{one}", PROCESS)),
        panel("Open files", "Open files of each process, and their limit.", "short",
              ("process_open_fds{one}", PROCESS), ("process_max_fds{one}", "limit " + PROCESS)),
        panel("Age", "Time since the start of each process: a decrease is a restart.", "s",
              ("time() - process_start_time_seconds{one}", PROCESS)),
        panel("Builds", "Processes by version. Two versions in one job: some host was not upgraded; end the job and restart all of it with one release.", "short",
              ("count by (version, protocol) (gradwire_build_info{one})", "{{version}}, protocol {{protocol}}")),
    ]),
]


def placed(rows):
    """Rows one below the other, their panels from left to right."""
    panels, top = [], 0
    for title, members in rows:
        panels.append({
            "collapsed": False,
            "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": top},
            "panels": [],
            "title": title,
            "type": "row",
        })
        top, left, line = top + 1, 0, 0
        for one in members:
            place = one["gridPos"]
            if left + place["w"] > WIDTH:
                top, left, line = top + line, 0, 0
            place["x"], place["y"] = left, top
            left, line = left + place["w"], max(line, place["h"])
            panels.append(one)
        top += line
    for number, one in enumerate(panels):
        one["id"] = number + 1
    return panels


def query(name, label, about, text):
    return {
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "datasource": SOURCE,
        "description": about,
        "hide": 0,
        "includeAll": True,
        "label": label,
        "multi": True,
        "name": name,
        "options": [],
        "query": {"qryType": 1, "query": text, "refId": "Variable-" + name},
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "type": "query",
    }


VARIABLES = [
    {
        "current": {},
        "description": "The Prometheus that scrapes the job.",
        "hide": 0,
        "includeAll": False,
        "label": "Prometheus",
        "multi": False,
        "name": "datasource",
        "options": [],
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "type": "datasource",
    },
    query("job", "Scrape job", "Names of scrape jobs.", "label_values(gradwire_build_info, job)"),
    query("gradwire_job", "Job", "Jobs of Gradwire, by the id that the scheduler's /targets says.",
          'label_values(gradwire_build_info{job=~"$job"}, gradwire_job)'),
    query("role", "Role", "Which processes stand in the list of instances.",
          'label_values(gradwire_build_info{job=~"$job", gradwire_job=~"$gradwire_job"}, role)'),
    query("instance", "Instance", "Processes of servers and workers; panels of the scheduler show all.",
          'label_values(gradwire_build_info{job=~"$job", gradwire_job=~"$gradwire_job", role=~"$role"}, instance)'),
]


def dashboard():
    return {
        "annotations": {"list": []},
        "description": "One or several jobs of Gradwire: needs the rules of deploy/prometheus/recording.yml.",
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "links": [],
        "liveNow": False,
        "panels": placed(ROWS),
        "refresh": "15s",
        "schemaVersion": 39,
        "tags": ["gradwire"],
        "templating": {"list": VARIABLES},
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "title": "Gradwire",
        "uid": "gradwire",
        "version": 1,
        "weekStart": "",
    }


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=1)
    sys.stdout.write("\n")
