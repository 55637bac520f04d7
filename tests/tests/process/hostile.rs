//! A member that forges what it sends on the data plane. Whatever it does, the server refuses it, closes its
//! channel or ignores it; the honest worker's rounds go on, and neither memory nor files of the server grow.
//! After each attack the rogue comes back and contributes honestly: a server that had taken harm would show.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

mod slots;

use fabric::{RemoteKey, RemoteSpan};
use gradwire_tests::rigs::cluster::Cluster;
use gradwire_tests::rigs::control::ControlPeer;
use gradwire_tests::rigs::forge::{self, Field, set};
use gradwire_tests::rigs::hostile::{Channel, DeafChannel, Rogue, operation};
use gradwire_tests::rigs::{gauge, job, status};
use gradwire_worker::{Client, ClientError, OpError};
use proto_common::batch::{Block, BlockData, Count, Landing, Notice, OpKind, SlotGrant, Status};
use proto_common::codec::{Codec, Compression};
use proto_common::element::Dtype;
use proto_common::ids::ChunkId;
use proto_common::limits::CARRIED_BYTES_MAX;
use proto_common::message::{FromServer, Hello, ToServer};
use proto_common::transport::Driver;
use std::time::Duration;

/// The tensor of honest rounds, and the one that is attacked; both of one chunk.
const HONEST: u64 = 1;
const ATTACKED: u64 = 2;
/// Contributions to it are encoded: the four largest of its elements.
const CODED: u64 = 3;
const FOUR: Codec = Codec::TopK { share: 0.25 };
const CODED_ELEMENTS: u64 = 16;
/// More than travel in a result: these weights are written.
const ELEMENTS: u64 = CARRIED_BYTES_MAX / 4 + 1;
const BYTES: u64 = 4 * ELEMENTS;
/// A channel must be closed within this.
const SOON: Duration = Duration::from_secs(5);
/// Memory the server may grow by over hundreds of attacks: allocator slack, not a leak.
const GROWTH_BYTES: u64 = 12 << 20;

struct Scene {
    /// Leaves first: a goodbye waits for a scheduler.
    honest: Client,
    cluster: Cluster,
    rogue: Rogue,
    driver: Driver,
    /// Rounds of the honest tensor so far.
    rounds: u64,
    /// The rogue's operations on the attacked tensor so far.
    operations: u64,
}

fn scene(driver: Driver, scheduler: &[&str]) -> Scene {
    let silence = ["--set", "deadlines.silence_ms=120000"];
    let mut cluster = Cluster::new(1, 2, &[&silence, scheduler].concat());
    cluster.add_server(&["--set", "deadlines.handshake_ms=1000", "--set", "deadlines.connect_ms=2000"]);
    let mut rogue = Rogue::register(&cluster, 1);
    let mut honest = job::join(&cluster, 1, |settings| {
        (settings.deadlines.operation_ms, settings.deadlines.busy_ms) = (5_000, 5_000);
    });
    rogue.await_roster();
    let honest = honest.remove(0);
    let coded = job::summed(CODED, CODED_ELEMENTS).compressed(Compression::of(FOUR));
    honest.declare(&[job::summed(HONEST, ELEMENTS), job::summed(ATTACKED, ELEMENTS), coded]).unwrap();
    Scene { cluster, honest, rogue, driver, rounds: 0, operations: 0 }
}

impl Scene {
    /// Both contribute to a round of the honest tensor, and the honest one gets the right sum.
    fn round(&mut self, channel: &mut Channel) {
        self.rounds += 1;
        let block = operation(OpKind::Push, HONEST, self.rounds, self.rounds, BYTES);
        let batch = channel.batch(&[block], 4.0);
        std::thread::scope(|scope| {
            let honest = scope.spawn(|| {
                let tensor = self.honest.tensor(HONEST).unwrap();
                let mut weights = [0.0f32; ELEMENTS as usize];
                self.honest.push_pull_slice(&tensor, &[1.5; ELEMENTS as usize], &mut weights).unwrap();
                weights
            });
            let slot = channel.credit();
            channel.post(slot, &batch);
            let result = channel.result(block.token).expect("the honest channel lives");
            assert_eq!(result.status, Status::Done);
            assert_eq!(honest.join().unwrap(), [5.5; ELEMENTS as usize]);
        });
    }

