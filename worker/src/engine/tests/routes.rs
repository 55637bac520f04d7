//! Chunks that get another server: what waits follows at once, what was sent when it is answered or its channel has ended,
//! and nothing of the chunk goes out in between.

use super::*;
use crate::call_fault::CallFault;
use crate::subject::Subject;
use proto_common::call::call_id;

const ID: ChunkId = ChunkId { key: Key(1), chunk: proto_common::ids::ChunkIndex(0) };

fn moved(rig: &mut Rig, server: u32) {
    rig.engine.remap(&[(ID, Rank(server))]);
}

/// Server and operations of each batch.
fn went(sent: &[Sent]) -> Vec<(u32, Vec<(u64, u64)>)> {
    sent.iter().map(|sent| (sent.server, sent.operations())).collect()
}

#[test]
fn what_waits_goes_to_the_new_server_and_so_does_what_comes() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0)]);
    rig.push(1, &[part(2, 0)]);
    moved(&mut rig, 1);
    rig.push(2, &[part(1, 0)]);
    assert_eq!(went(&rig.sent()), [(0, vec![(2, 1)]), (1, vec![(1, 1), (1, 2)])]);
    rig.push(3, &[part(1, 0)]);
    assert_eq!(went(&rig.sent()), [(1, vec![(1, 3)])]);
}

#[test]
fn nothing_goes_out_before_all_that_was_sent_is_answered() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0)]);
    rig.push(2, &[part(1, 0)]);
    let sent = rig.sent();
    moved(&mut rig, 1);
    rig.push(3, &[part(1, 0)]);
    // Not even what may else always go.
    rig.submit_as(submit(OpKind::Release, 4), &[part(1, 0)]);
    assert_eq!(rig.sent(), []);
    assert_eq!(rig.results(0, &[done(&sent[0].blocks[0])], &[]).len(), 1);
    assert_eq!(rig.sent(), []);
    rig.results(0, &[reply(&sent[0].blocks[1], Status::Reroute, 0)], &[]);
    assert_eq!(went(&rig.flush().sent), [(1, vec![(1, 2), (1, 3), (1, 4)])], "at once, and in order");
    assert_eq!((rig.engine.stats().reroutes, rig.engine.next_retry_ms()), (1, None));
}

#[test]
fn a_dead_server_s_parts_go_to_its_backup_in_order_with_the_same_numbers() {
    for map_first in [true, false] {
        let mut rig = Rig::new(4);
        for operation in 1..=2 {
            rig.push(operation, &[part(1, 0)]);
        }
        let first = rig.sent()[0].blocks.clone();
        rig.push(3, &[part(1, 0)]);
        if map_first {
            moved(&mut rig, 1);
        }
        assert_eq!(rig.sent().len(), usize::from(!map_first), "the third");
        rig.engine.server_down(Rank(0));
        if !map_first {
            assert_eq!(rig.flush(), Happened::default());
            moved(&mut rig, 1);
        }
        let again = rig.sent();
        assert_eq!(went(&again), [(1, vec![(1, 1), (1, 2), (1, 3)])]);
        assert_eq!(again[0].blocks[..2], first);
        assert_eq!(rig.engine.stats().replays, if map_first { 2 } else { 3 });
        let answers: Vec<Block> = again[0].blocks.iter().map(done).collect();
        assert_eq!(rig.results(1, &answers, &[]).len(), 3);
    }
}

#[test]
fn a_server_that_does_not_serve_what_the_map_says_is_asked_again_after_a_pause() {
    let mut rig = Rig::new(60);
    rig.push(1, &[part(1, 0)]);
    rig.push(2, &[part(1, 0)]);
    let mut waits = Vec::new();
    for _ in 0..3 {
        let blocks = rig.sent().remove(0).blocks;
        let again: Vec<_> = blocks.iter().map(|block| reply(block, Status::Reroute, 0)).collect();
        rig.results(0, &again, &[]);
        assert_eq!(rig.sent(), []);
        let due = rig.engine.next_retry_ms().expect("to be tried again");
        waits.push(due - rig.now_ms);
        rig.now_ms = due;
    }
    assert!(waits.is_sorted() && waits[0] < waits[2], "{waits:?}");
    assert_eq!(rig.sent()[0].operations(), [(1, 1), (1, 2)]);
    // The map ends the pause.
    moved(&mut rig, 1);
    rig.engine.server_down(Rank(0));
    assert_eq!(went(&rig.sent()), [(1, vec![(1, 1), (1, 2)])]);
}

