//! Starts, watches and ends a launched cluster. The first failure determines the exit code. After it, the other processes get time
//! to exit, then SIGTERM, then SIGKILL.

use super::args::LaunchArgs;
use super::blame::{Blame, First, first_of, most_likely};
use super::child::{self, Handle, Running, ending};
use super::failed::Failed;
use super::guard::{Guard, kill_group};
use super::output::{EndWord, LogFile, Printer, PrinterThread, Tail, Target, Way, forward};
use super::plan::{ChildSpec, Plan};
use super::ports::{PortDirectory, parse_ports};
use super::remote::{ALIVE_WORD_MS, Reach, why_not_started, words_of_line};
use super::restart::Restarts;
use crate::status::{Whose, get};
use anyhow::Context as _;
use daemon::exit::{Failure, WithCode as _};
use daemon::status::{ClusterStatus, JobPhase};
use proto_common::error::ExitCode;
use proto_common::ids::{MemberId, Role};
use proto_common::limits::MANIFEST_MS_MAX;
use rustix::process::Signal;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncRead;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// Time limit for the scheduler to bind its port, in milliseconds.
const BIND_MS: u64 = 10_000;
/// Interval between checks for the scheduler's port file, in milliseconds.
const LOOK_MS: u64 = 5;
/// Time limit for a status request to the scheduler, in milliseconds.
const ASK_MS: u64 = 500;
/// How long pipes may stay open after the last process has ended and its group was killed, in milliseconds.
const PIPES_MS: u64 = 1_000;
/// How long to wait for the last output of a process before its end is reported, in milliseconds. Another process may hold its pipes.
const LAST_WORDS_MS: u64 = 100;

/// A running process.
#[derive(Debug)]
struct Member {
    /// Its order, also for a restart.
    spec: ChildSpec,
    handle: Handle,
    tail: Tail,
    /// On another host: whether its program has started, and the deadline for that.
    start: Option<(Arc<AtomicBool>, Instant)>,
}

impl Member {
    fn has_started(&self) -> bool {
        self.start.as_ref().is_none_or(|(started, _)| started.load(Ordering::Acquire))
    }

    /// Its host in a message, if it is another one.
    fn on(&self) -> String {
        self.spec.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default()
    }
}

/// A process that has ended and was not waited for yet.
type Exited = (MemberId, Child);

pub(super) struct Supervisor {
    printer: Printer,
    printer_thread: PrinterThread,
    guard: Guard,
    members: BTreeMap<MemberId, Member>,
    reach: Reach,
    /// The launcher's environment. Other hosts receive a part of it.
    env: Vec<(String, String)>,
    /// Other launchers start the rest of the cluster, so the first failure is unknown here.
    is_part: bool,
    exits: JoinSet<Exited>,
    pipes: JoinSet<()>,
    signals: mpsc::Receiver<EndWord>,
    /// Signals for all remaining processes, in order.
    escalation: VecDeque<(Instant, Signal)>,
    /// The exit code, after a failure.
    verdict: Option<u8>,
    /// Failures that may be the first one, until that is reported.
    suspects: Vec<Blame>,
    /// The scheduler's last lines of output: it names the member that ended the job.
    scheduler_said: Tail,
    /// Failures that the job survived, in order.
    lost: Vec<Blame>,
    /// Signals that the launcher received.
    interrupts: u32,
    grace: Duration,
    timeout: Option<Duration>,
    keep_logs: Option<PathBuf>,
    plain_rank0: bool,
    /// The scheduler's HTTP address, once known.
    status_at: Option<String>,
    restarts: Restarts,
    failed: Failed,
}