    fn open(&self) -> Channel {
        self.rogue.open(self.driver)
    }

    /// A batch with one contribution to the attacked tensor, its number the next one.
    fn push(&self, channel: &mut Channel) -> Vec<u8> {
        channel.batch(&[operation(OpKind::Push, ATTACKED, self.operations + 1, 1, BYTES)], 1.0)
    }

    /// The attack must end the channel; then the rogue is honest for a round.
    fn expect_closed(&mut self, name: &str, attack: impl FnOnce(&Self, &mut Channel)) {
        let mut channel = self.open();
        attack(self, &mut channel);
        assert!(channel.is_closed_within(SOON), "{} over {}: the channel lives on", name, self.driver);
        drop(channel);
        let mut channel = self.open();
        self.round(&mut channel);
    }

    /// The attack may or may not end the channel, and must do no harm.
    fn expect_harmless(&mut self, attack: impl FnOnce(&Self, &mut Channel)) {
        let mut channel = self.open();
        attack(self, &mut channel);
        let mut channel = if channel.is_closed_within(Duration::ZERO) { self.open() } else { channel };
        self.round(&mut channel);
    }

    /// The operation is refused with this status, and the same channel goes on.
    fn expect_status(&mut self, wanted: Status, edit: impl FnOnce(&mut Block)) {
        let mut channel = self.open();
        self.operations += 1;
        let mut block = operation(OpKind::Push, ATTACKED, self.operations, 1, BYTES);
        edit(&mut block);
        let batch = channel.batch(&[block], 1.0);
        let slot = channel.credit();
        channel.post(slot, &batch);
        let result = channel.result(block.token).expect("refusing needs no closing");
        assert_eq!(result.status, wanted, "{block:?}");
        self.round(&mut channel);
    }

    fn finish(mut self) {
        self.cluster.assert_no_panic();
        assert!(self.cluster.everyone().all(gradwire_tests::rigs::process::Process::is_running));
        assert!(self.honest.dead().is_none());
    }
}

/// Fields of header and block that must not say this, with a checksum that is right for the lie.
const LIES: [(&str, Field, u64); 20] = [
    ("magic", forge::MAGIC, 0),
    ("version", forge::VERSION, 1),
    ("a result, not a request", forge::KIND, 2),
    ("unknown kind", forge::KIND, 9),
    ("unknown flag", forge::FLAGS, 0x80),
    ("another lane", forge::LANE, 1),
    ("all the blocks there are", forge::BLOCK_COUNT, 0xFFFF),
    ("more blocks than allowed", forge::BLOCK_COUNT, 129),
    ("more grants than allowed", forge::GRANT_COUNT, 0xFFFF),
    ("another rank", forge::SENDER, 0),
    ("another job", forge::JOB, 99),
    ("another life of ours", forge::SENDER_INCARNATION, 1),
    ("another life of the server", forge::RECEIVER_INCARNATION, 1),
    ("payload outside the slot", forge::PAYLOAD_OFFSET, u64::MAX - 7),
    ("payload larger than the slot", forge::PAYLOAD_BYTES, 1 << 40),
    ("reserved bytes", forge::RESERVED, 1),
    ("unknown operation", forge::OP, 77),
    ("unknown dtype", forge::DTYPE, 77),
    ("block past the payload", forge::OFFSET, BYTES),
    ("block that wraps around", forge::OFFSET, u64::MAX - 3),
];

#[test]
fn batches_that_lie() {
    for driver in [Driver::Shm, Driver::Tcp] {
        let mut scene = scene(driver, &[]);
        for (name, field, value) in LIES {
            scene.expect_closed(name, |scene, channel| {
                let mut batch = scene.push(channel);
                let prefix = batch.len() - BYTES as usize;
                set(&mut batch[..prefix], field, value);
                forge::reseal(&mut batch[..prefix]);
                let slot = channel.credit();
                channel.post(slot, &batch);
            });
        }
        for (name, field) in
            [("checksum", forge::CHECKSUM), ("table", forge::BYTES), ("status", forge::STATUS)]
        {
            scene.expect_closed(name, |scene, channel| {
                let mut batch = scene.push(channel);
                let value = forge::get(&batch, field) ^ 1;
                set(&mut batch, field, value);
                let slot = channel.credit();
                channel.post(slot, &batch);
            });
        }
        scene.expect_closed("garbage", |_, channel| {
            let slot = channel.credit();
            channel.post(slot, &[0xA5; 4096]);
        });
        scene.finish();
    }
}

