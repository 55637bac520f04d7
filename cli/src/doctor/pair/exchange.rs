//! What is done over one channel: a pattern each way with a notice, then round trips, then throughput. The visitor
//! leads, the listener answers notices. Blocks its thread, until the deadline at most; knows nothing of control
//! connections.

use fabric::{
    Access, ChannelId, ChannelSetup, Completion, CompletionKind, CompletionQueue, DisconnectReason,
    LaneQueue, PeerWritable, PostError, RemoteKey, RemoteSpan, Write,
};
use std::time::{Duration, Instant};

/// Bytes of each side's memory: a throughput write fills it.
const REGION_BYTES: u64 = 1 << 20;
/// Bytes of a pattern, and where it begins: no round numbers.
const PATTERN_BYTES: u64 = 100_003;
const PATTERN_OFFSET: u64 = 4_097;
/// Bytes of a round trip's message, each way.
const TRIP_BYTES: u64 = 8;
const TRIPS_MAX: usize = 5_000;
/// How long each is measured.
const TRIPS_FOR: Duration = Duration::from_millis(200);
const RATE_FOR: Duration = Duration::from_millis(300);
/// Throughput writes under way at once.
const UNDER_WAY_MAX: usize = 8;

/// Notices that may wait to be looked at; one is due at a time.
const NOTICES_MAX: usize = 1024;

/// Notices. The first two end in one of the next two; the others in PONG.
const CHECK: u32 = 1;
const RIGHT: u32 = 2;
const WRONG: u32 = 3;
const PING: u32 = 4;
const LAST: u32 = 5;
const PONG: u32 = 6;
const END: u32 = 7;

/// Whose pattern it is: each side writes its own, so that nobody's is taken for the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Visitor,
    Listener,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Visitor => Self::Listener,
            Self::Listener => Self::Visitor,
        }
    }

    fn pattern(self) -> Vec<u8> {
        let seed: u8 = if self == Self::Visitor { 0x5A } else { 0xC3 };
        (0..PATTERN_BYTES).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed).collect()
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    pub(super) round_trip_us: f64,
    pub(super) megabytes_per_s: f64,
}

/// How long things may take, and how to wait for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) deadline: Instant,
    /// As daemons do before they sleep.
    pub(super) spin: Duration,
}

/// One end of a channel.
#[derive(Debug)]
pub(super) struct End {
    queue: LaneQueue,
    channel: ChannelId,
    side: Side,
    patience: Patience,
    /// What we send from.
    ours: PeerWritable,
    /// What the peer writes to.
    lent: PeerWritable,
    key: RemoteKey,
    inbox: Vec<Completion>,
    under_way: usize,
}

impl End {
    /// Takes a connected channel, and lends the peer memory.
    pub(super) fn new(
        mut queue: LaneQueue,
        setup: ChannelSetup,
        side: Side,
        patience: Patience,
    ) -> Result<Self, String> {
        let said = |error: fabric::FabricError| error.to_string();
        let channel = queue.attach(setup).map_err(said)?;
        let ours = PeerWritable::allocate(REGION_BYTES as usize, "gradwire-doctor-ours").map_err(said)?;
        let lent = PeerWritable::allocate(REGION_BYTES as usize, "gradwire-doctor-lent").map_err(said)?;
        for region in [&ours, &lent] {
            queue.prepare(&region.all()).map_err(said)?;
        }
        let key = queue.expose(channel, &lent).map_err(|error| refused(&mut queue, error))?;
        queue.lend(channel, &lent.all(), Access::ReadWrite, 0).map_err(|error| refused(&mut queue, error))?;
        queue.flush();
        Ok(Self { queue, channel, side, patience, ours, lent, key, inbox: Vec::new(), under_way: 0 })
    }

    /// The key of what is lent.
    pub(super) fn key(&self) -> u64 {
        self.key.0
    }

    /// The visitor's part; `theirs`: the key of what the listener lends.
    pub(super) fn visit(&mut self, theirs: u64, patience: Patience) -> Result<Figures, String> {
        self.patience = patience;
        let to = RemoteKey(theirs);
        self.write_pattern(to, CHECK)?;
        match self.next_notice()? {
            RIGHT => {}
            WRONG => return Err("the bytes that arrived there are not those that were sent".into()),
            other => return Err(format!("the peer answered out of order ({other})")),
        }
        if !self.has_pattern()? {
            return Err("the bytes that arrived here are not those that were sent".into());
        }
        let round_trip_us = self.round_trips(to)?;
        let megabytes_per_s = self.rate(to)?;
        self.write(to, 0, 0, Some(END), false)?;
        Ok(Figures { round_trip_us, megabytes_per_s })
    }

