//! Changes of a lane's roles, from a new shard map. Memory for new chunks is allocated, and accumulators are moved to memory that can be
//! sent, a few chunks in each turn, so that rounds continue. Then the engine takes all new roles at once. Roles that others wait for (the
//! new primary, the replica that counts) do not wait for this. It must not decide roles: the scheduler does.

use super::change::{AllMade, Changed, Changing, Reply};
use super::error::LaneError;
use super::lane::DataLane;
use crate::engine::{ChunkSpec, Role, RoleChanges};
use fabric::CompletionQueue;
use proto_common::ids::{ChunkId, Epoch};
use proto_common::tensor::RuleChange;
use std::time::Instant;

/// Chunks that are made, or whose sums are moved, in one turn of a lane.
const PER_TURN: usize = 4;

fn has_copies(role: Role) -> bool {
    matches!(role, Role::Primary { backup, seeding } if backup.or(seeding).is_some())
}

impl<Q: CompletionQueue> DataLane<Q> {
    /// New chunks to hold.
    pub fn assign(&mut self, epoch: Epoch, specs: &[ChunkSpec]) -> Result<(), LaneError> {
        // Decisions are applied in order. An earlier one that is still being prepared does not contain these chunks, and would give them
        // up. And reports about this epoch would count for replicas that it has not made yet.
        while self.change_roles() {}
        self.epoch = self.epoch.max(epoch);
        let added = self.engine.assign(epoch, specs);
        let placed = added.iter().filter_map(|spec| Some((self.engine.index_of(spec.id)?, *spec)));
        let placed: Vec<_> = placed.collect();
        let made = self.make(&placed, &mut AllMade::new());
        self.note_stored();
        let begun = self.begin_from_checkpoint(specs.iter());
        self.execute();
        made.and(begun)
    }

    /// All chunks that this lane has a part in from an epoch on, however long that takes.
    pub fn roles(&mut self, epoch: Epoch, chunks: &[(ChunkSpec, Role)]) -> Result<(), LaneError> {
        let mut changing = self.begin_roles(epoch, chunks.to_vec(), AllMade::new())?;
        while !self.prepare_some(&mut changing) {}
        self.end_roles(&mut changing)
    }

    /// As [`DataLane::roles`], a few chunks in each turn, answered when it is done. It replaces an earlier decision that is still being
    /// prepared.
    pub(super) fn take_roles(&mut self, epoch: Epoch, chunks: Vec<(ChunkSpec, Role)>, reply: Reply) {
        if self.changing.as_ref().is_some_and(|changing| epoch < changing.epoch) {
            reply.send(Ok(()));
            return;
        }
        let mut made = AllMade::new();
        if let Some(mut before) = self.changing.take() {
            let failed = before.failed.take();
            before.answer(failed.map_or(Ok(()), Err));
            made = before.made;
        }
        match self.begin_roles(epoch, chunks, made) {
            Ok(changing) => self.changing = Some(Changing { reply: Some(reply), ..changing }),
            Err(error) => reply.send(Err(error.into())),
        }
        self.change_roles();
    }

    /// One turn's part of a change of roles. True where there is one.
    pub(super) fn change_roles(&mut self) -> bool {
        let Some(mut changing) = self.changing.take() else { return false };
        if self.prepare_some(&mut changing) {
            let result = self.end_roles(&mut changing);
            changing.answer(result);
        } else {
            self.changing = Some(changing);
        }
        true
    }

    fn begin_roles(
        &mut self,
        epoch: Epoch,
        chunks: Vec<(ChunkSpec, Role)>,
        made: AllMade,
    ) -> Result<Changing, LaneError> {
        self.epoch = self.epoch.max(epoch);
        let mut next = 0;
        if self.engine.changes_duties(&chunks) {
            // Chunks that this server serves are never left out. Otherwise it would report too early that all of them have replicas.
            let here =
                |(spec, role): &&(ChunkSpec, Role)| role.serves() || self.engine.index_of(spec.id).is_some();
            let here: Vec<_> = chunks.iter().filter(here).copied().collect();
            if here.len() < chunks.len() {
                self.give_roles(epoch, &here, &mut AllMade::new())?;
            } else {
                next = chunks.len();
            }
        }
        Ok(Changing { epoch, chunks, next, made, lacking: Vec::new(), failed: None, reply: None })
    }