/// The server finds out in the middle of what a batch asks for: the rest of it, in memory of the worker's that is not its
/// any more, is done all the same.
#[test]
fn a_landing_that_is_none_before_a_contribution_by_reference() {
    let mut scene = scene(Driver::Shm, &[]);
    scene.expect_closed("a landing that was not given", |scene, channel| {
        let nowhere = Landing { region: 999, offset: 0, bytes: BYTES };
        let pull = operation(OpKind::Pull, ATTACKED, scene.operations + 1, 0, BYTES);
        let push = operation(OpKind::Push, ATTACKED, scene.operations + 2, 1, BYTES);
        let there = BlockData::ByReference { region: channel.landing, offset: 4096 };
        let blocks = [Block { landing: Some(nowhere), ..pull }, Block { data: there, ..push }];
        let batch = channel.batch(&blocks, 0.0);
        let slot = channel.credit();
        channel.post(slot, &batch);
    });
    scene.expect_closed("memory that was not handed over", |scene, channel| {
        let push = operation(OpKind::Push, HONEST, scene.rounds + 1, scene.rounds + 1, BYTES);
        let nowhere = BlockData::ByReference { region: 999, offset: 0 };
        let batch = channel.batch(&[Block { data: nowhere, ..push }], 0.0);
        let slot = channel.credit();
        channel.post(slot, &batch);
    });
    scene.expect_closed("memory beyond its end", |scene, channel| {
        let push = operation(OpKind::Push, HONEST, scene.rounds + 1, scene.rounds + 1, BYTES);
        let beyond = BlockData::ByReference { region: channel.landing, offset: u64::MAX - 8 };
        let batch = channel.batch(&[Block { data: beyond, ..push }], 0.0);
        let slot = channel.credit();
        channel.post(slot, &batch);
    });
    scene.finish();
}

/// Where the rogue's gradients lie in the memory that it handed over: at no multiple of anything.
const THERE: u64 = (1 << 20) + 3;

/// A contribution to the honest tensor's next round by reference, whose memory then says something else.
fn refer(scene: &Scene, channel: &mut Channel, timeout_ms: u32, spoil: Option<Block>) -> Block {
    let next = scene.rounds + 1;
    let data = BlockData::ByReference { region: channel.landing, offset: THERE };
    let block = Block { data, timeout_ms, ..operation(OpKind::Push, HONEST, next, next, BYTES) };
    channel.lay(THERE, &[4.0; ELEMENTS as usize]);
    let batch = channel.batch(&[&[block][..], spoil.as_slice()].concat(), 0.0);
    let slot = channel.credit();
    channel.post(slot, &batch);
    block
}

/// The server reads it when the honest worker's comes, or not at all: never after its channel has ended, or its operation.
#[test]
fn gradients_that_wait_in_the_rogues_memory() {
    let mut scene = scene(Driver::Shm, &[]);
    let placed = Block { data: BlockData::Placed, ..operation(OpKind::Push, ATTACKED, 1, 1, BYTES) };
    for (spoil, waits) in [(None, SOON / 100), (None, Duration::ZERO), (Some(placed), SOON)].repeat(5) {
        let mut channel = scene.open();
        refer(&scene, &mut channel, 20_000, spoil);
        assert_eq!(channel.is_closed_within(waits), spoil.is_some());
        // Its owner may do with it what it likes from here on.
        channel.close();
        channel.lay(THERE, &[1000.0; ELEMENTS as usize]);
        // The same once more.
        let mut channel = scene.open();
        scene.round(&mut channel);
    }
    let mut channel = scene.open();
    let late = refer(&scene, &mut channel, 60, None);
    assert_eq!(channel.result(late.token).map(|block| block.status), Some(Status::DeadlineWaiting));
    channel.lay(THERE, &[1000.0; ELEMENTS as usize]);
    // It counts as it was; the round's own contribution is a duplicate.
    scene.round(&mut channel);
    scene.finish();
}

