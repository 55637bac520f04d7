//! Weights that workers read where they lie, when their chunk goes elsewhere: they stay, hold nobody up, and go when nobody
//! reads them.

use super::*;
use crate::engine::Role;
use proto_common::batch::{Kept, Reading};
use proto_common::ids::Version;

const ALONE: Role = Role::Primary { backup: None, seeding: None };
const COPY: Role = Role::Copy { of: Rank(1) };

fn roles(rig: &mut Rig, counter: u32, all: &[(ChunkSpec, Role)]) -> (Vec<u32>, Vec<Command>) {
    let mut out = Commands::default();
    let changes = rig.engine.roles(Epoch { term: 1, counter }, all, &mut out);
    (changes.added.iter().map(|(index, _)| *index).collect(), out.list)
}

/// One worker that reads version 1 of a chunk where this server has it.
fn shown() -> Rig {
    let mut rig = Rig::with(config(1), true);
    assert_eq!(roles(&mut rig, 1, &[(spec(1), ALONE)]), (vec![], vec![]));
    rig.send(0, &[Block { view: true, landing: None, ..push_pull(1, 1) }]);
    assert_eq!(rig.flush(), [done(0, 1, 1)]);
    rig
}

fn reading(from: u64, kept: Kept) -> Reading {
    Reading { from: Operation(from), kept }
}

/// What a worker says to a server that had the chunk.
fn farewell(from: u64) -> Block {
    Block { reading: reading(from, Kept::None), ..block(OpKind::Release, 0, 0) }
}

/// What is freed by now. What is said to workers is read.
fn freed(rig: &mut Rig) -> Vec<u32> {
    let mut out = Commands::default();
    rig.engine.flush(usize::MAX, &mut out);
    let free = |command: &Command| match command {
        Command::Free { chunk } => Some(*chunk),
        Command::Results { .. } => None,
        other => panic!("{other:?}"),
    };
    out.list.iter().filter_map(free).collect()
}

#[test]
fn a_copy_of_what_is_read_here_goes_on_when_its_reader_says_so() {
    let mut rig = shown();
    // Both buffers are read.
    let kept = reading(1, Kept::Version(Version(1)));
    rig.send(0, &[Block { view: true, landing: None, reading: kept, ..push_pull(2, 2) }]);
    rig.flush();
    assert_eq!(roles(&mut rig, 2, &[(spec(1), COPY)]), (vec![], vec![]));
    assert_eq!(rig.version(), 2, "it is what there is, should the new server die at once");
    assert_eq!(rig.engine.chunk_mut(0).writable(), None);
    assert_eq!(rig.send(0, &[farewell(1)]), []);
    rig.flush();
    assert_eq!(rig.engine.chunk_mut(0).writable(), None, "the first one is read still");
    assert_eq!(rig.send(0, &[farewell(2)]), []);
    rig.flush();
    assert!(rig.engine.chunk_mut(0).writable().is_some());
    // Served again, its operations say what is read.
    roles(&mut rig, 3, &[(spec(1), ALONE)]);
    assert_eq!(rig.send(0, &[farewell(9)]), []);
    assert!(rig.engine.chunk_mut(0).weights.views.is_shown(Rank(0)));
}

#[test]
fn a_farewell_to_weights_of_which_a_version_is_kept_is_to_be_said_again() {
    let mut rig = shown();
    // A round that ends without new weights: they are of both versions, and the worker was shown the first one.
    rig.engine.chunk_mut(0).publish(None);
    roles(&mut rig, 2, &[(spec(1), COPY)]);
    let kept = Block { reading: reading(2, Kept::Version(Version(2))), ..farewell(2) };
    rig.send(0, &[kept]);
    assert_eq!(rig.flush().iter().map(|answer| answer.status).collect::<Vec<_>>(), [Status::Retry]);
    rig.send(0, &[farewell(3)]);
    assert_eq!(rig.flush().iter().map(|answer| answer.status).collect::<Vec<_>>(), [Status::Done]);
    assert!(!rig.engine.chunk_mut(0).weights.views.is_shown(Rank(0)));
}

#[test]
fn what_was_given_up_is_freed_when_its_reader_says_so_or_is_gone() {
    for ends in 0..3 {
        let mut rig = shown();
        assert_eq!(roles(&mut rig, 2, &[]), (vec![], vec![]));
        match ends {
            0 => _ = rig.send(0, &[farewell(2)]),
            // An operation that was to come here, and is sent back.
            1 => _ = rig.send(0, &[Block { reading: reading(2, Kept::None), ..push(2, 2) }]),
            _ => {
                rig.down(Rank(0));
                assert_eq!(freed(&mut rig), vec![0; 0], "it may live");
                rig.again(0);
                rig.connect_with(0, 4);
            }
        }
        assert_eq!(freed(&mut rig), [0], "{ends}");
    }
}

#[test]
fn a_farewell_goes_for_what_was_here_before_only() {
    let mut rig = shown();
    roles(&mut rig, 2, &[]);
    roles(&mut rig, 3, &[(spec(1), ALONE)]);
    rig.send(
        0,
        &[Block {
            view: true,
            landing: None,
            reading: reading(1, Kept::All),
            first_open: Operation(2),
            ..pull(2, 0)
        }],
    );
    assert_eq!(freed(&mut rig), vec![0; 0]);
    rig.send(0, &[farewell(9)]);
    assert_eq!(freed(&mut rig), [0]);
    let index = rig.engine.index_of(spec(1).id).expect("it is served");
    assert!(rig.engine.chunk_mut(index).weights.views.is_shown(Rank(0)), "it is read");
}
