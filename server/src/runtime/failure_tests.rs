//! A command that fails ends its lane, whoever had it executed: rounds would go on without the commands behind it.

use super::error::LaneError;
use super::lane::DataLane;
use super::link::WorkerInbox;
use super::rig;
use crate::engine::Command;
use fabric::CompletionQueue;
use fabric::sim::{SimFaults, SimNet, SimQueue};
use proto_common::ids::{Epoch, Incarnation, Rank};
use proto_common::limits::RESULT_SLOT_BYTES;
use proto_common::message::InboxGrant;

const EPOCH: Epoch = Epoch { term: 1, counter: 1 };
const LIFE: Incarnation = Incarnation(2);

/// What has a lane execute commands beside its turn.
type Cause = fn(&mut DataLane<SimQueue>, &SimNet, &SimQueue);

fn attach_worker(lane: &mut DataLane<SimQueue>, net: &SimNet, peer: &SimQueue) {
    let (channel, _) = net.connect(&lane.queue, peer);
    let inbox = WorkerInbox { region: 1, offset: 0, slot_bytes: RESULT_SLOT_BYTES, grants: Vec::new() };
    let _ = lane.adopt(Rank(0), LIFE, channel, inbox);
}

fn attach_stream(lane: &mut DataLane<SimQueue>, net: &SimNet, peer: &SimQueue) {
    let (channel, _) = net.connect(&lane.queue, peer);
    let inbox = InboxGrant { region: 1, offset: 0, slot_bytes: 1 << 16, grants: Vec::new() };
    let _ = lane.adopt_stream((Rank(1), 1), LIFE, channel, inbox);
}

const CAUSES: [(&str, Cause); 8] = [
    ("attach a worker", attach_worker),
    ("attach a stream", attach_stream),
    ("assign", |lane, _, _| drop(lane.assign(EPOCH, &[]))),
    ("roles", |lane, _, _| drop(lane.roles(EPOCH, &[]))),
    ("workers", |lane, _, _| lane.workers(EPOCH, &[], &[])),
    ("answer a call", |lane, _, _| {
        lane.note_answer(1, None);
        lane.execute();
    }),
    ("end a server", |lane, _, _| lane.end_server(Rank(1))),
    ("step", |_, _, _| {}),
];

#[test]
fn a_command_that_fails_ends_the_lane_whoever_had_it_executed() {
    for (what, cause) in CAUSES {
        let net = SimNet::new(5, SimFaults::default());
        let mut lane = rig::lane(&net, 0, 4096);
        let mut peer = net.create_cq(net.node("peer"));
        let (_, end) = net.connect(&lane.queue, &peer);
        lane.commands.list.push(Command::Size { chunk: 77, bytes: 4 });
        // Behind it, and not executed any more.
        lane.commands.list.push(Command::Seeded { to: Rank(1), epoch: EPOCH });
        cause(&mut lane, &net, &peer);
        let failure = (0..2).find_map(|turn| lane.step(turn * 100).err());
        let failure = failure.unwrap_or_else(|| panic!("{what}: the lane goes on"));
        assert!(matches!(failure, LaneError::Storage(_)), "{what}: {failure}");
        assert_eq!(lane.next_news(), None, "{what}");
        drop(lane);
        net.advance_to(net.now_us() + 1_000);
        let mut completions = Vec::new();
        peer.poll(&mut completions);
        assert!(completions.iter().any(|completion| completion.channel == end), "{what}: its channels end");
    }
}