#[test]
fn grants_that_were_not_given() {
    for driver in [Driver::Shm, Driver::Tcp] {
        let mut scene = scene(driver, &[]);
        let slots = 16;
        scene.expect_closed("a slot that does not exist", |scene, channel| {
            let batch = scene.push(channel);
            let first = channel.credit();
            channel.post(first, &batch);
            channel.notify(Notice::Batch(SlotGrant { slot: slots, ..first }).to_wire());
        });
        scene.expect_closed("a slot beyond the inbox", |scene, channel| {
            let batch = scene.push(channel);
            channel.post(SlotGrant { slot: 60_000, generation: 1 }, &batch);
        });
        scene.expect_closed("a generation yet to come", |scene, channel| {
            let batch = scene.push(channel);
            let slot = channel.credit();
            channel.post(SlotGrant { generation: slot.generation.wrapping_add(1), ..slot }, &batch);
        });
        // An old grant looks like a late duplicate: it counts for nothing, and nothing is read.
        scene.expect_harmless(|scene, channel| {
            let batch = scene.push(channel);
            let slot = channel.credit();
            channel.post(SlotGrant { generation: slot.generation.wrapping_sub(1), ..slot }, &batch);
            channel.credits.push(slot);
        });
        // Over shared memory the inbox can be reached whole, so this one is of slots that nobody was ever granted: the last used
        // is granted next, and the upper ones stay free.
        let upper = |scene: &Scene, channel: &mut Channel| {
            for slot in 12..slots {
                assert!(channel.credits.iter().all(|grant| grant.slot != slot), "{:?}", channel.credits);
                let batch = scene.push(channel);
                channel.post(SlotGrant { slot, generation: 0 }, &batch);
            }
        };
        match driver {
            Driver::Tcp => scene.expect_closed("slots that nobody was granted", upper),
            _ => scene.expect_harmless(upper),
        }
        for offset in [u64::from(slots) * (1 << 20), u64::MAX - 8, 1 << 50] {
            scene.expect_closed("a write past the inbox", |_, channel| {
                let region = channel.server_inbox.region;
                channel.write(RemoteSpan { key: RemoteKey(region), offset }, &[1; 64], None);
            });
        }
        for key in [0, u64::MAX, 1 << 32] {
            scene.expect_closed("a region that was not granted", |_, channel| {
                channel.write(RemoteSpan { key: RemoteKey(key), offset: 0 }, &[1; 64], Some(0));
            });
        }
        scene.finish();
    }
}

#[test]
fn notices_that_make_no_sense() {
    for driver in [Driver::Shm, Driver::Tcp] {
        let mut scene = scene(driver, &[]);
        for wire in [0x8000_0000, 0xEFFF_FFFF, 0xFFFF_0000, 0xFFFF_FE01, u32::MAX] {
            assert_eq!(Notice::from_wire(wire), None, "{wire:x} has a meaning by now");
            scene.expect_closed("an unknown notice", |_, channel| channel.notify(wire));
        }
        let nobodys = SlotGrant { slot: 999, generation: 3 };
        scene.expect_closed("a result slot that never was", |_, channel| {
            channel.notify(Notice::Returned(nobodys).to_wire());
        });
        scene.expect_closed("giving back what it never had", |_, channel| {
            channel.notify(Notice::GivenBack(nobodys).to_wire());
        });
        scene.expect_harmless(|_, channel| {
            for _ in 0..2000 {
                channel.notify(Notice::Want(255).to_wire());
                channel.notify(Notice::ProbeReply.to_wire());
            }
        });
        scene.finish();
    }
}

