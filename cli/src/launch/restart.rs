//! Restarts of failed processes: which, how often and when, and which failures the job survives without a restart. Must not start
//! processes; the supervisor does.

use super::args::LaunchArgs;
use super::plan::{ChildSpec, Plan};
use super::ranks::is_handed_on;
use daemon::exit::{Failure, WithCode as _};
use daemon::settings::load_settings;
use proto_common::config::{Settings, WorkerLoss};
use proto_common::error::ExitCode;
use proto_common::ids::{MemberId, Role};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Pause before the first restart of a seat, in milliseconds. It doubles with each further restart.
const PAUSE_MS: u64 = 250;
const PAUSE_MS_MAX: u64 = 10_000;
/// Exit codes after which a restart is useless: it would fail in the same way, or the job is over.
const FINAL: [ExitCode; 7] = [
    ExitCode::Usage,
    ExitCode::BadData,
    ExitCode::MemberDied,
    ExitCode::Deadline,
    ExitCode::Refused,
    ExitCode::Transport,
    ExitCode::Config,
];

fn is_final(code: u8) -> bool {
    code == 0 || FINAL.iter().any(|known| *known as u8 == code)
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    /// Largest number of restarts of each seat.
    limit: u32,
    /// Roles whose members may be restarted.
    roles: Vec<Role>,
    /// Those of them without which the job continues permanently.
    spared: Vec<Role>,
    /// The launcher ends its own servers that were declared failed (`--end-failed`).
    ends_failed: bool,
    made: BTreeMap<MemberId, u32>,
    due: Vec<(Instant, ChildSpec)>,
}

/// A restart, for the message about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Again {
    pub(super) after: Duration,
    pub(super) number: u32,
    pub(super) limit: u32,
}

impl Restarts {
    /// The restarts that flags and settings permit, and notes about roles that the settings exclude.
    pub(super) fn new(
        args: &LaunchArgs,
        env: &[(String, String)],
        plan: &Plan,
    ) -> Result<(Self, Vec<String>), Failure> {
        let limit = args.restart;
        // A later value replaces an earlier one, as in a process's environment.
        let all = env.iter().chain(&plan.common).chain(&plan.of_servers).cloned();
        let all = all.filter(|(name, _)| !is_handed_on(name));
        let all: Vec<(String, String)> = all.collect::<BTreeMap<_, _>>().into_iter().collect();
        let loaded = match (load_settings(Role::Scheduler, &all, None, &[]), limit) {
            (Ok(loaded), _) => loaded,
            // The processes report errors in their settings.
            (Err(_), None) => return Ok(Default::default()),
            (Err(error), Some(_)) => return Err(error).code(ExitCode::Config),
        };
        let (roles, notes) = survivable(&loaded.settings);
        let spared = spared(&loaded.settings);
        let mut notes = if limit.is_some() { notes } else { Vec::new() };
        let cannot = cannot_end_failed(&loaded.settings, plan).filter(|_| args.end_failed);
        let ends_failed = args.end_failed && cannot.is_none();
        notes.extend(cannot.map(|why| format!("--end-failed has no effect: {why}")));
        Ok((Self { limit: limit.unwrap_or(0), roles, spared, ends_failed, ..Self::default() }, notes))
    }

    /// Are servers of this launcher that were declared failed to be ended?
    pub(super) fn ends_failed(&self) -> bool {
        self.ends_failed
    }

    /// Does the job continue permanently without a member of this role?
    pub(super) fn spares(&self, role: Role) -> bool {
        self.spared.contains(&role)
    }

    /// The reason why a failure ends the job, if a restart could have prevented that.
    pub(super) fn nobody_comes(&self, id: MemberId, code: u8) -> Option<String> {
        if is_final(code) || !self.roles.contains(&id.role) || self.spares(id.role) {
            return None;
        }
        let made = self.made.get(&id).copied().unwrap_or(0);
        match self.limit {
            0 => Some("the others would wait for it, and without --restart it is not restarted".into()),
            limit if made >= limit => Some(format!(
                "the others would wait for it, and --restart={limit} permits no further restart"
            )),
            _ => None,
        }
    }