    /// Allocates memory for some chunks. True when nothing is left to do.
    fn prepare_some(&mut self, changing: &mut Changing) -> bool {
        let mut prepared = 0;
        while prepared < PER_TURN {
            let Some((spec, role)) = changing.chunks.get(changing.next).copied() else { return true };
            changing.next += 1;
            match self.prepare_one(&spec, role, &mut changing.made) {
                Ok(has_work) => prepared += usize::from(has_work),
                Err(error) => {
                    changing.lacking.extend((!role.serves()).then_some(spec.id));
                    changing.failed.get_or_insert(error);
                    prepared += 1;
                }
            }
        }
        changing.next == changing.chunks.len()
    }

    fn prepare_one(&mut self, spec: &ChunkSpec, role: Role, all: &mut AllMade) -> Result<bool, LaneError> {
        if let Some(index) = self.engine.index_of(spec.id) {
            return if has_copies(role) { self.lend_sum(index) } else { Ok(false) };
        }
        if all.get(&spec.id).is_some_and(|(of, _)| of == spec) {
            return Ok(false);
        }
        let mut made = self.storage.make(spec)?;
        for weights in made.weights() {
            self.queue.prepare(&weights)?;
        }
        // A replica may soon be the primary, with replicas of its own.
        if (!role.serves() || has_copies(role))
            && let Some(sum) = self.storage.lend_made(&mut made)?
        {
            self.queue.prepare(&sum)?;
        }
        all.insert(spec.id, (*spec, made));
        Ok(true)
    }

    /// Moves a chunk's accumulator to memory that can be sent. True if it was not there yet.
    fn lend_sum(&mut self, index: u32) -> Result<bool, LaneError> {
        let Some(sum) = self.storage.lend_sum(index)? else { return Ok(false) };
        self.queue.prepare(&sum)?;
        Ok(true)
    }

    /// Everything is prepared. Chunks without memory are left out.
    fn end_roles(&mut self, changing: &mut Changing) -> Result<(), LaneError> {
        let Changing { epoch, chunks, made, lacking, failed, .. } = changing;
        // The chunks of a tensor with norms are taken all together, or none of them is.
        let lacks = |spec: &ChunkSpec, id: &ChunkId| match spec.optimizer.needs_norms() {
            true => id.key == spec.id.key,
            false => *id == spec.id,
        };
        chunks.retain(|(spec, role)| role.serves() || !lacking.iter().any(|id| lacks(spec, id)));
        let given = self.give_roles(*epoch, chunks, made);
        failed.take().map_or(given, Err)
    }

    /// The engine takes roles; chunks that were not made before are.
    fn give_roles(
        &mut self,
        epoch: Epoch,
        chunks: &[(ChunkSpec, Role)],
        all: &mut AllMade,
    ) -> Result<(), LaneError> {
        let RoleChanges { added, mut lent, blank } = self.engine.roles(epoch, chunks, &mut self.commands);
        let made = self.make(&added, all);
        blank.into_iter().for_each(|index| self.saves.is_new(index));
        let begun = self.begin_from_checkpoint(chunks.iter().map(|(spec, _)| spec));
        self.give_up_save();
        self.note_stored();
        lent.retain(|index| self.engine.is_served(*index));
        let lent = lent.into_iter().try_for_each(|index| self.lend_sum(index).map(drop));
        // The engine's commands are executed, even if some chunks could not be made or read.
        self.execute();
        self.free_images();
        let Self { tables, engine, .. } = self;
        tables.keep(|home| engine.has_home(home));
        made.and(begun).and(lent)
    }

