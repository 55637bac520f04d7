//! A member that reaches for the slots of other workers.

use super::*;

/// What honest workers write lies there: it is neither spoiled nor seen.
#[test]
fn slots_of_other_workers_over_tcp() {
    const NAN: [u8; 64] = [0xff; 64];
    let mut scene = scene(Driver::Tcp, &[]);
    // The honest worker's payload waits in its slot until the rogue has contributed, too.
    let mut channel = scene.open();
    scene.round(&mut channel);
    let of_others = |channel: &Channel, of: u64| {
        let theirs = (0..16).filter(|slot| channel.credits.iter().all(|grant| grant.slot != *slot));
        let slot = theirs.into_iter().nth(of as usize % 8).expect("the rogue has not all of them");
        let inbox = &channel.server_inbox;
        RemoteSpan { key: RemoteKey(inbox.region), offset: u64::from(slot) * inbox.slot_bytes + 4096 }
    };
    for slot in 0..8 {
        scene.expect_closed("a write to another's slot", |_, channel| {
            channel.write(of_others(channel, slot), &NAN, None);
        });
        scene.expect_closed("a read of another's slot", |_, channel| {
            channel.read(of_others(channel, slot), 64);
        });
    }
    // Its own slot, once it was used, is not its own any more.
    scene.expect_closed("a write to a slot after its batch", |scene, channel| {
        let batch = scene.push(channel);
        let slot = channel.credit();
        channel.post(slot, &batch);
        let inbox = &channel.server_inbox;
        let offset = u64::from(slot.slot) * inbox.slot_bytes;
        channel.write(RemoteSpan { key: RemoteKey(inbox.region), offset }, &NAN, None);
    });
    let server = scene.cluster.everyone().find(|of| of.name().starts_with("server")).expect("a server");
    let said = server.log().text();
    for what in ["a write of 64 bytes", "a read of 64 bytes"] {
        let named = |line: &str| line.contains(what) && line.contains("which it was not granted");
        assert!(said.lines().any(|line| named(line) && line.contains("worker=1")), "{what}: {said}");
    }
    scene.finish();
}
