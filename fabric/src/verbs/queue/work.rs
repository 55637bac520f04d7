//! What the device has completed: told apart by the ids of requests, told in the fabric's words, and what follows for
//! the channel. Nothing of a request or a channel that is gone is ever taken for another's.

use super::VerbsQueue;
use crate::verbs::ids::Id;
use crate::verbs::reach::MESSAGE_BYTES;
use crate::verbs::sys::{POLLED_MAX, Work, WorkKind, failure_name, is_flush};
use crate::verbs::watch::Word;
use crate::work::{ChannelId, Completion, CompletionKind, DisconnectReason};

/// Calls to the device per poll.
const POLLS_MAX: usize = 8;

impl VerbsQueue {
    /// Whose work it is. A receive is any channel's: there the queue pair tells, of which numbers come round again, hence
    /// [`VerbsQueue::drain`].
    pub(super) fn owner(&self, work: &Work) -> Option<ChannelId> {
        match Id::decode(work.id) {
            Id::Sent { channel, .. } => Some(channel),
            Id::Received { .. } => self.by_queue_pair.get(&work.queue_pair).copied(),
        }
    }

    /// Takes what the device has completed, in bounded pieces. Was there any?
    pub(super) fn take_work(&mut self) -> bool {
        let mut any = false;
        for _ in 0..POLLS_MAX {
            let mut worked = std::mem::take(&mut self.worked);
            if self.left.is_empty() {
                self.poll_into(&mut worked);
            } else {
                std::mem::swap(&mut worked, &mut self.left);
            }
            let count = worked.len();
            any |= count > 0;
            for (owner, work) in worked.drain(..) {
                self.take_one(owner, &work);
            }
            self.worked = worked;
            if count < POLLED_MAX {
                break;
            }
        }
        // What waited for room goes now: whoever is about to sleep does not look again.
        if std::mem::take(&mut self.has_more) {
            self.send_all();
        }
        any
    }

    /// Takes all that the device has completed until now, before a channel that it may be of ends.
    pub(super) fn take_all(&mut self) {
        self.drain();
        // A channel that ends meanwhile leaves what came last: each of them once at most.
        while !self.left.is_empty() {
            for (owner, work) in std::mem::take(&mut self.left) {
                self.take_one(owner, &work);
            }
        }
    }

    /// One call to the device.
    fn poll_into(&self, worked: &mut Vec<(Option<ChannelId>, Work)>) {
        let polled = self.shared.completions.poll(|work| worked.push((self.owner(&work), work)));
        if let Err(error) = polled {
            tracing::error!(%error, "a completion queue cannot be polled");
        }
    }

    /// Takes all that the device has completed until now, to be handled later, and notes whose it is: before the number of
    /// a queue pair goes, and before one is known that may have been another's.
    pub(super) fn drain(&mut self) {
        let mut left = std::mem::take(&mut self.left);
        // Not what others go on to bring.
        for _ in 0..=self.shared.completions.entries() / POLLED_MAX {
            let before = left.len();
            self.poll_into(&mut left);
            if left.len() < before + POLLED_MAX {
                break;
            }
        }
        self.left = left;
    }

    pub(super) fn take_one(&mut self, owner: Option<ChannelId>, work: &Work) {
        let at = owner.and_then(|id| self.at(id).ok());
        match Id::decode(work.id) {
            Id::Received { place, turn } if self.inbound.take(place, turn) => {
                self.received(work, place, at);
                if let Err(error) = self.inbound.post(place) {
                    tracing::error!(%error, "a receive is lost");
                }
            }
            Id::Received { .. } => self.is_stale(work),
            Id::Sent { number, .. } => self.sent(work, number, at),
        }
    }

    fn sent(&mut self, work: &Work, number: u32, at: Option<usize>) {
        let its = |at: &usize| self.channels[*at].queue_pair.number == work.queue_pair;
        let Some(at) = at.filter(its) else { return self.is_stale(work) };
        let Some(number) = self.channels[at].number_of(number) else { return self.is_stale(work) };
        match work.failure {
            None => self.has_more |= self.channels[at].over(number, &mut self.ready),
            Some(status) => {
                let reason = self.watch.explain(reason(status), &self.channels[at].port_began);
                self.fail(at, reason);
            }
        }
    }

    /// What is under way when a channel ends completes after it: no fault, and of no use to anybody.
    fn is_stale(&mut self, work: &Work) {
        self.stale += 1;
        tracing::trace!(id = work.id, queue_pair = work.queue_pair, "a completion of what is gone");
    }

    fn received(&mut self, work: &Work, place: u32, at: Option<usize>) {
        let Some(at) = at else { return self.is_stale(work) };
        if let Some(status) = work.failure {
            // Only what the peer sent can make a receive fail.
            let name = failure_name(status);
            let what = format!("what it sent was refused: {name} ({status})");
            return self.fail(at, DisconnectReason::PeerMisbehaved(what));
        }
        let told = match work.kind {
            WorkKind::Notice { immediate } => {
                let channel = self.channels[at].id;
                self.ready.push(Completion { channel, kind: CompletionKind::Received { immediate } });
                Ok(())
            }
            WorkKind::Message { bytes } => self.hear(at, place, bytes),
            WorkKind::Sent => Ok(()),
        };
        if let Err(what) = told {
            self.fail(at, DisconnectReason::PeerMisbehaved(what.into()));
        }
    }

    /// A peer tells the key of what it exposes.
    fn hear(&mut self, at: usize, place: u32, bytes: u32) -> Result<(), &'static str> {
        match self.inbound.message(place) {
            Some(message) if bytes as usize == MESSAGE_BYTES => self.channels[at].reach.hear(&message),
            _ => Err("a message of the wrong length"),
        }
    }

    /// Does what the device's events ask for.
    pub(super) fn heed(&mut self) {
        for word in self.alarm.take() {
            match word {
                Word::Channel { queue_pair, reason } => {
                    let id = self.by_queue_pair.get(&queue_pair).copied();
                    // What it sent before comes first.
                    self.take_all();
                    if let Some(at) = id.and_then(|id| self.at(id).ok()) {
                        self.fail(at, reason);
                    }
                }
                Word::All { reason } => {
                    self.take_all();
                    while let Some(last) = self.channels.len().checked_sub(1) {
                        self.fail(last, reason.clone());
                    }
                }
            }
        }
    }

    /// Ends a channel: its queue pair reaches no memory once this returns.
    pub(super) fn fail(&mut self, at: usize, reason: DisconnectReason) {
        self.channels[at].take_flags(&mut self.ready);
        let channel = self.remove(at);
        self.ready.push(Completion { channel, kind: CompletionKind::Disconnected(reason) });
    }

    pub(super) fn remove(&mut self, at: usize) -> ChannelId {
        let mut channel = self.channels.remove(at);
        let id = channel.id;
        self.by_queue_pair.remove(&channel.queue_pair.number);
        let mut is_over = channel.end();
        // What it received is taken from the device before the queue pair goes: devices forget it with the queue pair, and
        // its receives would never be posted again. Others keep what came until then: it goes before the number does.
        self.drain();
        is_over |= channel.destroy();
        drop(channel);
        self.drain();
        if !is_over {
            self.refused.push(id);
        }
        id
    }
}

fn reason(status: u32) -> DisconnectReason {
    if is_flush(status) {
        return DisconnectReason::PeerClosed;
    }
    DisconnectReason::Failed(format!("the RDMA device reports: {} ({status})", failure_name(status)))
}
