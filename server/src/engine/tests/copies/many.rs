//! Streams of many chunks: a server that comes back is asked about each once, in time that grows with their number and not with
//! its square.

use super::*;

/// With a step for each pair of chunks, these would take minutes.
const CHUNKS: u64 = 50_000;

#[test]
fn a_server_that_comes_back_is_asked_about_each_chunk() {
    let mut rig = Rig::new(config(1));
    let given: Vec<_> = (1..=CHUNKS).map(|key| (spec(key), BACKED)).collect();
    rig.engine.roles(epoch(2), &given, &mut Commands::default());
    rig.engine.stream_up(OTHER, Incarnation(5), &grants(4), 1 << 20, &mut Commands::default());
    let checks = |rig: &mut Rig, judgement| {
        let mut asked = 0;
        loop {
            let all = records(rig);
            if all.is_empty() {
                return asked;
            }
            for (op, _, slot) in all {
                asked += u64::from(op == OpKind::CopyCheck);
                let judgement = if op == OpKind::CopyCheck { judgement } else { Judgement::Confirmed };
                judged(rig, slot, judgement);
            }
        }
    };
    assert_eq!(checks(&mut rig, Judgement::Later), CHUNKS);
    assert_eq!(checks(&mut rig, Judgement::Later), 0, "it says when it is to be asked again");
    assert_eq!(told(&mut rig, Notice::Ready), []);
    assert_eq!(checks(&mut rig, Judgement::Confirmed), CHUNKS);
    assert_eq!(told(&mut rig, Notice::Ready), []);
    assert_eq!(checks(&mut rig, Judgement::Confirmed), 0, "there is nothing left to ask");
    assert_eq!(rig.engine.copies(), (CHUNKS as usize, CHUNKS as usize, 0));
}