    /// Makes chunks of zeros, unless they are in `all` already. If there is no memory for a chunk, this server does not have it:
    /// requests for it are returned, and the server tries again with the next decision that names the chunk. The other chunks are made.
    pub(super) fn make(&mut self, added: &[(u32, ChunkSpec)], all: &mut AllMade) -> Result<(), LaneError> {
        let (mut made, mut refused) = (Ok(()), Vec::new());
        for (index, spec) in added {
            match self.make_one(*index, spec, all) {
                Ok(()) => self.saves.is_new(*index),
                Err(error) => {
                    refused.push(*index);
                    made = made.and(Err(error));
                }
            }
        }
        self.engine.unmade(&refused, &mut self.commands);
        made
    }

    fn make_one(&mut self, index: u32, spec: &ChunkSpec, all: &mut AllMade) -> Result<(), LaneError> {
        match all.remove(&spec.id).filter(|(of, _)| of == spec) {
            Some((_, made)) => self.storage.put_at(index, made)?,
            None => self.storage.add_at(index, spec)?,
        }
        for buffer in 0..2 {
            let weights = self.storage.weights(index, buffer)?;
            self.queue.prepare(&weights)?;
        }
        Ok(())
    }

    /// As [`DataLane::change_rule`], answered at once where it failed, and else when it is wherever the tensor is copied. Who asks
    /// waits no longer than it says.
    pub(super) fn take_change(&mut self, change: &RuleChange, reply: Reply) {
        match self.change_rule(change) {
            Ok(()) => {
                let chunks = self.engine.served_since(change.key).collect();
                self.changed.push(Changed { key: change.key, chunks, made: Instant::now(), reply });
            }
            // Nobody listens any more where the deadline has passed.
            Err(error) => reply.send(Err(error.into())),
        }
        self.answer_changes();
    }

    /// Answers changes of rules that copies have confirmed by now. Whoever serves a chunk that has moved meanwhile may have
    /// heard of the change, or not.
    pub(super) fn answer_changes(&mut self) {
        let Self { changed, engine, .. } = self;
        changed.retain(|change| {
            let key = change.key;
            let moved = engine.served_since(key).ne(change.chunks.iter().copied());
            let answer = change.answer(moved, engine.lacking_rules(key), change.made.elapsed());
            // Nobody listens any more where the asker's deadline has passed.
            answer.map(|answer| change.reply.send(answer)).is_none()
        });
    }