    /// Plans a restart of a process that has ended with this code, if it may be restarted.
    pub(super) fn again(&mut self, spec: &ChildSpec, code: u8, now: Instant) -> Option<Again> {
        let made = self.made.get(&spec.id).copied().unwrap_or(0);
        if is_final(code) || made >= self.limit || !self.roles.contains(&spec.id.role) {
            return None;
        }
        let pause_ms = PAUSE_MS.saturating_mul(1 << made.min(16)).min(PAUSE_MS_MAX);
        let after = Duration::from_millis(pause_ms);
        self.made.insert(spec.id, made + 1);
        self.due.push((now + after, spec.clone()));
        Some(Again { after, number: made + 1, limit: self.limit })
    }

    /// Was this seat restarted?
    pub(super) fn is_again(&self, id: MemberId) -> bool {
        self.made.contains_key(&id)
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.iter().map(|(at, _)| *at).min()
    }

    /// Those that are due.
    pub(super) fn take(&mut self, now: Instant) -> Vec<ChildSpec> {
        let (due, later) = self.due.drain(..).partition(|(at, _)| *at <= now);
        self.due = later;
        due.into_iter().map(|(_, spec): (Instant, ChildSpec)| spec).collect()
    }

    /// Does a seat of this role wait for its restart?
    pub(super) fn awaits(&self, role: Role) -> bool {
        self.due.iter().any(|(_, spec)| spec.id.role == role)
    }

    /// Cancels all restarts: the job ends.
    pub(super) fn cancel(&mut self) {
        self.due.clear();
        self.limit = 0;
    }
}

/// Why this launcher ends no server that was declared failed, although it was asked to.
fn cannot_end_failed(settings: &Settings, plan: &Plan) -> Option<&'static str> {
    if plan.programs.every_role {
        return Some("with --every-role servers run PROGRAM, and the launcher ends no program of yours");
    }
    if plan.is_part() {
        return Some("another launcher has started the scheduler; it works with --cluster local and ssh");
    }
    settings.node.http.is_empty().then_some("it needs the scheduler's status, and node.http is empty")
}

/// The roles whose members may be restarted, and notes with the reason for the others.
fn survivable(settings: &Settings) -> (Vec<Role>, Vec<String>) {
    let rules = [
        (
            Role::Scheduler,
            settings.deadlines.scheduler_ms > 0,
            "deadlines.scheduler_ms = 0",
            "deadlines.scheduler_ms=60000",
        ),
        (Role::Server, settings.cluster.replicas > 0, "cluster.replicas = 0", "cluster.replicas=1"),
        (
            Role::Worker,
            settings.cluster.worker_loss != WorkerLoss::Stop,
            "cluster.worker_loss = \"stop\"",
            "cluster.worker_loss=wait",
        ),
    ];
    let (mut roles, mut notes) = (Vec::new(), Vec::new());
    for (role, can_go_on, reason, fix) in rules {
        match can_go_on {
            true => roles.push(role),
            false => notes.push(format!(
                "--restart: a failed {role} is not restarted, because its failure ends the job ({reason}); --set {fix} changes this"
            )),
        }
    }
    (roles, notes)
}

