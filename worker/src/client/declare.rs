//! Declarations: tensors that are new, and new rules of those that are not. Must not decide where a tensor lies: the map says it.

use super::state::Client;
use super::{Tensor, together};
use crate::error::{ClientError, OpError};
use fabric::lock;
use proto_common::ids::Key;
use proto_common::limits::IN_FLIGHT_MAX;
use proto_common::message::{Coming, DeclareError};
use proto_common::optimizer::Optimizer;
use proto_common::shard_map::{MapUpdate, ShardMap};
use proto_common::table::{HOMES, home_of};
use proto_common::tensor::{RuleChange, TensorSpec};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

/// An error of a declaration, with the names of its tensors: they do not travel.
fn named(error: ClientError, specs: &[TensorSpec]) -> ClientError {
    match error {
        ClientError::Declare(error) => ClientError::Declare(error.with_names(specs)),
        other => other,
    }
}

impl Client {
    /// Declares tensors. All workers must declare the same tensors, in any number of calls. A repeated declaration has
    /// no effect; another shape or rule for a known key is refused. A declared tensor is all zeros until it is
    /// initialised or pushed to. Returns the tensors in the given order. Waits for the servers at most
    /// `deadlines.operation_ms`; the error names those that have not allocated, and the same declaration then waits
    /// again.
    ///
    /// All chunks of a tensor with LAMB are in flight at once. One lane of one server may have at most [`IN_FLIGHT_MAX`] of
    /// them; otherwise the last tensor is refused, and this worker cannot use it.
    pub fn declare(&self, specs: &[TensorSpec]) -> Result<Vec<Tensor>, ClientError> {
        if let Some(spec) = specs.iter().find(|spec| home_of(spec.key).is_some()) {
            let what = format!(
                "the 2^32 keys from {HOMES} on are reserved for the rows of tables. Use another key."
            );
            return Err(DeclareError::from(spec.unsupported(what)).into());
        }
        self.declare_any(specs)
    }

    /// As [`Client::declare`], including homes of rows.
    pub(super) fn declare_any(&self, specs: &[TensorSpec]) -> Result<Vec<Tensor>, ClientError> {
        for spec in specs {
            spec.clone().settled(&self.0.shape).validate_in(&self.0.shape).map_err(DeclareError::from)?;
        }
        let within = Duration::from_millis(self.0.settings.deadlines.operation_ms);
        // One at a time, so that updates are applied in the order of their epochs.
        let _declaring = lock(&self.0.declaring);
        let counts = self.counts(within)?;
        let update = self.requests()?.declare(specs.to_vec(), within).map_err(|error| named(error, specs))?;
        let new = self.0.members.with_map(|map| self.add(&update, map, &counts));
        self.place(&new.ok_or_else(|| OpError::Closed("it was closed by this process".into()))??, false);
        specs.iter().map(|spec| self.tensor(spec.key.0)).collect()
    }

    /// If this worker joined between rounds: the round of each tensor from which it counts. No contribution may be
    /// sent before this is known.
    fn counts(&self, within: Duration) -> Result<BTreeMap<Key, u64>, ClientError> {
        if self.0.coming != Coming::Between {
            return Ok(BTreeMap::new());
        }
        self.0.members.counts(within).ok_or_else(|| {
            let waited_ms = within.as_millis() as u64;
            let reason = "the scheduler did not say from which rounds on this worker counts; see its log for a server that does not answer".into();
            self.dead().map_or(ClientError::Assemble { waited_ms, reason }, Into::into)
        })
    }

    /// The tensors that are new, cut as the map has them. It may change from then on: lanes know.
    fn add(
        &self,
        update: &MapUpdate,
        map: &ShardMap,
        counts: &BTreeMap<Key, u64>,
    ) -> Result<Vec<Tensor>, ClientError> {
        let mut tensors = self.0.tensors.write().unwrap_or_else(PoisonError::into_inner);
        let used = tensors.values().map(Tensor::spec);
        let unused = update.tensors.iter().filter(|spec| !tensors.contains_key(&spec.key));
        together::fit(used, unused, map, IN_FLIGHT_MAX).map_err(DeclareError::from)?;
        let mut new = Vec::new();
        for spec in &update.tensors {
            tensors.entry(spec.key).or_insert_with(|| {
                let tensor = Tensor::new((self.0.incarnation, self.0.rank), spec, map, self.0.lanes.len());
                if let Some(from) = counts.get(&spec.key) {
                    tensor.numbers().go_on_after(from.saturating_sub(1), false);
                }
                new.push(tensor.clone());
                tensor
            });
        }
        Ok(new)
    }

    /// Changes a tensor's update rule, from this worker's next contribution on. All chunks and all workers have the
    /// new rule from that round on; the round is returned. One worker's call is enough. State that both rules use is
    /// kept (see [`RuleChange`]). This worker's other operations on the tensor wait meanwhile. After an error that is
    /// not the caller's it is unknown whether servers have the change: call again.
    ///
    /// Outside mode sync, and with backup workers, each chunk has the new rule from its next contribution or round on.
    /// Contributions that any worker sends after the call has returned are under the new rule, and the returned number
    /// has no meaning.
    pub fn change_rule(&self, tensor: &Tensor, optimizer: Optimizer) -> Result<u64, ClientError> {
        let key = tensor.key();
        if !tensor.is_of(self.0.incarnation) {
            return Err(tensor.foreign("tensor", "`declare` or `tensor`"));
        }
        let within = Duration::from_millis(self.0.settings.deadlines.operation_ms);
        let requests = self.requests()?;
        // Nobody finishes a round that this worker has not contributed to, and it does not before this is answered.
        let numbers = tensor.numbers();
        let change = RuleChange { key, from_round: numbers.rounds + 1, optimizer };
        tensor.spec().validate_change(&change, self.0.shape.chunk_bytes).map_err(DeclareError::from)?;
        let specs = std::slice::from_ref(tensor.spec());
        requests.change_rule(change, within).map_err(|error| named(error, specs))?;
        Ok(change.from_round)
    }

    /// A declared tensor, by key.
    pub fn tensor(&self, key: u64) -> Result<Tensor, ClientError> {
        let tensors = self.0.tensors.read().unwrap_or_else(PoisonError::into_inner);
        tensors.get(&Key(key)).cloned().ok_or(ClientError::Undeclared(Key(key)))
    }

    /// Declared tensors, by a list of keys, which must be sorted and without duplicates.
    pub fn tensors(&self, keys: &[u64]) -> Result<Vec<Tensor>, ClientError> {
        if let Some(at) = keys.windows(2).position(|pair| pair[1] <= pair[0]) {
            return Err(ClientError::Unsorted { position: at + 1, key: Key(keys[at + 1]) });
        }
        keys.iter().map(|key| self.tensor(*key)).collect()
    }
}