#[test]
fn operations_that_cannot_be_served() {
    for driver in [Driver::Shm, Driver::Tcp] {
        let mut scene = scene(driver, &[]);
        scene.expect_status(Status::WrongShape, |block| block.dtype = Dtype::F64);
        scene.expect_status(Status::WrongShape, |block| block.bytes -= 4);
        scene.expect_status(Status::WrongShape, |block| block.bytes += 4096);
        scene.expect_status(Status::WrongShape, |block| {
            block.landing = Some(Landing { region: 0, offset: 0, bytes: BYTES });
        });
        scene.expect_status(Status::Refused, |block| block.codec = 3);
        scene.expect_status(Status::Refused, |block| {
            (block.op, block.bytes) = (OpKind::Init, 0);
            block.data = BlockData::Announced { keep: true };
        });
        scene.expect_status(Status::UnknownChunk, |block| block.id.key.0 = 77);
        scene.operations -= 1;
        scene.expect_status(Status::UnknownChunk, |block| block.id.chunk.0 = 1);
        scene.operations -= 1;
        scene.expect_status(Status::Retry, |block| block.operation.0 += 1000);
        scene.operations -= 1;
        // Of a worker whose turn it is not: one of the two does not know yet who has left.
        scene.expect_status(Status::Retry, |block| block.op = OpKind::Init);
        scene.operations -= 1;
        scene.expect_status(Status::Retry, |block| block.count = Count::Round(1000));
        scene.finish();
    }
}

/// Refused whole, with a status of its own, and counted; the worker's next one is taken.
#[test]
fn encoded_contributions_that_no_codec_makes() {
    for driver in [Driver::Shm, Driver::Tcp] {
        let mut scene = scene(driver, &[]);
        let mut channel = scene.open();
        let (bytes, half) = (FOUR.encoded_bytes(CODED_ELEMENTS as usize) as u64, 0.5f32.to_bits());
        let mut push = |number: u64, words: [u32; 8]| {
            let block = Block { codec: FOUR.wire_id(), ..operation(OpKind::Push, CODED, number, 1, bytes) };
            let mut batch = channel.batch(&[block], 0.0);
            let payload = batch.len() - bytes as usize;
            batch.truncate(payload);
            batch.extend(words.into_iter().flat_map(u32::to_le_bytes));
            let slot = channel.credit();
            channel.post(slot, &batch);
            block.token
        };
        let bad = [
            push(1, [0, 1, 2, 16, half, half, half, half]),
            push(2, [0, 2, 2, 3, half, half, half, half]),
            push(3, [3, 2, 1, 0, half, half, half, half]),
            push(4, [0, 1, 2, u32::MAX, half, half, half, half]),
        ];
        let good = push(5, [0, 1, 2, 15, half, half, half, half]);
        let tensor = scene.honest.tensor(CODED).unwrap();
        let (mut weights, mut expected) =
            ([0.0f32; CODED_ELEMENTS as usize], [0.0f32; CODED_ELEMENTS as usize]);
        // Of equal ones the first four.
        scene.honest.push_pull_slice(&tensor, &[1.0; CODED_ELEMENTS as usize], &mut weights).unwrap();
        expected[..4].copy_from_slice(&[1.5, 1.5, 1.5, 1.0]);
        expected[15] = 0.5;
        assert_eq!(weights, expected);
        for token in bad {
            assert_eq!(channel.result(token).map(|block| block.status), Some(Status::Malformed));
        }
        assert_eq!(channel.result(good).map(|block| block.status), Some(Status::Done));
        let http = scene.cluster.status().members[0].http_address.clone().unwrap();
        let metrics = status::get(&http, "/metrics").unwrap();
        let malformed = metrics.lines().find(|line| line.starts_with("gradwire_server_malformed_total"));
        assert_eq!(malformed.and_then(|line| line.rsplit(' ').next()), Some("4"), "{malformed:?}");
        scene.round(&mut channel);
        scene.finish();
    }
}

/// The server writes only where it was granted to; elsewhere the write, not the server, fails.
#[test]
fn landings_outside_our_own_memory() {
    for driver in [Driver::Shm, Driver::Tcp] {
        let mut scene = scene(driver, &[]);
        for (number, name, offset, elsewhere) in [
            (1, "past the region", 1 << 30, false),
            (2, "offset that wraps", u64::MAX - 3, false),
            (3, "no region", 0, true),
        ] {
            scene.expect_closed(name, |_, channel| {
                let mut pull = operation(OpKind::Pull, ATTACKED, number, 0, BYTES);
                let region = if elsewhere { 12_345 } else { channel.landing };
                pull.landing = Some(Landing { region, offset, bytes: BYTES });
                let batch = channel.batch(&[pull], 0.0);
                let slot = channel.credit();
                channel.post(slot, &batch);
            });
        }
        scene.finish();
    }
}

