//! Executes the engine's commands, strictly in order, by calls to storage, channels and calls.

use super::error::LaneError;
use super::lane::DataLane;
use super::link::Post;
use crate::engine::{Addend, Command, Commands, Onto, Source};
use crate::storage::{Round, Views};
use daemon::flight::Kind;
use fabric::{CompletionQueue, RemoteKey, RemoteSpan, View};

impl<Q: CompletionQueue> DataLane<Q> {
    /// Executes all commands in order. If one fails, the lane does, whoever had them executed: nothing is executed any more, and
    /// the next turn returns the failure ([`DataLane::check`]). Otherwise a failure while a worker is attached, say, would be an
    /// answer to that worker alone, and rounds would continue without the rest of the commands.
    pub(super) fn execute(&mut self) {
        if self.failure.is_none() {
            self.failure = self.execute_list().err();
        }
        if self.failure.is_some() {
            self.commands.clear();
        }
    }

    /// Returns the reason if the lane cannot continue. Its operations end with it: when the lane and its channels are closed, the server
    /// reports the reason to the scheduler.
    pub(super) fn check(&mut self) -> Result<(), LaneError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    fn execute_list(&mut self) -> Result<(), LaneError> {
        // Executing makes more: a round's verdict, or landings that end because a peer is expelled.
        loop {
            while !self.commands.list.is_empty() {
                let mut commands = std::mem::take(&mut self.executed);
                std::mem::swap(&mut commands, &mut self.commands);
                self.commands.told_before_ms = self.flight.told_before_ms();
                self.flight.arrive(&mut commands.arrivals);
                let mut list = std::mem::take(&mut commands.list);
                for command in list.drain(..) {
                    self.execute_one(command, &commands)?;
                }
                commands.list = list;
                commands.clear();
                self.executed = commands;
            }
            if self.gone.is_empty() {
                break;
            }
            self.close_gone();
        }
        self.close_over();
        Ok(())
    }

    fn execute_one(&mut self, command: Command, of: &Commands) -> Result<(), LaneError> {
        match command {
            Command::Size { chunk, bytes } => self.storage.size(chunk, bytes)?,
            Command::Reduce { chunk, addend } => self.reduce(chunk, &addend)?,
            Command::Finish { chunk, round: number, last, old, into, contributors } => {
                self.finish(chunk, &Round { number, last, old, into, contributors })?;
            }
            Command::Prepare { chunk, round: number, last, old, contributors } => {
                let round = Round { number, last, old, into: old, contributors };
                self.storage.prepare(chunk, &round, &self.views_of(last))?;
            }
            Command::Norms { chunks } => self.storage.norms(chunks),
            Command::Init { chunk, from, into } => {
                self.storage.init(chunk, from, self.view_of(from).as_ref(), into)?;
            }
            Command::Spill { chunk, from, to } => self.spill(chunk, from, to)?,
            Command::Fetch { peer, chunk, region, offset, to } => {
                let from = RemoteSpan { key: RemoteKey(region), offset };
                let bytes = self.storage.size_of(chunk)?;
                self.post(peer, Post::Fetch { chunk, block: to, bytes, from })?;
            }
            Command::Land { peer, chunk, buffer, landing } => {
                let bytes = self.storage.size_of(chunk)?;
                self.post(peer, Post::Land { chunk, buffer, bytes, landing, moved: None })?;
            }
            Command::Relieve { chunk, buffer, to } => self.relieve(chunk, buffer, to)?,
            Command::CallTake(taken) => self.take_call(&taken)?,
            Command::CallDeliver { call } => self.deliver_call(call)?,
            Command::CallCancel { call } => self.calls.cancel(call)?,
            Command::CallLand { peer, call, landing } => self.land_call(peer, call, landing)?,
            Command::CallDrop { call } => self.calls.drop_call(call)?,
            Command::Results { peer, slot, results, grants, sequence } => {
                let (results, grants) = (&of.results[results], &of.grants[grants]);
                self.flight.results(peer, results);
                self.send_results(peer, slot, results, grants, sequence)?;
            }
            Command::Notice { peer, notice } => self.post(peer, Post::Notice(notice.to_wire()))?,
            Command::Expel { peer, reason } => self.expel(peer, &reason),
            Command::Capture { to, chunk, state, live } => self.capture(to, chunk, &state, live)?,
            Command::Record { to, slot, chunk, block, payload, contributors, sequence } => {
                let contributors = &of.contributors[contributors];
                self.write_record((to, slot), chunk, (block, payload), contributors, sequence)?;
            }
            Command::TellPrimary { from, notice } => self.notify_primary(from, notice)?,
            Command::TakeSum { chunk, from, at, bytes, left } => {
                self.storage.take_sum(chunk, from, (at, bytes), left)?;
            }
            Command::TakePart { from, part, at, bytes, total, chunk } => {
                self.take_part(from, (part, at, bytes), total, chunk)?;
            }
            Command::Load { from, chunk, into, keeps_other, slot } => {
                self.load((from, slot), chunk, into, keeps_other)?;
            }
            Command::TakeRules { from, chunk, rules, bytes, after } => {
                self.take_rules(from, chunk, (rules, bytes), after)?;
            }
            Command::EndStream { peer, ours, reason } => {
                tracing::warn!(server = peer.0, reason, "closing a channel between servers");
                self.end_stream(peer, ours);
            }
            Command::Free { chunk } => self.storage.free(chunk),
            Command::Seeded { to, epoch } => self.say_seeded(to, epoch),
        }
        Ok(())
    }