#[test]
fn the_pause_of_the_server_before_does_not_hold_up_the_next_one() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0)]);
    let block = rig.sent()[0].blocks[0];
    rig.results(0, &[reply(&block, Status::Retry, 0)], &[]);
    assert!(rig.engine.next_retry_ms().is_some());
    moved(&mut rig, 1);
    assert_eq!(rig.engine.next_retry_ms(), None);
    assert_eq!(went(&rig.sent()), [(1, vec![(1, 1)])]);
}

#[test]
fn a_chunk_that_comes_back_before_its_answers_goes_on_where_it_is() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0)]);
    rig.sent();
    moved(&mut rig, 1);
    rig.push(2, &[part(1, 0)]);
    assert_eq!(rig.sent(), []);
    moved(&mut rig, 0);
    assert_eq!(went(&rig.sent()), [(0, vec![(1, 2)])]);
}

#[test]
fn a_third_server_s_end_concerns_only_what_waits_for_it() {
    let mut rig = Rig::down(EngineConfig { servers: 3, ..config() });
    (0..3).for_each(|server| rig.up(server, 4));
    rig.push(1, &[part(1, 0)]);
    let block = rig.sent()[0].blocks[0];
    moved(&mut rig, 1);
    rig.push(2, &[part(1, 0)]);
    rig.engine.server_down(Rank(1));
    moved(&mut rig, 2);
    assert_eq!(rig.sent(), [], "the first is at server 0 still");
    rig.results(0, &[done(&block)], &[]);
    assert_eq!(went(&rig.sent()), [(2, vec![(1, 2)])]);
}

#[test]
fn an_announcement_is_made_anew_at_the_new_server() {
    let mut rig = Rig::new(4);
    let submit = Submit { placement: Placement::Static, ..submit(OpKind::Push, 1) };
    rig.submit_as(submit, &[part(1, 0)]);
    let announced = rig.sent()[0].blocks[0];
    assert_eq!(announced.data, BlockData::Announced { keep: true });
    moved(&mut rig, 1);
    let landing = Some(Landing { region: 1, offset: 0, bytes: BYTES });
    let granted = Block { landing, ..reply(&announced, Status::Granted, 0) };
    assert_eq!(rig.results(0, &[granted], &[]), []);
    let again = rig.sent();
    assert_eq!((again[0].server, again[0].blocks[0].data), (1, announced.data));
    // Nor is the buffer of the first one used when the chunk comes back to it.
    rig.results(1, &[done(&again[0].blocks[0])], &[]);
    moved(&mut rig, 0);
    rig.submit_as(Submit { operation: Operation(2), count: Count::Round(2), ..submit }, &[part(1, 0)]);
    assert_eq!(rig.sent()[0].blocks[0].data, BlockData::Announced { keep: true });
}

#[test]
fn what_is_granted_for_an_announcement_of_before_a_move_there_and_back_is_not_written() {
    let back = |rig: &mut Rig| {
        moved(rig, 1);
        moved(rig, 0);
    };
    let newer_scheduler = |rig: &mut Rig| rig.engine.forget_grants();
    for meanwhile in [&back as &dyn Fn(&mut Rig), &newer_scheduler] {
        let mut rig = Rig::new(4);
        let submit = Submit { placement: Placement::Static, ..submit(OpKind::Push, 1) };
        rig.submit_as(submit, &[part(1, 0)]);
        let announced = rig.sent()[0].blocks[0];
        meanwhile(&mut rig);
        let landing = Some(Landing { region: 1, offset: 0, bytes: BYTES });
        let granted = Block { landing, ..reply(&announced, Status::Granted, 0) };
        assert_eq!(rig.results(0, &[granted], &[]), []);
        let again = rig.sent()[0].blocks[0];
        assert_eq!(again.data, announced.data, "it is asked for anew");
        let granted = Block { landing, ..reply(&again, Status::Granted, 0) };
        rig.results(0, &[granted], &[]);
        assert_eq!(rig.flush().sent[0].blocks[0].data, BlockData::Placed);
    }
}