impl Supervisor {
    pub(super) fn new(
        args: &LaunchArgs,
        env: Vec<(String, String)>,
        reach: Reach,
        restarts: Restarts,
    ) -> Result<Self, Failure> {
        let (end, signals) = listen_for_signals().code(ExitCode::Io)?;
        let (printer, thread) = Printer::start(Some(end)).code(ExitCode::Io)?;
        let guard = Guard::start().context("cannot start the launcher's guard").code(ExitCode::Io)?;
        Ok(Self {
            printer,
            printer_thread: thread,
            guard,
            members: BTreeMap::new(),
            reach,
            env,
            is_part: false,
            exits: JoinSet::new(),
            pipes: JoinSet::new(),
            signals,
            escalation: VecDeque::new(),
            verdict: None,
            suspects: Vec::new(),
            scheduler_said: Tail::default(),
            lost: Vec::new(),
            interrupts: 0,
            grace: Duration::from_millis(args.grace_ms),
            timeout: args.timeout.map(Duration::from_secs),
            keep_logs: args.keep_logs.clone(),
            plain_rank0: args.plain_rank0,
            status_at: None,
            restarts,
            failed: Failed::new(Duration::from_millis(args.grace_ms)),
        })
    }

    /// Runs the cluster to its end; returns the exit code.
    pub(super) async fn run(mut self, plan: &Plan, notes: &[String]) -> Result<u8, anyhow::Error> {
        for note in notes {
            self.printer.say(note).await;
        }
        let deadline = self.timeout.map(|limit| Instant::now() + limit);
        self.is_part = plan.is_part();
        let started = self.start_all(plan).await;
        if let Err(failure) = &started {
            self.verdict = Some(failure.code() as u8);
            self.escalate(&[(Duration::ZERO, Signal::KILL)]);
        }
        self.watch(deadline).await;
        self.say_blame().await;
        if self.verdict.is_none() && !self.lost.is_empty() {
            let lost = names(self.lost.iter().map(|blame| &blame.id));
            self.printer.say(&format!("the job succeeded without {lost}, which failed")).await;
        }
        // Remaining processes only hold pipes; their groups have been killed.
        let drained = async { while self.pipes.join_next().await.is_some() {} };
        let _ = timeout(Duration::from_millis(PIPES_MS), drained).await;
        self.pipes.shutdown().await;
        // The thread ends when the last printer is dropped.
        let Self { printer, printer_thread, verdict, .. } = self;
        drop(printer);
        printer_thread.finish().await;
        started?;
        Ok(verdict.unwrap_or(0))
    }

    async fn start_all(&mut self, plan: &Plan) -> Result<(), Failure> {
        if let Some(everyone) = plan.everyone() {
            return self.start_each(&everyone).await;
        }
        let directory = PortDirectory::new()?;
        let port_file = directory.path.join("ports");
        if let Some(scheduler) = plan.scheduler(&port_file) {
            self.start(&scheduler).await?;
        }
        let Some((control, http)) = self.wait_for_ports(&port_file).await? else {
            return Ok(()); // It ended first, or a signal arrived; `watch` reports it.
        };
        let status =
            if http.is_empty() { String::new() } else { format!(", status at http://{http}/status") };
        let invitation = plan.invitation(&control);
        self.printer.say(&format!("the scheduler listens at {control}{status}{invitation}")).await;
        self.status_at = Some(http).filter(|http| !http.is_empty());
        if let Some(http) = self.status_at.clone().filter(|_| self.restarts.ends_failed()) {
            self.failed.watch(http);
        }
        // A restarted scheduler must use the address that members know.
        if let Some(scheduler) =
            self.members.values_mut().find(|member| member.spec.id.role == Role::Scheduler)
        {
            let http = self.status_at.clone().unwrap_or_else(|| "off".into());
            let args = ["--scheduler", &control, "--http", &http];
            scheduler.spec.args = args.map(OsString::from).into();
        }
        let (host, port) = control.rsplit_once(':').unwrap_or((&control, ""));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        self.start_each(&plan.members(host, port)).await
    }

    async fn start_each(&mut self, specs: &[ChildSpec]) -> Result<(), Failure> {
        for spec in specs {
            self.start(spec).await?;
        }
        Ok(())
    }