    fn reduce(&mut self, chunk: u32, addend: &Addend) -> Result<(), LaneError> {
        let views = self.views_of(Some(*addend));
        let begun = self.flight.begin(chunk, &self.storage);
        self.storage.reduce(chunk, *addend, &views)?;
        self.flight.end(begun, Kind::Reduce, (chunk, (&self.engine, &self.storage)), addend.from);
        self.plan_rows(chunk, addend)
    }

    fn finish(&mut self, chunk: u32, round: &Round) -> Result<(), LaneError> {
        let views = self.views_of(round.last);
        let begun = self.flight.begin(chunk, &self.storage);
        let verdict = match self.engine.home(chunk) {
            Some(home) => self.finish_rows((chunk, home), round, &views)?,
            None => self.storage.finish(chunk, round, &views)?,
        };
        let of = (chunk, (&self.engine, &self.storage));
        self.flight.round(begun, of, (round.number, round.contributors));
        self.engine.finished(chunk, verdict, &mut self.commands);
        Ok(())
    }

    fn spill(&mut self, chunk: u32, from: Source, to: u32) -> Result<(), LaneError> {
        let view = self.view_of(from);
        let begun = self.flight.begin(chunk, &self.storage);
        self.storage.spill(chunk, from, view.as_ref(), to)?;
        self.flight.end(begun, Kind::Spill, (chunk, (&self.engine, &self.storage)), from);
        Ok(())
    }

    /// The mapped memory of a contribution that is read in its worker's memory. It was mapped when its batch arrived. If the channel has
    /// ended since, only commands that were returned before are still executed.
    fn view_of(&self, from: Source) -> Option<View> {
        let Source::Worker { peer, region, offset, bytes } = from else { return None };
        let link = self.links.get(peer.0 as usize).and_then(Option::as_ref).map(|link| &link.mapped);
        let gone = self.gone.iter().filter(|gone| gone.rank == peer).map(|gone| &gone.link.mapped);
        let remote = RemoteSpan { key: RemoteKey(region), offset };
        link.into_iter().chain(gone).find_map(|mapped| mapped.find(remote, bytes))
    }

    fn views_of(&self, addend: Option<Addend>) -> Views {
        let Some(Addend { from, onto }) = addend else { return [None, None] };
        let first = if let Onto::First(first) = onto { self.view_of(first) } else { None };
        [self.view_of(from), first]
    }
}
