//! Credits of the servers' inboxes, and the slots of ours.

use super::*;

fn want(server: u32, count: u8) -> Command {
    Command::Notice { server: Rank(server), notice: Notice::Want(count) }
}

#[test]
fn without_a_credit_it_asks_once() {
    let mut rig = Rig::new(0);
    for key in 1..=3 {
        rig.push(1, &[part(key, 0)]);
    }
    let happened = rig.flush();
    assert_eq!((happened.sent.len(), &happened.rest[..]), (0, &[want(0, 3)][..]));
    assert_eq!(rig.flush(), Happened::default());
    assert_eq!(rig.engine.stats().credit_waits, 2);
    rig.results(0, &[], &grants(5..6));
    let sent = rig.sent();
    assert_eq!((sent[0].slot, sent[0].blocks.len()), (grants(5..6)[0], 3));
}

#[test]
fn a_batch_says_what_is_needed_beyond_what_is_held() {
    let mut rig = Rig::new(1);
    let large = |key| PartSpec { bytes: 4096, ..part(key, 0) };
    for key in 1..=9 {
        rig.push(1, &[large(key)]);
    }
    let sent = rig.sent();
    let packed = sent[0].blocks.len() as u16;
    assert_eq!((sent.len(), sent[0].wanted), (1, 9 - packed));
    rig.results(0, &[], &grants(1..12));
    assert_eq!(rig.sent().last().map(|batch| batch.wanted), Some(0), "nothing is asked for without a need");
}

#[test]
fn an_idle_worker_gives_back_what_it_holds_and_can_ask_again() {
    let mut rig = Rig::new(2);
    rig.push(1, &[part(1, 0)]);
    let sent = rig.sent();
    rig.results(0, &[done(&sent[0].blocks[0])], &grants(7..8));
    assert_eq!(rig.tick(199).iter().filter(|c| to(c, 0)).count(), 0);
    let back = |server, slot| Command::Notice {
        server: Rank(server),
        notice: Notice::GivenBack(grants(slot..slot + 1)[0]),
    };
    assert_eq!(rig.tick(1), [back(0, 0), back(0, 7)]);
    assert_eq!(rig.tick(1_000), []);
    rig.push(2, &[part(1, 0)]);
    assert_eq!(rig.flush().rest, [want(0, 1)]);
}

/// Is it for this server?
fn to(command: &Command, rank: u32) -> bool {
    matches!(command, Command::Notice { server, .. } if server.0 == rank)
}

#[test]
fn a_worker_that_waits_for_others_does_not_sit_on_its_credits() {
    let mut rig = Rig::new(2);
    rig.push(1, &[part(1, 0)]);
    assert_eq!(rig.sent().len(), 1);
    let back = rig.tick(200);
    assert_eq!(
        back.iter().filter(|command| to(command, 0)).count(),
        1,
        "{back:?}: the missing worker may need it"
    );
}

#[test]
fn what_was_asked_for_before_is_forgotten_with_what_is_given_back() {
    let mut rig = Rig::new(2);
    let large = |key| PartSpec { bytes: 4096, ..part(key, 0) };
    for key in 1..=9 {
        rig.push(1, &[large(key)]);
    }
    let sent = rig.sent();
    assert!(sent.last().is_some_and(|batch| batch.wanted > 0));
    rig.results(0, &[], &grants(2..9)); // One too few for what was asked: more is outstanding.
    rig.sent();
    rig.tick(500);
    rig.push(1, &[part(20, 0)]);
    assert_eq!(rig.flush().rest, [want(0, 1)], "it asks, whatever it thought to be on its way");
}

#[test]
fn read_slots_ride_on_the_next_batch() {
    let mut rig = Rig::new(2);
    rig.push(1, &[part(1, 0)]);
    let sent = rig.sent();
    rig.results(0, &[done(&sent[0].blocks[0])], &[]);
    rig.push(2, &[part(1, 0)]);
    assert_eq!(rig.sent()[0].grants, [SlotGrant { slot: 0, generation: 2 }]);
}

#[test]
fn half_of_the_inbox_is_returned_without_a_batch() {
    let mut rig = Rig::new(4);
    assert_eq!(rig.results(0, &[], &[]), []);
    assert_eq!(rig.flush(), Happened::default(), "one of four can wait");
    rig.results(0, &[], &[]);
    let returned = |slot| Command::Notice {
        server: Rank(0),
        notice: Notice::Returned(SlotGrant { slot, generation: 2 }),
    };
    assert_eq!(rig.flush().rest, [returned(0), returned(1)]);
}

#[test]
fn a_repeated_result_is_ignored_and_known_before_its_slot_is_read() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0)]);
    let block = done(&rig.sent()[0].blocks[0]);
    let slot = rig.inbox[0][0];
    let mut out = Commands::default();
    assert!(rig.engine.notified(Rank(0), slot, &mut out));
    assert_eq!(rig.results(0, &[block], &grants(9..10)).len(), 1);
    assert!(!rig.engine.notified(Rank(0), slot, &mut out), "the server may be writing the next one");
    assert_eq!(out.list, []);
    let commands = rig.deliver(0, slot, &Rig::header(0), &[block], &grants(9..10), &[]);
    assert_eq!((commands, rig.engine.stats().duplicates), (vec![], 2));
}

#[test]
fn a_slot_that_was_never_granted_costs_the_channel() {
    let mut rig = Rig::new(4);
    let mut out = Commands::default();
    for slot in [
        SlotGrant { slot: 9, generation: 1 },
        SlotGrant { slot: 0, generation: 2 },
        SlotGrant { slot: INBOX, generation: 1 },
    ] {
        assert!(closed(&rig.deliver(0, slot, &Rig::header(0), &[], &[], &[])).contains("never granted"));
        assert!(!rig.engine.notified(Rank(0), slot, &mut out));
    }
    assert_eq!(out.list.len(), 3);
}