    async fn start(&mut self, spec: &ChildSpec) -> Result<(), Failure> {
        let Running { mut process, handle } = match spec.host {
            Some(_) => child::start_far(spec, &self.reach, &self.env).await?,
            None => child::start(spec, &self.guard)?,
        };
        let started = spec.host.as_ref().map(|_| Arc::new(AtomicBool::new(false)));
        let start = started.clone().map(|started| (started, Instant::now() + self.reach.start_timeout));
        let tail =
            if spec.id.role == Role::Scheduler { self.scheduler_said.clone() } else { Tail::default() };
        let member = Member { spec: spec.clone(), handle, tail: tail.clone(), start };
        self.members.insert(spec.id, member);
        let log = self.log_file(spec.id)?;
        let plain = self.plain_rank0 && spec.id.role == Role::Worker && spec.id.rank.0 == 0;
        let prefix = format!("[{}] ", spec.id);
        let (out_prefix, out_target) =
            if plain { (String::new(), Target::Stdout) } else { (prefix.clone(), Target::Stderr) };
        // Both pipes hold this until they end.
        let (open, mut ended) = mpsc::channel::<Infallible>(1);
        if let Some(pipe) = process.stdout.take() {
            let (log, tail) = (log.clone(), tail.clone());
            let way = Way { prefix: out_prefix, target: out_target, log, tail, is_raw: plain, started: None };
            self.forward(pipe, way, open.clone());
        }
        if let Some(pipe) = process.stderr.take() {
            let target = Target::Stderr;
            self.forward(pipe, Way { prefix, target, log, tail, is_raw: false, started }, open);
        }
        let id = spec.id;
        self.exits.spawn(async move {
            child::ended(&mut process).await;
            let _ = timeout(Duration::from_millis(LAST_WORDS_MS), ended.recv()).await;
            (id, process)
        });
        Ok(())
    }

    fn forward(
        &mut self,
        pipe: impl AsyncRead + Send + Unpin + 'static,
        way: Way,
        open: mpsc::Sender<Infallible>,
    ) {
        let printer = self.printer.clone();
        self.pipes.spawn(async move {
            forward(pipe, way, printer).await;
            drop(open);
        });
    }

    fn log_file(&self, id: MemberId) -> Result<Option<LogFile>, Failure> {
        let Some(directory) = &self.keep_logs else { return Ok(None) };
        let path = directory.join(format!("{}.log", id.to_string().replace(' ', "-")));
        // A restarted process appends to its log file.
        let mut options = File::options();
        let options = if self.restarts.is_again(id) {
            options.append(true)
        } else {
            options.write(true).truncate(true)
        };
        let file =
            options.create(true).open(&path).with_context(|| format!("cannot write {}", path.display()));
        Ok(Some(Arc::new(Mutex::new(file.code(ExitCode::Io)?))))
    }

    /// The scheduler's addresses, or `None` if something else ends the job before.
    async fn wait_for_ports(&mut self, path: &Path) -> Result<Option<(String, String)>, Failure> {
        let deadline = Instant::now() + Duration::from_millis(BIND_MS);
        loop {
            if let Some(ports) = std::fs::read_to_string(path).ok().as_deref().and_then(parse_ports) {
                return Ok(Some(ports));
            }
            tokio::select! {
                Some(exited) = self.exits.join_next() => self.exited(exited).await,
                Some(word) = self.signals.recv() => self.interrupted(word).await,
                // This takes milliseconds once per job; watching the directory would cost more code.
                () = sleep_until(Instant::now() + Duration::from_millis(LOOK_MS)) => {}
            }
            if self.verdict.is_some() || self.members.is_empty() {
                return Ok(None);
            }
            if Instant::now() >= deadline {
                let text =
                    format!("the scheduler did not bind its port within {BIND_MS} ms; see its log above");
                return Err(Failure::message(ExitCode::Deadline, text));
            }
        }
    }