#[test]
fn a_key_buffer_at_the_server_before_is_not_written_again() {
    let mut rig = Rig::new(8);
    let push = |rig: &mut Rig, operation| {
        let submit = Submit { placement: Placement::Static, ..submit(OpKind::Push, operation) };
        rig.submit_as(submit, &[part(1, 0)]);
        rig.flush().sent.remove(0).blocks[0]
    };
    let announced = push(&mut rig, 1);
    let landing = Some(Landing { region: 1, offset: 0, bytes: BYTES });
    rig.results(0, &[Block { landing, ..reply(&announced, Status::Granted, 0) }], &[]);
    let placed = rig.flush().sent[0].blocks[0];
    assert_eq!(placed.data, BlockData::Placed);
    // It goes and comes back while its server has the payload.
    moved(&mut rig, 1);
    moved(&mut rig, 0);
    rig.results(0, &[done(&placed)], &[]);
    assert_eq!(push(&mut rig, 2).data, BlockData::Announced { keep: true });
}

#[test]
fn whoever_waited_in_vain_is_told_for_whom() {
    let fail = |rig: &mut Rig| {
        let mut commands = rig.tick(1_100).into_iter();
        commands
            .find_map(|command| if let Command::Failed { error, .. } = command { Some(error) } else { None })
    };
    let mut rig = Rig::new(60);
    rig.submit_as(Submit { timeout_ms: 100, ..submit(OpKind::Push, 1) }, &[part(1, 0)]);
    let block = rig.sent()[0].blocks[0];
    rig.now_ms += 500;
    rig.results(0, &[reply(&block, Status::Reroute, 0)], &[]);
    rig.now_ms -= 500;
    assert_eq!(
        fail(&mut rig),
        Some(OpError::Elsewhere {
            subject: Subject::default(),
            chunk: ID,
            server: Rank(0),
            waited_ms: 1_100
        })
    );

    let mut rig = Rig::new(4);
    rig.submit_as(Submit { timeout_ms: 100, ..submit(OpKind::Push, 1) }, &[part(1, 0)]);
    rig.engine.server_down(Rank(0));
    let error = fail(&mut rig).expect("failed");
    assert_eq!(
        error,
        OpError::Unconnected {
            subject: Subject::default(),
            key: Key(1),
            servers: vec![Rank(0)],
            waited_ms: 1_100
        }
    );
    assert!(error.to_string().contains("no data channel to server 0"), "{error}");
}

#[test]
fn the_time_that_an_operation_has_counts_from_its_first_submission() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0)]);
    rig.sent();
    rig.now_ms += 2_000;
    moved(&mut rig, 1);
    rig.engine.server_down(Rank(0));
    assert_eq!(rig.sent()[0].blocks[0].timeout_ms, 3_000);
}

#[test]
fn calls_to_a_dead_server_end_with_its_name_and_the_next_life_gets_the_next_ones() {
    let mut rig = Rig::new(4);
    let call = |rig: &mut Rig, operation: u64, server: u32| {
        let part = PartSpec { id: call_id(7, Rank(server)), ..part(0, server) };
        let submit = submit(OpKind::Call, operation);
        rig.submit_as(Submit { payload: true, ..submit }, &[part])
    };
    let (first, other) = (call(&mut rig, 1, 0), call(&mut rig, 1, 1));
    rig.sent();
    let second = call(&mut rig, 2, 0);
    rig.engine.server_down(Rank(0));
    let mut out = Commands::default();
    rig.engine.server_gone(Rank(0), &mut out);
    let failed: Vec<_> = out
        .list
        .iter()
        .filter_map(|command| match command {
            Command::Failed { op, error: OpError::Call { app: 7, server: Rank(0), fault, .. } } => {
                Some((*op, fault.clone()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(failed, [(first, CallFault::ServerDied), (second, CallFault::ServerDied)]);
    assert_eq!((out.list.len(), rig.engine.in_flight()), (4, 1), "{other} goes on");
    rig.up(0, 4);
    call(&mut rig, 3, 0);
    let sent = rig.sent();
    assert_eq!((sent.len(), sent[0].blocks[0].first_open), (1, Operation(3)));
}

#[test]
fn tensors_of_a_dead_server_wait_for_the_map() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0)]);
    rig.sent();
    rig.engine.server_down(Rank(0));
    let mut out = Commands::default();
    rig.engine.server_gone(Rank(0), &mut out);
    assert_eq!((out.list.len(), rig.engine.in_flight()), (0, 1));
}
