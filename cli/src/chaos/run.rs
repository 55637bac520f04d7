//! One run: a training from its start to its end, with the faults of its seed. Whatever is not as it must be is a failure with
//! words for people; nothing is left running.

use super::args::{ChaosArgs, Expect};
use super::cluster::{Cluster, Ended, SCHEDULER, Seat, hash_in, since_all_began};
use super::judge::{is_late, is_refused_at_end, is_stranded, is_typed, judge_unmoved};
use super::report::{Recovery, RunReport};
use super::schedule::{Kind, Schedule, Strike};
use super::soak::Soak;
use super::watch::Watch;
use daemon::exit::Failure;
use proto_common::ids::{MemberId, Rank, Role};
use std::path::Path;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Milliseconds between two looks.
const LOOK_MS: u64 = 10;
/// Milliseconds between two looks at what processes use.
const SAMPLE_MS: u64 = 1_000;
/// Everybody who hears of the end of the job has ended this long after the silence that shows it.
const END_MS: u64 = 10_000;
/// A recovery is over when everybody has finished so many rounds more than anybody had when the fault came: the first may have
/// had all that it needs by then.
const ROUNDS_AFTER: u64 = 2;

/// Why a run is not as it must be.
#[derive(Debug)]
pub(super) enum Wrong {
    /// The cluster's doing.
    Cluster(String),
    /// Chaos itself could not go on.
    Own(Failure),
}

impl From<Failure> for Wrong {
    fn from(failure: Failure) -> Self {
        Self::Own(failure)
    }
}

fn wrong(text: impl Into<String>) -> Wrong {
    Wrong::Cluster(text.into())
}

/// What may still be done to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    pub(super) strikes: u32,
    /// Of a soak: when others are spared than before.
    pub(super) turn: Option<Instant>,
}

/// A fault that was made and is not over.
#[derive(Debug)]
struct Hit {
    strike: Strike,
    victim: Seat,
    at: Instant,
    /// The highest round that anybody had finished.
    round: u64,
    is_back: bool,
    /// Training had gone on after this: before the victim is back, where others do not need it.
    took: Option<Duration>,
    /// It ends the job, and everybody has to notice.
    is_end: bool,
    second: Stage,
}

/// How far the second of a double fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    ToCome,
    Away,
    /// Or there is none.
    Over,
}

#[derive(Debug)]
enum Phase {
    /// Training goes on; `since` is the round that everybody had finished when all was whole.
    Calm {
        next: Strike,
        since: Option<u64>,
        from: Instant,
    },
    /// It comes at this moment.
    About(Strike, Instant),
    Struck(Hit),
    /// Nothing comes any more.
    Quiet,
}