    /// Waits until the last process has ended.
    async fn watch(&mut self, deadline: Option<Instant>) {
        let mut alive = tokio::time::interval(Duration::from_millis(ALIVE_WORD_MS));
        while !self.exits.is_empty() || self.restarts.next().is_some() {
            let next = self.escalation.front().map(|(at, _)| *at);
            let start_by = self.members.values().filter_map(|member| Some(member.start.as_ref()?.1)).min();
            tokio::select! {
                Some(exited) = self.exits.join_next() => self.exited(exited).await,
                Some(word) = self.signals.recv() => self.interrupted(word).await,
                () = at(next) => {
                    // Failures after these signals are effects.
                    self.say_blame().await;
                    if let Some((_, signal)) = self.escalation.pop_front() {
                        for member in self.members.values_mut() {
                            member.handle.signal(signal).await;
                        }
                    }
                }
                () = at(self.restarts.next()) => self.start_again().await,
                () = at(start_by) => self.look_for_starts().await,
                status = self.failed.next() => self.end_failed(&status).await,
                _ = alive.tick() => {
                    for member in self.members.values_mut() {
                        member.handle.keep_alive().await;
                    }
                }
                () = at(deadline), if self.verdict.is_none() => {
                    let names = names(self.members.keys());
                    self.printer.say(&format!("--timeout expired; still running: {names}")).await;
                    self.verdict = Some(ExitCode::Deadline as u8);
                    self.escalate(&[(Duration::ZERO, Signal::TERM), (self.grace, Signal::KILL)]);
                }
            }
        }
    }

    async fn exited(&mut self, exited: Result<Exited, tokio::task::JoinError>) {
        // The waiting tasks neither panic nor are aborted.
        let Ok((id, mut process)) = exited else { return };
        let Some(member) = self.members.remove(&id) else { return };
        // Its own children, if it left any. The id of its group may be another's once it has been waited for.
        kill_group(member.handle.group, Signal::KILL);
        self.guard.remove(member.handle.group);
        let (mut code, mut words) = match process.wait().await {
            Ok(status) => ending(status),
            Err(error) => (1, error.to_string()),
        };
        match &member.spec.host {
            Some(host) if !member.has_started() => {
                let (known, why) = why_not_started(host, code);
                (code, words) = (known as u8, why);
            }
            Some(host) => words = words_of_line(host, code, words),
            None => {}
        }
        let (on, tail) = (member.on(), member.tail.lines());
        // Once the job ends, nothing is restarted.
        let goes_on = self.verdict.is_none() && self.escalation.is_empty();
        if let Some(again) = self.restarts.again(&member.spec, code, Instant::now()).filter(|_| goes_on) {
            let (after, number, limit) = (again.after.as_millis(), again.number, again.limit);
            let text =
                format!("{id}{on} ended: {words}; restarting it in {after} ms (restart {number} of {limit})");
            return self.printer.say(&text).await;
        }
        self.not_again(Blame::new(id, on, code, words, tail), goes_on).await;
        let worker_left =
            self.restarts.awaits(Role::Worker) || self.members.keys().any(|id| id.role == Role::Worker);
        if id.role == Role::Worker && !worker_left && self.escalation.is_empty() {
            // The scheduler ends the servers and itself, unless the program never joined or a checkpoint is being written.
            let saves = self.ask().await.is_some_and(|status| status.checkpoints.writing.is_some());
            let more = Duration::from_millis(if saves { MANIFEST_MS_MAX } else { 0 });
            self.escalate(&[(self.grace + more, Signal::TERM), (2 * self.grace + more, Signal::KILL)]);
        }
    }

