//! Credits: nobody starves, an idle worker holds none, every slot comes back.

use super::*;

#[test]
fn first_credits_are_a_fair_share() {
    for (workers, slots, first) in [(1, 16, 4), (2, 16, 4), (8, 16, 2), (16, 16, 1), (32, 16, 1)] {
        let rig = Rig::new(EngineConfig { inbox_slots: slots, ..config(workers) });
        assert_eq!(rig.held(0), first, "{workers} workers");
        let granted = (first * workers as usize).min(16);
        assert_eq!(rig.engine.credits(), (16 - granted, 16));
    }
}

#[test]
fn a_used_slot_is_free_again_as_soon_as_its_blocks_are_decided() {
    let mut rig = Rig::new(config(4));
    let before = rig.engine.credits().0;
    rig.send(3, &[push(1, 1)]); // Spilled: even then it does not keep its slot.
    assert_eq!(rig.engine.credits().0, before + 1);
}

#[test]
fn want_is_answered_even_where_there_is_no_result_to_ride_on() {
    let mut rig = Rig::new(config(2));
    rig.give_back(0);
    assert_eq!((rig.held(0), rig.flush()), (0, vec![]));
    rig.notice(0, Notice::Want(3));
    rig.flush();
    assert_eq!(rig.held(0), 3);
}

#[test]
fn credits_ride_on_results_where_the_worker_has_one_in_hand() {
    let mut rig = Rig::new(config(1));
    rig.send_wanting(0, 0, &[pull(1, 1)]);
    rig.send_wanting(0, 0, &[pull(2, 1)]);
    rig.send_wanting(0, 0, &[pull(3, 1)]);
    assert_eq!(rig.flush(), []);
    assert_eq!(rig.held(0), 1, "the reserve waits for a result: no message of its own");
    rig.send_wanting(0, 0, &[push(4, 1)]);
    assert_eq!(rig.flush().len(), 4);
    assert_eq!(rig.held(0), 2, "the reserve");
}

#[test]
fn an_idle_worker_holds_none() {
    let mut rig = Rig::new(config(2));
    for rank in 0..2 {
        rig.send_wanting(rank, 5, &[push(1, 1)]);
    }
    rig.flush();
    rig.give_back(0);
    rig.give_back(1);
    assert_eq!(rig.flush(), []);
    assert_eq!((rig.held(0), rig.held(1)), (0, 0), "credits given back are not pressed on it again");
    assert_eq!(rig.engine.credits(), (16, 16));
}

#[test]
fn grants_that_were_not_told_yet_go_back_with_those_given_back() {
    let mut rig = Rig::new(config(1));
    for number in 1..=3 {
        rig.send_wanting(0, 0, &[pull(number, 1)]);
    }
    rig.flush(); // The reserve is granted, and waits for a result to ride on.
    assert_eq!((rig.held(0), rig.engine.credits().0), (1, 14));
    rig.give_back(0);
    assert_eq!(rig.engine.credits(), (16, 16));
    rig.notice(0, Notice::Want(1));
    rig.flush();
    assert!(rig.held(0) >= 1, "asked again, granted again");
}

#[test]
fn a_dead_workers_credits_are_free_again_and_its_place_in_the_line_too() {
    let mut rig = Rig::new(EngineConfig { inbox_slots: 2, ..config(3) });
    assert_eq!((rig.held(0), rig.held(1), rig.held(2)), (1, 1, 0));
    rig.notice(2, Notice::Want(1));
    rig.flush();
    assert_eq!(rig.held(2), 0);
    rig.down(Rank(0));
    rig.flush();
    assert_eq!(rig.held(2), 1);
    rig.down(Rank(1));
    rig.down(Rank(2));
    assert_eq!((rig.engine.credits(), rig.flush()), ((2, 2), vec![]));
}

#[test]
fn nobody_holds_more_than_its_share() {
    let mut rig = Rig::new(EngineConfig { inbox_slots: 4, ..config(4) });
    rig.notice(0, Notice::Want(200));
    rig.flush();
    assert_eq!(rig.held(0), 1, "the other slots belong to workers that this one may be waiting for");
    for rank in 0..4 {
        rig.send_wanting(rank, 100, &[push(1, 1)]);
        rig.flush();
    }
    assert_eq!((rig.version(), rig.held(0), rig.held(3)), (1, 1, 1));
}

#[test]
fn more_workers_than_slots_all_make_progress() {
    let workers = 9;
    let mut rig = Rig::new(EngineConfig { inbox_slots: 2, ..config(workers) });
    for round in 1..=20 {
        let mut left: Vec<u32> = (0..workers).collect();
        let mut turns = 0;
        while !left.is_empty() {
            turns += 1;
            assert!(turns < 100, "round {round}: {left:?} starve");
            left.retain(|rank| {
                if rig.held(*rank) == 0 {
                    rig.notice(*rank, Notice::Want(1));
                    return true;
                }
                // Nothing more to send: it asks for nothing, and keeps nothing that others need.
                rig.send_wanting(*rank, 0, &[push(round, round)]);
                false
            });
            rig.flush();
        }
        assert_eq!(rig.version(), round);
        let hoarded = (0..workers).map(|rank| rig.held(rank)).sum::<usize>();
        assert_eq!(hoarded, 0, "where slots are few nobody gets one without a need");
    }
}

#[test]
fn a_repeated_return_of_a_result_slot_frees_it_once() {
    let mut rig = Rig::new(config(1));
    assert_eq!(rig.connect_with(0, 1), []);
    rig.send_wanting(0, 4, &[push(1, 1)]);
    assert_eq!(rig.flush_unread().len(), 1);
    let returned = rig.workers[0].read.pop().expect("the result's slot");
    assert_eq!(rig.notice(0, Notice::Returned(returned)), []);
    assert_eq!(rig.notice(0, Notice::Returned(returned)), [], "a duplicate is no offence");
    rig.send_wanting(0, 4, &[push(2, 2)]);
    assert_eq!(rig.flush_unread().len(), 1);
    assert_eq!(rig.notice(0, Notice::Returned(returned)), []);
    rig.send_wanting(0, 4, &[push(3, 3)]);
    assert_eq!(rig.flush_unread(), [], "the slot still holds a result that nobody has read");
}

#[test]
fn results_wait_for_a_slot_and_none_is_lost() {
    let mut rig = Rig::new(config(1));
    assert_eq!(rig.connect_with(0, 1), []);
    rig.send_wanting(0, 4, &[push(1, 1)]);
    assert_eq!(rig.flush_unread(), [done(0, 1, 1)]);
    rig.send_wanting(0, 4, &[push(2, 2)]);
    rig.send_wanting(0, 4, &[push(3, 3)]);
    assert_eq!(rig.flush_unread(), []);
    let returned = rig.workers[0].read.pop().expect("the result's slot");
    rig.notice(0, Notice::Returned(returned));
    assert_eq!(rig.flush_unread(), [done(0, 2, 2), done(0, 3, 3)]);
}

#[test]
fn results_wait_for_memory_to_send_them_from() {
    let mut rig = Rig::new(config(2));
    rig.send(0, &[push(1, 1)]);
    rig.send(1, &[push(1, 1)]);
    let mut out = Commands::default();
    rig.engine.flush(0, &mut out);
    assert_eq!(out.list, []);
    rig.engine.flush(1, &mut out);
    assert_eq!(out.list.len(), 1);
    rig.engine.flush(1, &mut out);
    assert_eq!(out.list.len(), 2, "the rest goes with the next flush");
}
