//! Copies that a server had before: it is asked for the one that a decision means, and says nothing for another.

use super::*;

/// Whoever has a copy may be to give it up, and to make it anew: it must not say yes for the one that it gives up.
#[test]
fn a_copy_answers_for_the_decision_that_it_is_asked_about() {
    let (mut engine, slots) = copy();
    let later = Block { operation: Operation(epoch(5).to_number()), ..record(OpKind::CopyCheck, 0) };
    let list = deliver(&mut engine, slots[0], &record_header(), later);
    assert!(
        matches!(list[0], Command::TellPrimary { notice: Notice::Judged(_, Judgement::Later), .. }),
        "{list:?}"
    );
    let list = roles(&mut engine, 5, Role::Copy { of: OTHER });
    assert!(list.contains(&Command::TellPrimary { from: OTHER, notice: Notice::Ready }), "{list:?}");
    let list = deliver(&mut engine, slots[1], &record_header(), later);
    assert!(matches!(list[0], Command::TellPrimary { notice: Notice::Judged(_, Judgement::Confirmed), .. }));
}

/// Outside mode sync its newest update may be one that nobody else has: others served meanwhile.
#[test]
fn what_it_has_of_an_earlier_time_as_a_copy_counts_as_nothing_also_where_it_heard_of_nothing_in_between() {
    let (mut engine, slots) = copy();
    let header = record_header();
    deliver(&mut engine, slots[0], &header, record(OpKind::CopyCheck, 0));
    let list = deliver(&mut engine, slots[1], &header, record(OpKind::CopyUpdate, 1));
    let says = |list: &[Command], judgement| {
        let said = |command: &Command| matches!(command, Command::TellPrimary { notice: Notice::Judged(_, said), .. } if *said == judgement);
        list.iter().any(said)
    };
    assert!(says(&list, Judgement::Confirmed), "{list:?}");
    roles(&mut engine, 5, Role::Copy { of: OTHER });
    let anew = Block { operation: Operation(epoch(5).to_number()), ..record(OpKind::CopyCheck, 1) };
    let again = SlotGrant { generation: slots[0].generation + 1, ..slots[0] };
    let list = deliver(&mut engine, again, &header, anew);
    assert!(says(&list, Judgement::Wanting), "{list:?}");
}