    /// Handles the end of a process that is not restarted: a success, a loss that the job survives, or a failure of the job.
    async fn not_again(&mut self, mut blame: Blame, goes_on: bool) {
        let (id, is_done) = (blame.id, blame.code == 0);
        let spares = goes_on && !is_done && self.spares(id);
        // The other processes do not notice a member that never joined, and would wait for it.
        let is_awaited = !self.members.is_empty() && self.verdict.is_none() && id.role != Role::Scheduler;
        let status = if is_awaited || spares { self.ask().await } else { None };
        if is_awaited && status.as_ref().is_some_and(|status| never_joined(status, id)) {
            let needs_none = if is_done {
                "; run programs that do not use the cluster without gradwire launch"
            } else {
                ""
            };
            blame.code = if is_done { ExitCode::Failure as u8 } else { blame.code };
            blame.words = format!("{}, before it joined the cluster{needs_none}", blame.words);
            self.failed(blame).await;
            return self.escalate(&[(Duration::ZERO, Signal::TERM), (self.grace, Signal::KILL)]);
        }
        if is_done {
            return;
        }
        // A process that is stopped does not end, and one that failed may take long to. Those that end because of it exit in ways of
        // their own, such as a script with the code of all its errors; the scheduler may have ended before them. Who starts no
        // scheduler, or one without HTTP, asks nobody, and has only codes.
        let may_be_over = is_awaited && self.status_at.is_some();
        blame.is_effect = status.is_none() && (may_be_over || !self.suspects.is_empty());
        if let Some(first) = status.as_ref().filter(|_| goes_on).and_then(|status| self.first(status, id)) {
            match first {
                First::Silent(silent) => return self.failed(silent).await,
                First::Ends => blame.is_effect = true,
            }
        }
        // The scheduler knows whether the job continues. If it does not answer, a process that reports another's failure is believed.
        let is_over = match status {
            Some(status) => !matches!(status.phase, JobPhase::Running | JobPhase::Rebuilding),
            None => blame.reports_another(),
        };
        if spares && !is_over {
            let Blame { on, words, .. } = &blame;
            self.printer.say(&format!("{id}{on} ended: {words}; the job continues without it")).await;
            return self.lost.push(blame);
        }
        let nobody_comes = self.restarts.nobody_comes(id, blame.code);
        if let Some(why) = nobody_comes.filter(|_| goes_on && !blame.reports_another()) {
            blame.words = format!("{}; {why}", blame.words);
        }
        self.failed(blame).await;
    }

    /// The member other than this one whose failure ended the job, if its process still runs.
    fn first(&self, status: &ClusterStatus, other: MemberId) -> Option<First> {
        let first = status.ended_by.filter(|first| *first != other)?;
        let (member, why) = (self.members.get(&first)?, status.ending.as_deref()?);
        if !status.is_silent {
            return Some(First::Ends);
        }
        let words = format!("{}; it still runs, and was stopped or overloaded", why.split_once(": ")?.1);
        let code = ExitCode::MemberDied as u8;
        let (id, on, tail) = (member.spec.id, member.on(), member.tail.lines());
        Some(First::Silent(Blame { has_ended: false, ..Blame::new(id, on, code, words, tail) }))
    }

    /// Do the settings and the remaining processes let the job continue without this one? If other launchers start the rest of the
    /// cluster, only the scheduler knows the remaining processes.
    fn spares(&self, id: MemberId) -> bool {
        let mut left = self.members.keys();
        let is_left = match self.is_part {
            true => left.next().is_some(),
            false => left.any(|other| other.role == id.role) || self.restarts.awaits(id.role),
        };
        is_left && self.restarts.spares(id.role)
    }

    /// Ends servers of this host that were declared failed and still run.
    async fn end_failed(&mut self, status: &ClusterStatus) {
        let is_ours =
            |member: &&mut Member| member.spec.id.role == Role::Server && member.spec.host.is_none();
        let servers = self.members.values_mut().filter(is_ours);
        let mut servers: BTreeMap<u32, _> = servers.map(|member| (member.handle.pid(), member)).collect();
        for pid in self.failed.due(status, &servers.keys().copied().collect::<Vec<_>>(), Instant::now()) {
            let Some(member) = servers.remove(&pid) else { continue };
            let text = format!(
                "{} (process {pid}) was declared failed and still runs; ending it with SIGKILL (--end-failed)",
                member.spec.id
            );
            self.printer.say(&text).await;
            member.handle.signal(Signal::KILL).await;
        }
    }

    /// Restarts the seats that are due.
    async fn start_again(&mut self) {
        for spec in self.restarts.take(Instant::now()) {
            if let Err(failure) = self.start(&spec).await {
                let (id, code, words) = (spec.id, failure.code() as u8, failure.to_string());
                self.failed(Blame::new(id, String::new(), code, words, Vec::new())).await;
            }
        }
    }