fn post(channel: &mut Channel, blocks: &[Block]) {
    let batch = channel.batch(blocks, 1.0);
    let slot = channel.credit();
    channel.post(slot, &batch);
}

/// The server reads only what the sender let it read, and believes in no payload that it granted no buffer for. What
/// it could not read counts as never sent: the same operation number is right for the next attempt.
#[test]
fn payloads_that_are_not_where_they_are_said_to_be() {
    for driver in [Driver::Shm, Driver::Tcp] {
        let mut scene = scene(driver, &[]);
        for (name, region, offset) in [
            ("a reference past the region", None, 1 << 40),
            ("a reference whose offset wraps", None, u64::MAX - 3),
            ("a reference to no region", Some(12_345), 0),
        ] {
            scene.expect_closed(name, |_, channel| {
                let mut push = operation(OpKind::Push, ATTACKED, 1, 1, BYTES);
                let region = region.unwrap_or(channel.landing);
                push.data = BlockData::ByReference { region, offset };
                post(channel, &[push]);
            });
        }
        for data in [BlockData::Placed, BlockData::Announced { keep: true }] {
            scene.expect_closed("a payload that was placed without a grant", |_, channel| {
                let push = operation(OpKind::Push, ATTACKED, 1, 1, BYTES);
                let placed = Block { data: BlockData::Placed, ..push };
                // Granted for one chunk, placed for another one.
                let asked = Block { data, id: ChunkId::new(HONEST, 0), ..push };
                post(channel, &[asked, placed]);
            });
        }
        scene.finish();
    }
}

/// Hundreds of channels that end badly leave nothing behind.
#[test]
fn attacks_cost_no_memory_and_no_files() {
    for driver in [Driver::Shm, Driver::Tcp] {
        let mut scene = scene(driver, &[]);
        let attack = |scene: &mut Scene| {
            scene.expect_closed("garbage", |_, channel| {
                let slot = channel.credit();
                channel.post(slot, &[0xA5; 4096]);
            });
        };
        (0..20).for_each(|_| attack(&mut scene));
        let server = &scene.cluster.servers[0];
        let (memory, files) = (gauge::resident_bytes(server), gauge::open_files(server));
        (0..150).for_each(|_| attack(&mut scene));
        let server = &scene.cluster.servers[0];
        let grown = gauge::resident_bytes(server).saturating_sub(memory);
        assert!(grown < GROWTH_BYTES, "over {driver} the server grew by {} KiB", grown >> 10);
        // Two channels end a little after the rogue sees it.
        assert!(gauge::open_files(server) <= files + 16, "over {driver} files are left open");
        let http = scene.cluster.status().members[0].http_address.clone().unwrap();
        let metrics = status::get(&http, "/metrics").unwrap();
        let expelled = metrics.lines().find(|line| line.starts_with("gradwire_server_expelled_total"));
        let count: u64 = expelled.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("a count");
        assert_eq!(count, 170, "every one is counted");
        scene.finish();
    }
}

