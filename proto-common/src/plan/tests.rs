//! The plan: each rule from both sides of its bound, and in the order in which they count.

use super::*;
use crate::optimizer::{Adam, Lamb, Optimizer};

const MIB: u64 = 1 << 20;

fn facts() -> Facts {
    Facts {
        chunk_bytes: 256 << 10,
        workers: 2,
        servers: 1,
        lanes: 1,
        budget_bytes: 8 * MIB,
        spent_bytes: 0,
        drivers: vec![Driver::Verbs],
        checksums: false,
        policy: PlacementPolicy::Auto,
    }
}

fn fixed(key: u64, bytes: u64) -> Subject {
    let dims = vec![Dim::Fixed(bytes / 4)];
    Subject { key: Key(key), dims, element_bytes: 4, coded: false, whole: false, trace: None }
}

fn traced(key: u64, bytes: u64, contributions: u64) -> Subject {
    let trace = Trace { contributions, bytes_min: bytes, bytes_max: bytes, single_writer: false };
    Subject { trace: Some(trace), ..fixed(key, bytes) }
}

fn one(subject: &Subject, facts: &Facts) -> Planned {
    plan(std::slice::from_ref(subject), facts).remove(0)
}

fn placements(subjects: &[Subject], facts: &Facts) -> Vec<Placement> {
    plan(subjects, facts).into_iter().map(|planned| planned.placement).collect()
}

#[test]
fn over_sockets_slots_are_fastest() {
    for drivers in [vec![Driver::Tcp], vec![Driver::Shm, Driver::Tcp]] {
        let planned = one(&fixed(1, 4 * MIB), &Facts { drivers, ..facts() });
        assert_eq!(planned.placement, Placement::Slot);
        assert!(planned.why.contains("tcp"), "{planned:?}");
    }
}

#[test]
fn over_shared_memory_nothing_is_copied_but_what_is_small() {
    let facts = Facts { drivers: vec![Driver::Shm], ..facts() };
    for (bytes, placement, why) in [
        (IN_PLACE_BYTES_MIN - 4, Placement::Slot, "small"),
        (IN_PLACE_BYTES_MIN, Placement::RendezvousRead, "reduce it in the worker's memory"),
    ] {
        let planned = one(&fixed(1, bytes), &facts);
        assert_eq!(planned.placement, placement);
        assert!(planned.why.contains(why), "{planned:?}");
    }
    let set = Facts { policy: PlacementPolicy::Slot, ..facts };
    assert_eq!(one(&fixed(1, MIB), &set).placement, Placement::Slot);
}

#[test]
fn small_ones_share_batches() {
    let chunk_bytes = facts().chunk_bytes;
    let below = one(&fixed(1, chunk_bytes - 4), &facts());
    assert_eq!(below.placement, Placement::Slot);
    assert_eq!(below.why, "smaller than a chunk (256.0 KiB): shares batches");
    let at = one(&fixed(1, chunk_bytes), &facts());
    assert_eq!(
        (at.placement, at.buffer_bytes),
        (Placement::Static, 512 << 10),
        "a whole chunk for each worker"
    );
}

#[test]
fn the_budget_bounds_key_buffers() {
    let planned = one(&fixed(1, 4 * MIB), &facts());
    assert_eq!(planned.placement, Placement::Static);
    assert_eq!(planned.why, "4.0 MiB x 2 workers fit the key-buffer budget of 8.0 MiB per server");
    let beyond = one(&fixed(1, 4 * MIB + 4), &facts());
    assert_eq!(beyond.placement, Placement::Slot);
    assert!(beyond.why.contains("do not fit the remaining 8.0 MiB"), "{beyond:?}");
    let spent = one(&fixed(1, 4 * MIB), &Facts { spent_bytes: 1, ..facts() });
    assert_eq!(spent.placement, Placement::Slot, "others were placed before");
    let shared = one(&fixed(1, 8 * MIB), &Facts { servers: 2, ..facts() });
    assert_eq!(shared.placement, Placement::Static, "two servers have half each");
}

#[test]
fn a_tensor_that_lies_whole_has_the_room_of_one_lane() {
    let facts = Facts { servers: 2, lanes: 2, ..facts() };
    let whole = |bytes| Subject { whole: true, ..fixed(1, bytes) };
    let at = one(&whole(2 * MIB), &facts);
    assert_eq!((at.placement, at.buffer_bytes), (Placement::Static, 8 * MIB), "half of it on each lane");
    let beyond = one(&whole(2 * MIB + 4), &facts);
    assert_eq!(beyond.placement, Placement::Slot);
    assert!(beyond.why.contains("2 workers on one lane do not fit"), "{beyond:?}");
    assert_eq!(one(&fixed(1, 2 * MIB + 4), &facts).placement, Placement::Static, "another is spread");
}

#[test]
fn the_budget_goes_to_the_small_and_to_the_busy_first() {
    let subjects = [fixed(1, 4 * MIB), fixed(2, MIB), fixed(3, 3 * MIB)];
    let found = placements(&subjects, &facts());
    assert_eq!(found, [Placement::Slot, Placement::Static, Placement::Static]);
    let subjects = [traced(1, 4 * MIB, 5), traced(2, MIB, 1), traced(3, 3 * MIB, 1)];
    let found = placements(&subjects, &facts());
    assert_eq!(found, [Placement::Static, Placement::Slot, Placement::Slot]);
}