    /// Reports programs on other hosts that missed their start deadline.
    async fn look_for_starts(&mut self) {
        let now = Instant::now();
        let mut late = Vec::new();
        for (id, member) in &mut self.members {
            if member.start.as_ref().is_none_or(|(_, by)| *by > now) {
                continue;
            }
            if !member.has_started() {
                late.push((*id, member.on(), member.tail.lines()));
            }
            member.start = None;
        }
        let seconds = self.reach.start_timeout.as_secs();
        for (id, on, tail) in late {
            let words =
                format!("it did not start within {seconds} s; check the host, or raise --start-timeout");
            self.failed(Blame::new(id, on, ExitCode::Deadline as u8, words, tail)).await;
        }
    }

    /// The scheduler's status, if it answers.
    async fn ask(&self) -> Option<ClusterStatus> {
        let asked = get(Whose::Scheduler, self.status_at.as_ref()?, "/status");
        let asked = timeout(Duration::from_millis(ASK_MS), asked).await;
        serde_json::from_slice(&asked.ok()?.ok()?).ok()
    }

    async fn failed(&mut self, failure: Blame) {
        if self.verdict.is_none() {
            self.verdict = Some(failure.code);
            self.escalate(&[(self.grace, Signal::TERM), (2 * self.grace, Signal::KILL)]);
        } else if self.suspects.is_empty() {
            // The first failure was reported, or the launcher ends the job itself.
            return;
        }
        self.suspects.push(failure);
        if first_of(&self.suspects, &self.scheduler_said.lines()).is_some() {
            self.say_blame().await;
        }
    }

    /// Reports the first failure, once. Later failures are effects.
    async fn say_blame(&mut self) {
        let suspects = std::mem::take(&mut self.suspects);
        let Some(blame) = most_likely(suspects, &mut self.lost, &self.scheduler_said.lines()) else { return };
        let Blame { id, on, code, words, tail, .. } = blame;
        self.verdict = Some(code);
        let failed = if self.is_part { "failed" } else { "failed first" };
        self.printer.say(&format!("{id}{on} {failed}: {words}")).await;
        for line in &tail {
            self.printer.say(&format!("  {id} said last: {line}")).await;
        }
        if let Some(advice) = child::advice(&tail, &on) {
            self.printer.say(&advice).await;
        }
    }

    /// Ends all processes after a signal. A second signal kills them at once.
    async fn interrupted(&mut self, (code, why): EndWord) {
        self.interrupts += 1;
        self.say_blame().await;
        self.printer.say(&format!("{why}; ending {}", names(self.members.keys()))).await;
        self.verdict.get_or_insert(code);
        match self.interrupts {
            2.. => self.escalate(&[(Duration::ZERO, Signal::KILL)]),
            _ => self.escalate(&[(Duration::ZERO, Signal::TERM), (self.grace, Signal::KILL)]),
        }
    }

    fn escalate(&mut self, steps: &[(Duration, Signal)]) {
        self.restarts.cancel();
        let now = Instant::now();
        self.escalation = steps.iter().map(|(after, signal)| (now + *after, *signal)).collect();
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Does the cluster wait for this member, which has ended without joining?
fn never_joined(status: &ClusterStatus, id: MemberId) -> bool {
    let has_joined = status.members.iter().any(|member| (member.role, member.rank) == (id.role, id.rank));
    status.phase == JobPhase::Assembling && !has_joined
}

fn names<'a>(ids: impl Iterator<Item = &'a MemberId>) -> String {
    ids.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// What ends the job: SIGINT and SIGTERM with the exit codes they mean, and the reason that the launcher logs.
pub(super) fn listen_for_signals() -> io::Result<(mpsc::Sender<EndWord>, mpsc::Receiver<EndWord>)> {
    let (sender, receiver) = mpsc::channel(4);
    let kinds = [
        (SignalKind::interrupt(), 130, "SIGINT received"),
        (SignalKind::terminate(), 143, "SIGTERM received"),
    ];
    for (kind, code, why) in kinds {
        let mut stream = signal(kind)?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() && sender.send((code, why)).await.is_ok() {}
        });
    }
    Ok((sender, receiver))
}