/// A peer whose weights pile up because it reads nothing costs the others nothing but their deadline.
#[test]
fn a_peer_that_stops_reading() {
    const LARGE: u64 = 4;
    const LARGE_BYTES: u64 = 256 << 10;
    let mut scene = scene(Driver::Tcp, &[]);
    scene.honest.declare(&[job::summed(LARGE, LARGE_BYTES / 4)]).unwrap();
    let mut deaf = scene.rogue.open_deaf();
    let memory = gauge::resident_bytes(&scene.cluster.servers[0]);
    let pull = |number, round| {
        let mut pull = operation(OpKind::Pull, LARGE, number, round, LARGE_BYTES);
        pull.landing = Some(Landing { region: DeafChannel::LANDING, offset: 0, bytes: LARGE_BYTES });
        pull
    };
    let push = |number, round| operation(OpKind::Push, LARGE, number, round, LARGE_BYTES);
    deaf.send(&(1..=100).map(|number| pull(number, 0)).collect::<Vec<_>>());
    // Not a byte is read from here on, but it goes on contributing and pulling: the second round finds weights
    // in both buffers that are still on their way to it.
    deaf.send(&[push(101, 1), pull(102, 1)]);
    deaf.send(&[push(103, 2)]);
    let tensor = scene.honest.tensor(LARGE).unwrap();
    let gradient = vec![1.0f32; LARGE_BYTES as usize / 4];
    scene.honest.push_slice(&tensor, &gradient).expect("the first round has a free buffer");
    let error = scene.honest.push_slice(&tensor, &gradient).unwrap_err();
    let ClientError::Op(OpError::StillRead { readers, .. }) = &error else { panic!("{error}") };
    assert_eq!(*readers, [scene.rogue.welcome.rank], "{error}");
    let grown = gauge::resident_bytes(&scene.cluster.servers[0]).saturating_sub(memory);
    assert!(grown < GROWTH_BYTES, "the server grew by {} KiB", grown >> 10);
    // A new channel takes the place of the deaf one, which is given up, and all is well again.
    let mut channel = scene.open();
    scene.round(&mut channel);
    let mut weights = gradient;
    let version = scene.honest.pull_slice(&tensor, &mut weights).expect("the round was published after all");
    assert_eq!((version.0, weights[0]), (2, 2.0));
    drop(deaf);
    scene.finish();
}

/// Helloes that are no member's, out of order or cut short, at the server's bootstrap.
#[test]
fn helloes_that_are_not_the_rosters() {
    let mut scene = scene(Driver::Tcp, &[]);
    type Edit = fn(&mut Hello);
    let refused: [(&str, Edit); 6] = [
        ("protocol version", |hello| hello.protocol += 1),
        ("job", |hello| hello.job.0 += 1),
        ("earlier process of this server", |hello| hello.server_incarnation.0 ^= 1),
        ("is another process", |hello| hello.incarnation.0 ^= 1),
        ("is another process", |hello| hello.rank.0 = 0),
        ("is not in the roster", |hello| hello.rank.0 = 7),
    ];
    for (words, edit) in refused {
        let mut hello = scene.rogue.hello(Driver::Tcp);
        edit(&mut hello);
        let mut link = scene.rogue.bootstrap();
        link.send(&ToServer::Hello(hello));
        let Some(FromServer::Refused { reason }) = link.receive() else { panic!("{words}: not refused") };
        assert!(reason.contains(words), "{reason:?} does not say {words:?}");
        assert!(link.is_closed_within(SOON));
    }
    let mut unasked = scene.rogue.bootstrap();
    unasked.send(&ToServer::Inboxes(Vec::new()));
    assert!(unasked.is_closed_within(SOON));
    // A member that takes no step after its hello, or tells inboxes that make no sense.
    let (mut idle, _) = scene.rogue.ask(Driver::Tcp);
    assert!(idle.is_closed_within(SOON), "it had deadlines.connect_ms to connect its channels");
    let mut channel = scene.open();
    scene.round(&mut channel);
    scene.finish();
}

/// Strangers that find the port of an offer cannot take the member's place or hold it up.
#[test]
fn strangers_at_a_data_port() {
    let mut scene = scene(Driver::Tcp, &[]);
    let (link, offer) = scene.rogue.ask(Driver::Tcp);
    let port = u16::from_le_bytes([offer.endpoint.blob[4], offer.endpoint.blob[5]]);
    let address = format!("127.0.0.1:{port}");
    let mut strangers: Vec<ControlPeer> = (0..150).map(|_| ControlPeer::connect(&address)).collect();
    for (number, stranger) in strangers.iter_mut().enumerate() {
        match number % 3 {
            0 => stranger.send_raw(&[0xA5; 64]),
            1 => stranger.send_raw(b"GWP2\0\0\0\0no proof of any secret, 32 bytes"),
            _ => {}
        }
    }
    let mut channel = scene.rogue.accept(Driver::Tcp, link, &offer);
    scene.round(&mut channel);
    assert!(strangers.iter_mut().all(|stranger| stranger.is_closed_within(SOON)));
    scene.finish();
}
