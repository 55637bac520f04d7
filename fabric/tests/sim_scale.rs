//! The simulation is quick enough for a thousand workers and for a million events in a test.

#![allow(clippy::unwrap_used, reason = "test code")]

use fabric::sim::{SimFaults, SimNet};
use fabric::{Access, Completion, CompletionKind, CompletionQueue, PeerWritable, RemoteSpan, Write};

const WORKERS: usize = 1_000;
const ROUNDS: u32 = 250;

/// A thousand workers write to one server and wait for its answer, 250 times: over a million events.
#[test]
fn a_thousand_workers_ping_one_server() {
    let net = SimNet::new(1, SimFaults { loss_per_10k: 500, ..SimFaults::rough() });
    let server = net.node("server");
    let mut inbox = net.create_cq(server);
    let slots = PeerWritable::allocate(WORKERS * 64, "slots").unwrap();
    let source = PeerWritable::allocate(4096, "source").unwrap();
    let mut lanes = Vec::new();
    for number in 0..WORKERS {
        let mut lane = net.create_cq(net.node(&format!("worker-{number}")));
        let (at_server, at_worker) = net.connect(&inbox, &lane);
        let key = inbox.expose(at_server, &slots).unwrap();
        inbox.lend(at_server, &slots.all(), Access::ReadWrite, 0).unwrap();
        assert!(lane.expose(at_worker, &source).is_ok());
        post(&mut lane, at_worker, &source, RemoteSpan { key, offset: number as u64 * 64 }, 0);
        lanes.push((lane, at_worker, key));
    }
    assert_eq!(
        net.stats(server).registered_bytes,
        fabric::Region::len(&slots) as u64,
        "one region, whatever the workers"
    );
    let base = lanes[0].0.id().0;
    let (mut ready, mut completions, mut finished): (Vec<_>, Vec<Completion>, usize) = Default::default();
    while finished < WORKERS {
        assert!(net.advance(), "stuck with {finished} finished");
        ready.clear();
        net.ready_queues(&mut ready);
        for queue in &ready {
            if *queue == inbox.id() {
                inbox.poll(&mut completions);
                for Completion { channel, kind } in completions.drain(..) {
                    if let CompletionKind::Received { immediate } = kind {
                        let remote = RemoteSpan { key: fabric::RemoteKey(0), offset: 0 };
                        let answer =
                            Write { id: 0, gather: &[], remote, immediate: Some(immediate), signaled: false };
                        while inbox.post_write(channel, &answer).is_err() {}
                        inbox.flush();
                    }
                }
                continue;
            }
            let number = (queue.0 - base) as usize;
            let (lane, channel, key) = &mut lanes[number];
            lane.poll(&mut completions);
            for completion in completions.drain(..) {
                match completion.kind {
                    CompletionKind::Received { immediate } if immediate + 1 == ROUNDS => finished += 1,
                    CompletionKind::Received { immediate } => {
                        let remote = RemoteSpan { key: *key, offset: number as u64 * 64 };
                        post(lane, *channel, &source, remote, immediate + 1);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    assert_eq!(net.stats(server).received_messages, (WORKERS as u64) * u64::from(ROUNDS));
    assert!(net.trace_events() > 1_000_000, "{} events", net.trace_events());
}

fn post(
    lane: &mut impl CompletionQueue,
    channel: fabric::ChannelId,
    source: &PeerWritable,
    remote: RemoteSpan,
    round: u32,
) {
    let gather = [source.span(0, 64).unwrap()];
    let write = Write { id: 0, gather: &gather, remote, immediate: Some(round), signaled: false };
    while lane.post_write(channel, &write).is_err() {}
    lane.flush();
}