/// The roles whose members the job can lose without a restart. Not the scheduler, because members wait for it; and not workers with
/// `wait`, because rounds wait for them.
fn spared(settings: &Settings) -> Vec<Role> {
    let rules = [
        (Role::Server, settings.cluster.replicas > 0),
        (Role::Worker, settings.cluster.worker_loss == WorkerLoss::Continue),
    ];
    rules.into_iter().filter(|(_, goes_on)| *goes_on).map(|(role, _)| role).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::Seat;
    use super::*;

    fn spec(role: Role, rank: u32) -> ChildSpec {
        ChildSpec {
            id: Seat::here(role, rank).id,
            host: None,
            program: "p".into(),
            args: Vec::new(),
            directory: None,
            env: Vec::new(),
            env_removed: Vec::new(),
        }
    }

    fn restarts(limit: u32, roles: &[Role]) -> Restarts {
        Restarts { limit, roles: roles.to_vec(), ..Restarts::default() }
    }

    #[test]
    fn so_often_and_ever_later() {
        let mut restarts = restarts(3, &[Role::Server]);
        let (now, one) = (Instant::now(), spec(Role::Server, 1));
        let pauses: Vec<_> = (0..4)
            .map(|_| restarts.again(&one, 137, now).map(|again| (again.number, again.after.as_millis())))
            .collect();
        assert_eq!(pauses, [Some((1, 250)), Some((2, 500)), Some((3, 1_000)), None]);
        assert!(restarts.again(&spec(Role::Server, 0), 137, now).is_some(), "each seat has its own count");
        assert_eq!(restarts.take(now), [], "nothing is due yet");
        assert_eq!(restarts.take(now + Duration::from_millis(500)).len(), 3);
        assert_eq!(restarts.next(), Some(now + Duration::from_millis(1_000)));
        assert!(restarts.awaits(Role::Server) && !restarts.awaits(Role::Worker));
        restarts.cancel();
        assert_eq!((restarts.next(), restarts.again(&spec(Role::Server, 2), 137, now)), (None, None));
    }

    #[test]
    fn ends_that_repeat_themselves_are_ends() {
        let mut restarts = restarts(9, &[Role::Worker]);
        let now = Instant::now();
        for code in [0, 2, 65, 71, 73, 78] {
            assert_eq!(restarts.again(&spec(Role::Worker, 0), code, now), None, "{code}");
        }
        for code in [1, 70, 134, 137] {
            assert!(restarts.again(&spec(Role::Worker, 0), code, now).is_some(), "{code}");
        }
        assert_eq!(restarts.again(&spec(Role::Server, 0), 137, now), None, "the job ends with it");
    }

    #[test]
    fn the_settings_say_whose_death_the_job_survives() {
        let mut settings = Settings::default();
        let (roles, notes) = survivable(&settings);
        assert_eq!((roles, notes.len()), (vec![Role::Scheduler], 2));
        settings.cluster.replicas = 1;
        settings.cluster.worker_loss = WorkerLoss::Wait;
        settings.deadlines.scheduler_ms = 0;
        let (roles, notes) = survivable(&settings);
        assert_eq!(roles, [Role::Server, Role::Worker]);
        assert!(notes[0].contains("a failed scheduler is not restarted"), "{notes:?}");
    }
    #[test]
    fn who_is_waited_for_is_not_who_can_be_done_without() {
        let mut settings = Settings::default();
        for (replicas, loss, expected) in [
            (0, WorkerLoss::Stop, &[][..]),
            (1, WorkerLoss::Wait, &[Role::Server]),
            (0, WorkerLoss::Continue, &[Role::Worker]),
            (1, WorkerLoss::Continue, &[Role::Server, Role::Worker]),
        ] {
            (settings.cluster.replicas, settings.cluster.worker_loss) = (replicas, loss);
            assert_eq!(spared(&settings), expected, "{replicas} {loss:?}");
        }
    }

    #[test]
    fn it_is_said_where_another_life_would_have_mended_it() {
        let mut all = restarts(1, &[Role::Scheduler, Role::Server, Role::Worker]);
        all.spared = vec![Role::Server];
        let (worker, server) = (spec(Role::Worker, 0), spec(Role::Server, 0));
        let why =
            |restarts: &Restarts, spec: &ChildSpec| restarts.nobody_comes(spec.id, 137).unwrap_or_default();
        assert_eq!(why(&all, &worker), "", "it is restarted");
        assert!(all.again(&worker, 137, Instant::now()).is_some());
        assert!(why(&all, &worker).contains("--restart=1 permits no further restart"));
        all.limit = 0;
        assert!(why(&all, &worker).contains("without --restart"));
        assert_eq!(
            all.nobody_comes(worker.id, ExitCode::BadData as u8),
            None,
            "another life would end with it, too"
        );
        assert_eq!(why(&all, &server), "", "nobody waits for it");
        assert_eq!(why(&restarts(0, &[]), &worker), "", "the job ends with it");
    }
}