/// See the module.
pub(super) struct Run<'a> {
    args: &'a ChaosArgs,
    seed: u64,
    cluster: Cluster<'a>,
    watch: Watch,
    schedule: Schedule,
    allowance: Allowance,
    phase: Phase,
    recoveries: Vec<Recovery>,
    /// Who was back after the others had taken it for dead: it may end when it hears of that.
    deposed: Option<Seat>,
    /// Who has finished training.
    finished: Vec<Seat>,
    /// Who has ended with 0 since a fault that ends the job.
    unmoved: Vec<Seat>,
    /// A round more than the last look showed, and when: standing still is a failure.
    progress: (u64, Instant),
    started: Instant,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        args: &'a ChaosArgs,
        seed: u64,
        allowance: Allowance,
        directory: &Path,
    ) -> Result<Self, Failure> {
        let now = Instant::now();
        Ok(Self {
            args,
            seed,
            cluster: Cluster::new(args, directory, allowance.strikes > 0)?,
            watch: Watch::default(),
            schedule: Schedule::new(args.menu(), seed),
            allowance,
            phase: Phase::Quiet,
            recoveries: Vec::new(),
            deposed: None,
            finished: Vec::new(),
            unmoved: Vec::new(),
            progress: (0, now),
            started: now,
        })
    }

    /// Runs it to its end; says the hash of the weights, or why there is none.
    pub(super) async fn finish(mut self, soak: &mut Soak) -> (RunReport, Result<(), Wrong>) {
        self.phase = self.calm();
        let result = match self.cluster.start_all() {
            Ok(()) => self.drive(soak).await,
            Err(failure) => Err(failure.into()),
        };
        let result = self.close(result).await;
        let (hash, result) = match result {
            Ok(hash) => (hash, Ok(())),
            Err(wrong) => (None, Err(wrong)),
        };
        let report = RunReport {
            seed: self.seed,
            hash,
            seconds: self.started.elapsed().as_secs_f64(),
            recoveries: self.recoveries,
            failure: None,
        };
        (report, result)
    }

    /// Until the training is over.
    async fn drive(&mut self, soak: &mut Soak) -> Result<(), Wrong> {
        let mut sampled = Instant::now();
        loop {
            for end in self.cluster.ended()? {
                self.ended(end)?;
            }
            self.check_unmoved()?;
            if self.finished.len() as u32 == self.args.workers || self.is_spent() {
                return Ok(());
            }
            self.watch.look(&self.cluster).await;
            if sampled.elapsed() >= Duration::from_millis(SAMPLE_MS) {
                sampled = Instant::now();
                soak.sample(&self.cluster, &self.watch).await;
            }
            self.step(soak)?;
            self.check_progress()?;
            // Sleep: nobody tells another process what round it is in; looking often is how it is known.
            sleep(Duration::from_millis(LOOK_MS)).await;
        }
    }

    /// With ends of the job as what is looked for, there is nothing to wait for after the last one.
    fn is_spent(&self) -> bool {
        self.args.expect == Expect::End && matches!(self.phase, Phase::Quiet)
    }

    fn calm(&mut self) -> Phase {
        if let Some(turn) = self.allowance.turn {
            self.schedule.spare(&self.args.spared(Instant::now() < turn));
        }
        let is_used = self.recoveries.len() as u32 >= self.allowance.strikes;
        match self.schedule.next() {
            Some(next) if !is_used => Phase::Calm { next, since: None, from: Instant::now() },
            _ => Phase::Quiet,
        }
    }

    fn step(&mut self, soak: &mut Soak) -> Result<(), Wrong> {
        let now = Instant::now();
        self.phase = match std::mem::replace(&mut self.phase, Phase::Quiet) {
            Phase::Quiet => Phase::Quiet,
            Phase::Calm { next, since, from } => self.wait(next, since, from)?,
            Phase::About(strike, at) if now < at => Phase::About(strike, at),
            Phase::About(strike, _) => {
                let phase = self.strike(strike)?;
                if let Phase::Struck(hit) = &phase {
                    soak.strike(hit.at, hit.victim.role);
                }
                phase
            }
            Phase::Struck(hit) => self.recover(hit)?,
        };
        Ok(())
    }

    /// Until all is whole, and then for some rounds.
    fn wait(&mut self, next: Strike, since: Option<u64>, from: Instant) -> Result<Phase, Wrong> {
        let round = self.watch.round_of_all(&self.cluster);
        let since = match since {
            None if self.watch.is_whole(&self.cluster) => round,
            since => since,
        };
        let is_time = since.zip(round).is_some_and(|(since, round)| round >= since + next.after_rounds);
        if is_time {
            return Ok(Phase::About(next, Instant::now() + Duration::from_micros(next.delay_us)));
        }
        if since.is_none() && from.elapsed() > self.patience() && self.finished.is_empty() {
            let missing = self.watch.missing(&self.cluster).join(", ");
            let text = format!("not whole {} s after the last recovery: {missing}", self.args.patience);
            return Err(wrong(text));
        }
        Ok(Phase::Calm { next, since, from })
    }

    fn strike(&mut self, strike: Strike) -> Result<Phase, Wrong> {
        let victim = MemberId { role: strike.role, rank: Rank(strike.seat) };
        // One that has finished, or is finishing, is no victim.
        if !self.finished.is_empty() || !self.cluster.strike(victim, strike.kind)? {
            return Ok(Phase::Quiet);
        }
        let (at, round) = (Instant::now(), self.watch.round_of_any());
        let is_end = strike.is_death && self.args.is_end(strike.role);
        let second = if strike.second.is_some() { Stage::ToCome } else { Stage::Over };
        Ok(Phase::Struck(Hit { strike, victim, at, round, is_back: false, took: None, is_end, second }))
    }

    /// The victim comes back when its time has come; over it is when everybody is further than before.
    fn recover(&mut self, mut hit: Hit) -> Result<Phase, Wrong> {
        let since = hit.at.elapsed();
        let is_kill = hit.strike.kind == Kind::Kill;
        // Where the job ends, all are started again together.
        // A killed process may take a while to end, too, and holds its connections until then.
        let has_ended = !matches!(hit.strike.kind, Kind::Kill | Kind::Drain)
            || hit.is_back
            || !self.cluster.lives.contains_key(&hit.victim);
        let is_time = since >= Duration::from_millis(hit.strike.away_ms) && has_ended;
        if !hit.is_back && is_time && !(is_kill && hit.is_end) {
            self.cluster.heal(hit.victim, hit.strike.kind)?;
            hit.is_back = true;
            self.deposed = (!is_kill && hit.strike.is_death).then_some(hit.victim);
        }
        if hit.is_end {
            return self.await_end(hit);
        }
        self.second(&mut hit)?;
        let round = self.watch.round_of_all(&self.cluster);
        if hit.took.is_none()
            && hit.second != Stage::ToCome
            && round.is_some_and(|round| round >= hit.round + ROUNDS_AFTER)
        {
            hit.took = Some(since);
        }
        if let (true, Some(took), Stage::Over) = (hit.is_back, hit.took, hit.second) {
            self.note(&hit, took);
            return Ok(self.calm());
        }
        if since > self.patience() + Duration::from_millis(hit.strike.away_ms) {
            if !has_ended && hit.took.is_some() {
                return Err(wrong(format!("{} s after {} it runs still", since.as_secs(), words(&hit))));
            }
            return Err(wrong(format!(
                "{} s after {} training has not gone on: round {} then, {} now; {}",
                since.as_secs(),
                words(&hit),
                hit.round,
                round.map_or("none".into(), |round| round.to_string()),
                self.watch.missing(&self.cluster).join(", "),
            )));
        }
        Ok(Phase::Struck(hit))
    }

    /// Kills the second one, and starts it again.
    fn second(&mut self, hit: &mut Hit) -> Result<(), Failure> {
        let Some(second) = hit.strike.second else { return Ok(()) };
        let victim = MemberId { role: second.role, rank: Rank(second.seat) };
        let since_ms = hit.at.elapsed().as_millis() as u64;
        match hit.second {
            Stage::ToCome if since_ms >= second.after_ms => {
                let is_struck = self.cluster.strike(victim, Kind::Kill)?;
                // What was finished in between needed the first recovery only.
                hit.round = hit.round.max(self.watch.round_of_any());
                hit.second = if is_struck { Stage::Away } else { Stage::Over };
            }
            Stage::Away
                if since_ms >= second.after_ms + second.away_ms
                    && !self.cluster.lives.contains_key(&victim) =>
            {
                self.cluster.start(victim)?;
                hit.second = Stage::Over;
            }
            _ => {}
        }
        Ok(())
    }

    /// Everybody ends; then all begin again, from the last checkpoint where there are any.
    fn await_end(&mut self, hit: Hit) -> Result<Phase, Wrong> {
        let since = hit.at.elapsed();
        if self.cluster.lives.is_empty() {
            let is_same = self.args.expect == Expect::Same;
            self.note(&hit, since);
            if !is_same && self.recoveries.len() as u32 >= self.allowance.strikes {
                return Ok(Phase::Quiet);
            }
            self.cluster.start_all()?;
            (self.finished, self.unmoved) = (Vec::new(), Vec::new());
            self.watch = Watch::default();
            self.progress = (0, Instant::now());
            return Ok(match is_same {
                // The time until it goes on is what counts.
                true => {
                    self.recoveries.pop();
                    Phase::Struck(Hit { is_end: false, is_back: true, ..hit })
                }
                false => self.calm(),
            });
        }
        // One that slept through the end looks for a scheduler for as long as its setting says: nobody waits for that.
        if hit.is_back && self.cluster.lives.keys().eq([&hit.victim]) {
            self.cluster.strike(hit.victim, Kind::Kill)?;
        }
        let bound = Duration::from_millis(hit.strike.away_ms + self.args.silence_ms + END_MS);
        if since > bound {
            let left: Vec<String> = self.cluster.lives.keys().map(ToString::to_string).collect();
            let text = format!(
                "{} ms after {} these run still: {}",
                since.as_millis(),
                words(&hit),
                left.join(", ")
            );
            return Err(wrong(text));
        }
        Ok(Phase::Struck(hit))
    }

    fn note(&mut self, hit: &Hit, took: Duration) {
        self.progress = (0, Instant::now());
        let strike = hit.strike;
        self.recoveries.push(Recovery { strike, round: hit.round, recovered_ms: took.as_secs_f64() * 1e3 });
    }

    fn ended(&mut self, end: Ended) -> Result<(), Wrong> {
        let Ended { seat, code, was_killed } = end;
        if was_killed {
            return Ok(());
        }
        let (is_typed, is_end) = (is_typed(code), self.has_ended_job());
        if is_end && is_typed && code != 0 {
            return Ok(());
        }
        // It was taken for dead, heard of it, and ended: whoever watches over it starts it again.
        if is_typed && code != 0 && self.deposed.take_if(|deposed| *deposed == seat).is_some() {
            return Ok(self.cluster.start(seat)?);
        }
        if code == 0 {
            // Servers and scheduler end when the last worker has said goodbye, which may still have something to say itself.
            self.finished.extend((seat.role == Role::Worker).then_some(seat));
            self.unmoved.extend(is_end.then_some(seat));
            return Ok(());
        }
        // It had said goodbye when it was killed: what it looks for is over.
        if seat.role == Role::Worker && self.is_late(seat, code) {
            self.finished.push(seat);
            return Ok(());
        }
        // Killed in the last rounds, it came back when all workers had said goodbye.
        if seat.role == Role::Server
            && is_refused_at_end(code, &self.cluster.said(seat))
            && self.is_late(seat, code)
        {
            return Ok(());
        }
        let during = match &self.phase {
            Phase::Struck(hit) => format!(" {} ms after {}", hit.at.elapsed().as_millis(), words(hit)),
            _ => String::new(),
        };
        Err(wrong(format!("{seat} ended with code {code}{during}: {}", self.last_words(seat))))
    }

    /// After a fault that ends the job, 0 is right only where training was over just before: worker 0 has said its hash then, at
    /// the latest when it and all others have ended.
    fn check_unmoved(&self) -> Result<(), Wrong> {
        let has_workers = self.cluster.lives.keys().any(|seat| seat.role == Role::Worker);
        match &self.phase {
            Phase::Struck(hit) if hit.is_end && !has_workers && !self.unmoved.is_empty() => {
                let said = self.cluster.said(MemberId { role: Role::Worker, rank: Rank(0) });
                judge_unmoved(&self.unmoved, &said, &words(hit)).map_err(wrong)
            }
            _ => Ok(()),
        }
    }

    /// Has a fault struck that ends the job?
    fn has_ended_job(&self) -> bool {
        matches!(&self.phase, Phase::Struck(hit) if hit.is_end)
    }

    fn is_late(&self, seat: Seat, code: i32) -> bool {
        is_late(seat, code, &self.cluster.said(seat), &self.cluster.said(SCHEDULER))
    }

    fn last_words(&self, seat: Seat) -> String {
        let said = self.cluster.said(seat);
        let error = said.lines().rfind(|line| line.contains("error: ") || line.contains("panicked"));
        error.or(said.lines().next_back()).unwrap_or("it said nothing").trim().to_owned()
    }

    /// Between faults, training that stands still is a failure, too.
    fn check_progress(&mut self) -> Result<(), Wrong> {
        let round = self.watch.round_of_any();
        if round > self.progress.0 || matches!(self.phase, Phase::Struck(_)) {
            self.progress = (round, Instant::now());
        }
        if self.progress.1.elapsed() > self.patience() {
            return Err(wrong(format!(
                "training stands still at round {round} for {} s",
                self.args.patience
            )));
        }
        Ok(())
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.args.patience)
    }

    /// All workers are done: whoever runs still follows them, in good order.
    async fn follow(&mut self) -> Result<(), Wrong> {
        let over = Instant::now();
        loop {
            for Ended { seat, code, was_killed } in self.cluster.ended()? {
                // It comes late to hear that it was taken for dead.
                let is_deposed = code != 0 && is_typed(code) && self.deposed == Some(seat);
                let has_scheduler = self.cluster.lives.contains_key(&SCHEDULER);
                let is_refused = is_refused_at_end(code, &self.cluster.said(seat));
                let is_late = (!has_scheduler || is_refused) && self.is_late(seat, code);
                let is_away =
                    matches!(&self.phase, Phase::Struck(hit) if hit.victim == SCHEDULER && !hit.is_back);
                // The last goodbye may come after the scheduler has found the server gone.
                let is_end = self.has_ended_job() && is_typed(code);
                let is_excused = is_deposed || is_late || is_end || is_stranded(is_away, seat, code);
                if !was_killed && code != 0 && !is_excused {
                    let last = self.last_words(seat);
                    return Err(wrong(format!("{seat} ended with code {code} after the training: {last}")));
                }
            }
            if self.cluster.lives.is_empty() {
                return Ok(());
            }
            // One that was stopped until after the end would look for a scheduler for as long as its setting says.
            if let Phase::Struck(hit) = &self.phase
                && matches!(hit.strike.kind, Kind::Stop | Kind::Partition)
                && self.cluster.lives.keys().eq([&hit.victim])
            {
                self.cluster.strike(hit.victim, Kind::Kill)?;
            }
            if over.elapsed() >= self.patience() {
                let left: Vec<String> = self.cluster.lives.keys().map(ToString::to_string).collect();
                let (left, patience) = (left.join(", "), self.args.patience);
                return Err(wrong(format!(
                    "{patience} s after the end of the training these run still: {left}"
                )));
            }
            // Sleep: the ends of several children are looked for at once.
            sleep(Duration::from_millis(LOOK_MS)).await;
        }
    }

    /// The end: servers and scheduler follow the workers, nobody has panicked, and rank 0 has said the hash.
    async fn close(&mut self, result: Result<(), Wrong>) -> Result<Option<String>, Wrong> {
        let is_spent = self.is_spent();
        let result = match result {
            Ok(()) if !is_spent => self.follow().await,
            result => result,
        };
        if result.is_err() {
            self.watch.keep(&self.cluster).await;
        }
        self.cluster.end_all().await;
        result?;
        for seat in self.cluster.seats() {
            let said = self.cluster.said(seat);
            let bug =
                said.lines().find(|line| line.contains("panicked at") || line.contains("internal error"));
            if let Some(line) = bug {
                return Err(wrong(format!("{seat} has a bug: {line}")));
            }
        }
        if is_spent {
            return Ok(None);
        }
        let said = self.cluster.said(MemberId { role: Role::Worker, rank: Rank(0) });
        let hash = hash_in(since_all_began(&said))
            .ok_or_else(|| wrong("worker 0 has not said the hash of its weights"))?;
        Ok(Some(hash))
    }
}

fn words(hit: &Hit) -> String {
    let Strike { kind, away_ms, second, .. } = hit.strike;
    let also =
        second.map(|second| format!(" (and {} {} killed)", second.role, second.seat)).unwrap_or_default();
    let first = match kind {
        Kind::Kill => format!("{} was killed", hit.victim),
        Kind::Stop => format!("{} was stopped for {away_ms} ms", hit.victim),
        Kind::Partition => format!("{} was cut off for {away_ms} ms", hit.victim),
        Kind::Drain => format!("{} was told to go", hit.victim),
    };
    first + &also
}