    /// The listener's part: answers until the visitor says that it is done.
    pub(super) fn answer(&mut self, theirs: u64, patience: Patience) -> Result<(), String> {
        self.patience = patience;
        let to = RemoteKey(theirs);
        loop {
            match self.next_notice()? {
                CHECK => {
                    let verdict = if self.has_pattern()? { RIGHT } else { WRONG };
                    self.write_pattern(to, verdict)?;
                }
                PING | LAST => self.write(to, 0, TRIP_BYTES, Some(PONG), false)?,
                END => return Ok(()),
                other => return Err(format!("the peer sent a notice of no meaning ({other})")),
            }
        }
    }

    fn write_pattern(&mut self, to: RemoteKey, notice: u32) -> Result<(), String> {
        let pattern = self.side.pattern();
        self.ours.write(PATTERN_OFFSET, &pattern).map_err(|error| error.to_string())?;
        self.write(to, PATTERN_OFFSET, PATTERN_BYTES, Some(notice), false)
    }

    /// Does the peer's pattern lie in what was lent to it?
    fn has_pattern(&self) -> Result<bool, String> {
        let mut got = vec![0; PATTERN_BYTES as usize];
        self.lent.read(PATTERN_OFFSET, &mut got).map_err(|error| error.to_string())?;
        Ok(got == self.side.other().pattern())
    }

    /// Median of the round trips, in microseconds.
    fn round_trips(&mut self, to: RemoteKey) -> Result<f64, String> {
        let started = Instant::now();
        let mut trips = Vec::with_capacity(TRIPS_MAX);
        while trips.len() < TRIPS_MAX && started.elapsed() < TRIPS_FOR {
            let sent = Instant::now();
            self.write(to, 0, TRIP_BYTES, Some(PING), false)?;
            self.expect_pong()?;
            trips.push(sent.elapsed());
        }
        trips.sort_unstable();
        let median = trips.get(trips.len() / 2).copied().unwrap_or_default();
        Ok(median.as_secs_f64() * 1e6)
    }

    /// Writes of the whole region for a while, until the peer has all of them.
    fn rate(&mut self, to: RemoteKey) -> Result<f64, String> {
        let started = Instant::now();
        let mut written = 0;
        while started.elapsed() < RATE_FOR {
            while self.under_way >= UNDER_WAY_MAX {
                self.wait_for_completions()?;
            }
            self.write(to, 0, REGION_BYTES, None, true)?;
            written += REGION_BYTES;
        }
        self.write(to, 0, TRIP_BYTES, Some(LAST), false)?;
        self.expect_pong()?;
        Ok(written as f64 / started.elapsed().as_secs_f64() / 1e6)
    }

    fn expect_pong(&mut self) -> Result<(), String> {
        match self.next_notice()? {
            PONG => Ok(()),
            other => Err(format!("the peer answered out of order ({other})")),
        }
    }

    /// Posts as soon as there is room and the peer's key has come.
    fn write(
        &mut self,
        to: RemoteKey,
        offset: u64,
        bytes: u64,
        immediate: Option<u32>,
        signaled: bool,
    ) -> Result<(), String> {
        let span = self.ours.span(offset, bytes).map_err(|error| error.to_string())?;
        let gather = [span];
        let remote = RemoteSpan { key: to, offset };
        let write = Write { id: 0, gather: &gather, remote, immediate, signaled };
        loop {
            match self.queue.post_write(self.channel, &write) {
                Ok(()) => break,
                Err(PostError::Full | PostError::RemoteAccess) if Instant::now() < self.patience.deadline => {
                    self.poll()?;
                }
                Err(error) => return Err(refused(&mut self.queue, error)),
            }
        }
        self.under_way += usize::from(signaled);
        self.queue.flush();
        Ok(())
    }

    fn next_notice(&mut self) -> Result<u32, String> {
        loop {
            let notice = self.inbox.iter().position(|c| matches!(c.kind, CompletionKind::Received { .. }));
            if let Some(at) = notice
                && let CompletionKind::Received { immediate } = self.inbox.remove(at).kind
            {
                return Ok(immediate);
            }
            self.wait_for_completions()?;
        }
    }