#[test]
fn a_trace_says_more_than_a_declaration() {
    let idle = one(&traced(1, MIB, 0), &facts());
    assert_eq!(idle.placement, Placement::Slot);
    assert!(idle.why.contains("no contribution"));
    let mut changing = traced(1, MIB, 2);
    changing.trace = changing.trace.map(|trace| Trace { bytes_min: 8, ..trace });
    let changing = one(&changing, &facts());
    assert_eq!(changing.placement, Placement::RendezvousRead);
    assert_eq!(changing.why, "the length changed between operations");
}

#[test]
fn one_writer_needs_no_buffer_of_its_own() {
    let mut single = traced(1, MIB, 2);
    assert_eq!(one(&single, &facts()).placement, Placement::Static);
    assert_eq!(one(&single, &Facts { workers: 1, ..facts() }).placement, Placement::Slot);
    single.trace = single.trace.map(|trace| Trace { single_writer: true, ..trace });
    let single = one(&single, &facts());
    assert_eq!((single.placement, single.buffer_bytes), (Placement::Slot, 0));
    assert!(single.why.contains("one worker"), "{single:?}");
}

#[test]
fn a_length_that_changes_is_read_whatever_the_driver() {
    for (max, drivers) in [(None, Driver::Tcp), (Some(9), Driver::Shm), (None, Driver::Verbs)] {
        let dims = vec![Dim::Dynamic { max }, Dim::Fixed(64)];
        let subject = Subject { dims, ..fixed(1, 4) };
        assert_eq!(subject.bytes_max(), max.map(|max| max * 64 * 4));
        let planned = one(&subject, &Facts { drivers: vec![drivers], ..facts() });
        assert_eq!(planned.placement, Placement::RendezvousRead);
    }
}

#[test]
fn what_is_set_counts_and_checksums_count_more() {
    let policies = [
        (PlacementPolicy::Slot, Placement::Slot),
        (PlacementPolicy::Static, Placement::Static),
        (PlacementPolicy::RendezvousRead, Placement::RendezvousRead),
        (PlacementPolicy::RendezvousWrite, Placement::RendezvousWrite),
    ];
    for (policy, placement) in policies {
        let facts = Facts { policy, drivers: vec![Driver::Shm], ..facts() };
        let planned = one(&fixed(1, 16), &facts);
        assert_eq!(planned.placement, placement);
        assert_eq!(planned.why, format!("set by transport.placement = {placement}"));
        let checked = one(&fixed(1, 16), &Facts { checksums: true, ..facts });
        assert_eq!(checked.placement, Placement::Slot);
    }
}

#[test]
fn static_by_setting_says_what_has_no_room() {
    let facts = Facts { policy: PlacementPolicy::Static, ..facts() };
    let at = one(&fixed(1, 4 * MIB), &facts);
    assert_eq!((at.buffer_bytes, at.why.as_str()), (8 * MIB, "set by transport.placement = static"));
    let beyond = one(&fixed(1, 4 * MIB + 4), &facts);
    assert_eq!((beyond.placement, beyond.buffer_bytes), (Placement::Static, 8 * MIB), "what there is");
    assert!(beyond.why.contains("do not fit the remaining 8.0 MiB"), "{beyond:?}");
    assert!(beyond.why.ends_with("tensors without room use slots"), "{beyond:?}");
    let unbounded = Subject { dims: vec![Dim::Dynamic { max: None }], ..fixed(2, 4) };
    let both = plan(&[unbounded, fixed(1, 2 * MIB)], &facts);
    assert!(both[0].why.contains("any length x 2 workers do not fit the remaining 4.0 MiB"), "{both:?}");
    let spent: u64 = both.iter().map(|planned| planned.buffer_bytes).sum();
    assert_eq!(spent, facts.budget_bytes, "never more than the budget");
}

#[test]
fn words_are_those_of_the_settings() -> Result<(), serde_json::Error> {
    for placement in Placement::ALL {
        assert_eq!(serde_json::to_string(&placement)?, format!("\"{placement}\""));
        let policy: PlacementPolicy = serde_json::from_str(&format!("\"{placement}\""))?;
        assert_eq!(policy.fixed(), Some(placement));
    }
    assert_eq!(serde_json::from_str::<PlacementPolicy>("\"auto\"")?.fixed(), None);
    Ok(())
}

#[test]
fn bytes_beyond_counting_fit_no_budget() {
    let dims = vec![Dim::Fixed(u64::MAX), Dim::Fixed(2)];
    let huge = Subject { dims, ..fixed(1, 4) };
    assert_eq!(huge.bytes_max(), None);
    assert_eq!(one(&huge, &facts()).placement, Placement::Slot);
    assert_eq!((size(1023), size(1536)), ("1023 B".to_owned(), "1.5 KiB".to_owned()));
}

#[test]
fn declared_tensors_are_of_one_length_or_dynamic() {
    let subject = Subject::of(&TensorSpec::f32(7, 100, Optimizer::sum()), None);
    assert_eq!((subject.key, subject.bytes_max(), subject.is_dynamic()), (Key(7), Some(400), false));
    let subject = Subject::of(&TensorSpec::dynamic_f32(7, 100), None);
    assert_eq!((subject.bytes_max(), subject.is_dynamic()), (Some(400), true));
    let of = |rule| Subject::of(&TensorSpec::f32(7, 100, rule), None).whole;
    assert_eq!((of(Optimizer::usual(Lamb::default())), of(Optimizer::usual(Adam::default()))), (true, false));
}
