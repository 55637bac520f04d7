//! Two simulated nodes with one channel between them, and what the tests do with it again and again.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "test code")]

use fabric::sim::{NodeId, SimFaults, SimNet, SimQueue};
use fabric::{
    Access, ChannelId, Completion, CompletionKind, CompletionQueue, DisconnectReason, PeerWritable,
    PostError, RemoteKey, RemoteSpan, Write,
};

pub(crate) const REGION_BYTES: usize = 64 << 10;

pub(crate) struct Side {
    pub(crate) node: NodeId,
    pub(crate) queue: SimQueue,
    pub(crate) channel: ChannelId,
    pub(crate) region: PeerWritable,
    /// Under which the other side addresses `region`.
    pub(crate) key: RemoteKey,
    pub(crate) got: Vec<CompletionKind>,
    completions: Vec<Completion>,
}

impl Side {
    fn new(net: &SimNet, name: &str) -> Self {
        let node = net.node(name);
        let queue = net.create_cq(node);
        let region = PeerWritable::allocate(REGION_BYTES, name).unwrap();
        let key = RemoteKey(0);
        Self { node, queue, channel: ChannelId(0), region, key, got: Vec::new(), completions: Vec::new() }
    }

    /// Polls until nothing is ready.
    pub(crate) fn poll(&mut self) -> usize {
        let before = self.got.len();
        loop {
            self.queue.poll(&mut self.completions);
            if self.completions.is_empty() {
                return self.got.len() - before;
            }
            for completion in self.completions.drain(..) {
                assert_eq!(completion.channel, self.channel);
                self.got.push(completion.kind);
            }
        }
    }

    pub(crate) fn immediates(&self) -> Vec<u32> {
        let immediate = |kind: &CompletionKind| match kind {
            CompletionKind::Received { immediate } => Some(*immediate),
            _ => None,
        };
        self.got.iter().filter_map(immediate).collect()
    }

    pub(crate) fn done(&self) -> Vec<u64> {
        let id = |kind: &CompletionKind| match kind {
            CompletionKind::WriteDone { id } | CompletionKind::ReadDone { id } => Some(*id),
            _ => None,
        };
        self.got.iter().filter_map(id).collect()
    }

    /// Why the channel ended; nothing may have come after that.
    pub(crate) fn end(&self) -> Option<&DisconnectReason> {
        let place = self.got.iter().position(|kind| matches!(kind, CompletionKind::Disconnected(_)))?;
        assert_eq!(place + 1, self.got.len(), "something came after the end");
        match &self.got[place] {
            CompletionKind::Disconnected(reason) => Some(reason),
            _ => None,
        }
    }

    pub(crate) fn bytes(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.region.read(offset, &mut out).unwrap();
        out
    }

    pub(crate) fn fill(&self, offset: u64, bytes: usize, with: u8) {
        self.region.write(offset, &vec![with; bytes]).unwrap();
    }

    /// Posts a write of `bytes` at `offset` to the same place at the peer, and starts it.
    pub(crate) fn write(
        &mut self,
        key: RemoteKey,
        offset: u64,
        bytes: u64,
        number: u32,
    ) -> Result<(), PostError> {
        let gather = [self.region.span(offset, bytes).unwrap()];
        let remote = RemoteSpan { key, offset };
        let write =
            Write { id: u64::from(number), gather: &gather, remote, immediate: Some(number), signaled: true };
        self.queue.post_write(self.channel, &write)?;
        self.queue.flush();
        Ok(())
    }
}

pub(crate) struct Rig {
    pub(crate) net: SimNet,
    pub(crate) a: Side,
    pub(crate) b: Side,
}

impl Rig {
    pub(crate) fn new(seed: u64, faults: SimFaults) -> Self {
        let net = SimNet::new(seed, faults);
        let (mut a, mut b) = (Side::new(&net, "a"), Side::new(&net, "b"));
        (a.channel, b.channel) = net.connect(&a.queue, &b.queue);
        a.key = a.queue.expose(a.channel, &a.region).unwrap();
        b.key = b.queue.expose(b.channel, &b.region).unwrap();
        for side in [&mut a, &mut b] {
            side.queue.lend(side.channel, &side.region.all(), Access::ReadWrite, 0).unwrap();
        }
        Self { net, a, b }
    }

    /// Posts from a to b, letting time move while there is no room.
    pub(crate) fn send(&mut self, offset: u64, bytes: u64, number: u32) {
        while let Err(error) = self.a.write(self.b.key, offset, bytes, number) {
            assert_eq!(error, PostError::Full);
            self.step();
        }
    }

    pub(crate) fn step(&mut self) -> bool {
        let moved = self.net.advance();
        self.a.poll();
        self.b.poll();
        moved
    }

    /// Until nothing is to happen any more.
    pub(crate) fn run(&mut self) {
        while self.step() {}
    }
}

pub(crate) fn failed(what: &str) -> DisconnectReason {
    DisconnectReason::Failed(what.into())
}