    /// Spins a little, then sleeps, as daemons do.
    fn wait_for_completions(&mut self) -> Result<(), String> {
        let started = Instant::now();
        loop {
            if self.poll()? {
                return Ok(());
            }
            let left = self.patience.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waited = started.elapsed().as_millis();
                return Err(format!("the channel is connected, and nothing came over it for {waited} ms"));
            }
            if started.elapsed() >= self.patience.spin {
                self.queue.wait(left);
            }
        }
    }

    /// Did anything come? The end of the channel is an error.
    fn poll(&mut self) -> Result<bool, String> {
        let known = self.inbox.len();
        self.queue.poll(&mut self.inbox);
        let mut under_way = self.under_way;
        for completion in &self.inbox[known..] {
            match &completion.kind {
                CompletionKind::WriteDone { .. } => under_way = under_way.saturating_sub(1),
                CompletionKind::ReadDone { .. } | CompletionKind::Received { .. } => {}
                CompletionKind::Disconnected(reason) => return Err(ended(reason)),
            }
        }
        let came = self.inbox.len() > known;
        self.under_way = under_way;
        self.inbox.retain(|completion| matches!(completion.kind, CompletionKind::Received { .. }));
        if self.inbox.len() > NOTICES_MAX {
            return Err("the peer sends notices without end".into());
        }
        Ok(came)
    }
}

fn refused(queue: &mut LaneQueue, error: PostError) -> String {
    match error {
        PostError::RemoteAccess => "the peer's memory could not be addressed: its key never came".into(),
        _ => queue.explain(error),
    }
}

fn ended(reason: &DisconnectReason) -> String {
    format!("the channel broke: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::{Device, ShmDevice};

    const SOON: Duration = Duration::from_secs(30);

    fn patience(within: Duration) -> Patience {
        Patience { deadline: Instant::now() + within, spin: Duration::from_micros(50) }
    }

    fn pair() -> (End, End) {
        let (here, there) = (LaneQueue::new(64).unwrap(), LaneQueue::new(64).unwrap());
        let (offer, pending) = ShmDevice::new().offer(&[there.handle()]).unwrap();
        let handle = here.handle();
        let deadline = Instant::now() + SOON;
        let (visiting, answering) = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| ShmDevice::new().connect(&offer, 0, &handle, deadline).unwrap());
            (pending.accept(deadline).unwrap().remove(0), connecting.join().unwrap())
        });
        let visitor = End::new(here, answering, Side::Visitor, patience(SOON)).unwrap();
        (visitor, End::new(there, visiting, Side::Listener, patience(SOON)).unwrap())
    }

    #[test]
    fn both_see_the_other_s_bytes_and_figures_come_out() {
        let (mut visitor, mut listener) = pair();
        let (to_visitor, to_listener) = (visitor.key(), listener.key());
        let answering = std::thread::spawn(move || listener.answer(to_visitor, patience(SOON)));
        let figures = visitor.visit(to_listener, patience(SOON)).unwrap();
        assert_eq!(answering.join().unwrap(), Ok(()));
        assert!(figures.round_trip_us > 0.0 && figures.megabytes_per_s > 1.0, "{figures:?}");
    }

    #[test]
    fn wrong_bytes_are_noticed_on_either_side() {
        for (liar, said) in [(Side::Visitor, "arrived there"), (Side::Listener, "arrived here")] {
            let (mut visitor, mut listener) = pair();
            // Whoever writes the other's pattern writes the wrong one.
            let wrong = if liar == Side::Visitor { &mut visitor } else { &mut listener };
            wrong.side = liar.other();
            let (to_visitor, to_listener) = (visitor.key(), listener.key());
            let answering = std::thread::spawn(move || {
                // Who lies says that all is right.
                let result = match liar {
                    Side::Listener => listener.write_pattern(RemoteKey(to_visitor), RIGHT),
                    Side::Visitor => listener.answer(to_visitor, patience(SOON)),
                };
                (result, listener)
            });
            let error = visitor.visit(to_listener, patience(SOON)).unwrap_err();
            assert!(error.contains(said), "{error}");
            drop(visitor);
            let (_, _listener) = answering.join().unwrap();
        }
    }

    #[test]
    fn a_silent_peer_ends_in_a_deadline_and_nonsense_at_once() {
        let (mut visitor, mut listener) = pair();
        let (to_visitor, to_listener) = (visitor.key(), listener.key());
        let error = visitor.visit(to_listener, patience(Duration::from_millis(50))).unwrap_err();
        assert!(error.contains("nothing came over it"), "{error}");
        visitor.patience = patience(SOON);
        visitor.write(RemoteKey(to_listener), 0, 0, Some(99), false).unwrap();
        listener.patience = patience(SOON);
        // The first notice is the pattern of the visit above.
        let error = listener.answer(to_visitor, patience(SOON)).unwrap_err();
        assert!(error.contains("no meaning (99)"), "{error}");
        drop(listener);
        let error = visitor.next_notice().and_then(|_| visitor.next_notice()).unwrap_err();
        assert!(error.contains("peer closed it or failed"), "{error}");
    }
}