    /// Gives a tensor another rule from a round on. Nothing changes where a chunk is past it.
    pub fn change_rule(&mut self, change: &RuleChange) -> Result<(), LaneError> {
        let RuleChange { key, from_round: round, optimizer } = *change;
        let mut chunks: Vec<(u32, u64)> = self.engine.rounds_of(key).collect();
        if self.engine.has_common_rounds(key) {
            if chunks.iter().any(|(_, open)| round < *open) {
                return Err(LaneError::RuleTooLate { key, round });
            }
            chunks.iter_mut().for_each(|(_, from)| *from = round);
        }
        self.storage.change_rule(&chunks, optimizer)?;
        // Replicas receive the change between two updates, at its place.
        chunks.iter().for_each(|(chunk, _)| self.engine.rule_changed(*chunk));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig;
    use super::*;
    use fabric::oneshot;
    use fabric::sim::{SimFaults, SimNet, SimQueue};
    use proto_common::codec::Codec;
    use proto_common::element::Dtype;
    use proto_common::ids::Rank;
    use proto_common::message::NotTaken;
    use proto_common::mode::Mode;
    use proto_common::optimizer::Optimizer;

    const CHUNK_BYTES: u64 = 4096;
    const ALONE: Role = Role::Primary { backup: None, seeding: None };
    const COPY: Role = Role::Copy { of: Rank(1) };

    fn lane() -> DataLane<SimQueue> {
        rig::lane(&SimNet::new(1, SimFaults::default()), 0, CHUNK_BYTES)
    }

    fn spec(chunk: u32) -> ChunkSpec {
        ChunkSpec {
            id: ChunkId::new(1, chunk),
            bytes: CHUNK_BYTES,
            dynamic: false,
            dtype: Dtype::F32,
            codec: Codec::Plain,
            optimizer: Optimizer::assign(),
            mode: Mode::Sync,
            backup_workers: 0,
        }
    }

    fn all(chunks: std::ops::Range<u32>, role: Role) -> Vec<(ChunkSpec, Role)> {
        chunks.map(|chunk| (spec(chunk), role)).collect()
    }

    type Answer = oneshot::Receiver<Result<(), NotTaken>>;

    fn take(lane: &mut DataLane<SimQueue>, counter: u32, chunks: Vec<(ChunkSpec, Role)>) -> Answer {
        let (reply, answer) = oneshot::channel();
        lane.take_roles(Epoch { term: 1, counter }, chunks, reply);
        answer
    }

    fn made(lane: &DataLane<SimQueue>) -> Option<usize> {
        lane.changing.as_ref().map(|changing| changing.made.len())
    }

    fn is_here(lane: &DataLane<SimQueue>, chunk: u32) -> bool {
        lane.engine().index_of(spec(chunk).id).is_some()
    }

    #[test]
    fn memory_for_new_chunks_is_made_a_few_a_turn_and_then_all_is_taken() {
        let mut lane = lane();
        let answer = take(&mut lane, 1, all(0..3 * PER_TURN as u32 + 1, COPY));
        for turns in 1..=3 {
            assert_eq!(made(&lane), Some(turns * PER_TURN));
            assert!(!is_here(&lane, 0) && answer.try_recv().is_err());
            assert!(lane.step(turns as u64).unwrap(), "it goes on without waiting for anything");
        }
        assert_eq!((made(&lane), answer.try_recv()), (None, Ok(Ok(()))));
        assert!(is_here(&lane, 0) && is_here(&lane, 3 * PER_TURN as u32));
        assert!(!lane.step(9).unwrap(), "and sleeps then");
    }

    #[test]
    fn sums_are_moved_a_few_a_turn_before_anything_is_sent() {
        let mut lane = lane();
        let count = 2 * PER_TURN as u32;
        lane.assign(Epoch { term: 1, counter: 1 }, &(0..count).map(spec).collect::<Vec<_>>()).unwrap();
        let seeds = Role::Primary { backup: None, seeding: Some(Rank(1)) };
        let answer = take(&mut lane, 2, all(0..count, seeds));
        let lent = |lane: &DataLane<SimQueue>| {
            (0..count).filter(|chunk| lane.storage.sum_part(*chunk, 0, 4).is_ok()).count()
        };
        assert_eq!((lent(&lane), lane.engine().copies().0), (PER_TURN, 0));
        while answer.try_recv().is_err() {
            assert!(lane.step(1).unwrap());
        }
        assert_eq!((lent(&lane), lane.engine().copies().0), (count as usize, count as usize));
    }

    #[test]
    fn what_others_wait_for_is_not_put_off_and_what_was_made_is_used() {
        let mut lane = lane();
        lane.roles(Epoch { term: 1, counter: 1 }, &all(0..1, COPY)).unwrap();
        let many = 3 * PER_TURN as u32;
        let first = take(&mut lane, 2, all(0..many, COPY));
        // A server has failed meanwhile: this one serves what it had a copy of.
        let decided = [all(0..1, ALONE), all(1..many, COPY)].concat();
        let second = take(&mut lane, 3, decided.clone());
        assert_eq!(first.try_recv(), Ok(Ok(())));
        assert!(lane.engine().is_served(0) && !is_here(&lane, 1) && second.try_recv().is_err());
        assert_eq!(made(&lane), Some(2 * PER_TURN), "it goes on from what was made");
        let late = take(&mut lane, 2, all(0..many, COPY));
        assert_eq!((late.try_recv(), made(&lane)), (Ok(Ok(())), Some(2 * PER_TURN)));
        while second.try_recv().is_err() {
            assert!(lane.step(1).unwrap());
        }
        assert!(lane.engine().is_served(0) && is_here(&lane, many - 1));
    }

    #[test]
    fn a_copy_that_is_not_made_any_more_is_waited_for_no_more() {
        let mut lane = lane();
        let (count, epoch) = (2 * PER_TURN as u32, |counter| Epoch { term: 1, counter });
        let to = |server| Role::Primary { backup: None, seeding: Some(Rank(server)) };
        lane.roles(epoch(1), &all(0..1, to(1))).unwrap();
        assert!(
            lane.engine().changes_duties(&all(0..1, ALONE))
                && lane.engine().changes_duties(&all(0..1, to(2)))
        );
        assert!(!lane.engine().changes_duties(&all(0..1, to(1))));
        let answer = take(&mut lane, 2, [all(0..1, ALONE), all(1..count, COPY)].concat());
        assert!(answer.try_recv().is_err(), "copies are made for it still");
        assert_eq!(lane.engine().copies().0, 0);
    }

    #[test]
    fn chunks_that_are_declared_meanwhile_stay() {
        let mut lane = lane();
        let many = 3 * PER_TURN as u32;
        let answer = take(&mut lane, 1, all(0..many, COPY));
        assert!(answer.try_recv().is_err());
        lane.assign(Epoch { term: 1, counter: 2 }, &[spec(many)]).unwrap();
        assert_eq!(answer.try_recv(), Ok(Ok(())), "the decision before it is applied before it");
        assert!(is_here(&lane, 0) && is_here(&lane, many - 1) && is_here(&lane, many));
        assert!(!lane.step(1).unwrap(), "and nothing of it comes later");
        assert!(is_here(&lane, many));
    }

    #[test]
    fn copies_that_are_still_to_be_made_count_before_a_later_declaration_is_heard_of() {
        let mut lane = lane();
        let seeds = Role::Primary { backup: None, seeding: Some(Rank(1)) };
        let count = 2 * PER_TURN as u32;
        lane.assign(Epoch { term: 1, counter: 1 }, &(0..count).map(spec).collect::<Vec<_>>()).unwrap();
        take(&mut lane, 2, all(0..count, seeds));
        assert_eq!(lane.engine().copies().0, 0);
        lane.assign(Epoch { term: 1, counter: 3 }, &[]).unwrap();
        assert_eq!(lane.engine().copies().0, count as usize);
    }

    #[test]
    fn what_cannot_be_made_is_left_out_and_said() {
        let mut lane = lane();
        let odd = ChunkSpec { bytes: 3, ..spec(1) };
        let answer = take(&mut lane, 1, vec![(spec(0), COPY), (odd, COPY), (spec(2), COPY)]);
        assert!(answer.try_recv().unwrap().is_err_and(|why| why.reason.contains("whole elements")));
        assert!(is_here(&lane, 0) && !is_here(&lane, 1) && is_here(&lane, 2));
    }

    #[test]
    fn what_is_to_be_served_and_cannot_be_made_counts_as_not_there_until_it_can() {
        let odd = ChunkSpec { bytes: 3, ..spec(1) };
        for by_roles in [true, false] {
            let mut lane = lane();
            let mut decide = |counter, odd| {
                let (epoch, specs) = (Epoch { term: 1, counter }, [spec(0), odd, spec(2)]);
                let result = match by_roles {
                    true => lane.roles(epoch, &specs.map(|spec| (spec, ALONE))),
                    false => lane.assign(epoch, &specs),
                };
                for chunk in [0, 2] {
                    let index = lane.engine().index_of(spec(chunk).id).unwrap();
                    assert!(lane.engine().is_served(index) && lane.weights(index, 1).is_ok());
                }
                (result.is_ok(), is_here(&lane, 1))
            };
            assert_eq!(decide(1, odd), (false, false));
            assert_eq!(decide(2, odd), (false, false), "it is tried again");
            assert_eq!(decide(3, spec(1)), (true, true));
        }
    }
}
