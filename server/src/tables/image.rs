//! All rows of a home as bytes, and back: what a new copy begins with. It must not know how they travel.

use super::steps::Steps;
use super::{Rows, TABLES_MAX, Tables};
use proto_common::ids::ChunkId;
use proto_common::message::{decode, encode};
use proto_common::table::TableSpec;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a table before its specification: of that, parts, and rows. Behind it are the counts of pushes to rows that are not
/// admitted, and which pushes there were.
const LEAD_BYTES: usize = 16;
/// Bytes of a row beside its numbers: its id, and how many pushes it had.
const BESIDE_BYTES: usize = 16;

impl Tables {
    /// Writes all tables of a home behind what is in `out`.
    pub fn save_home(&self, home: ChunkId, out: &mut Vec<u8>) -> Result<(), String> {
        let mut tables: Vec<&Rows> =
            self.tables.iter().filter(|((at, _), _)| *at == home).map(|(_, rows)| rows).collect();
        tables.sort_unstable_by_key(|rows| rows.spec().key);
        for rows in tables {
            let spec = encode(rows.spec()).map_err(|error| error.to_string())?;
            // Bounded by what one message, and one cluster, may have.
            out.extend((spec.len() as u32).to_le_bytes());
            out.extend((rows.parts() as u32).to_le_bytes());
            out.extend((rows.places() as u64).to_le_bytes());
            out.extend(spec);
            let (counted, counts) = rows.counts();
            out.extend(counted.to_le_bytes());
            out.extend(counts);
            rows.steps.save(out);
            for (id, pushes, numbers) in rows.in_order().filter_map(|place| rows.at(place)) {
                out.extend(id.to_le_bytes());
                out.extend(pushes.to_le_bytes());
                out.extend_from_slice(numbers.as_bytes());
            }
        }
        Ok(())
    }

    /// A home's tables become what these bytes say. Nothing changes on error.
    pub fn load_home(&mut self, home: ChunkId, mut bytes: &[u8]) -> Result<(), String> {
        let mut tables: Vec<Rows> = Vec::new();
        while !bytes.is_empty() {
            let rows = read_table(&mut bytes).ok_or("rows of a home are cut short, or malformed")?;
            if tables.iter().any(|other| other.spec().key == rows.spec().key) {
                return Err("a home has a table twice".into());
            }
            if tables.len() == TABLES_MAX {
                return Err(format!("a home has more than {TABLES_MAX} tables"));
            }
            tables.push(rows);
        }
        self.tables.retain(|(at, _), _| *at != home);
        self.tables.extend(tables.into_iter().map(|rows| ((home, rows.spec().key), rows)));
        self.planned.remove(&home);
        self.count_bytes();
        Ok(())
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

fn read_table(bytes: &mut &[u8]) -> Option<Rows> {
    let lead = take(bytes, LEAD_BYTES)?;
    let word = |at: usize| lead.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
    let (spec_bytes, parts) = (word(0)? as usize, word(4)? as usize);
    let count = usize::try_from(lead.last_chunk().map(|count| u64::from_le_bytes(*count))?).ok()?;
    let spec: TableSpec = decode(take(bytes, spec_bytes)?).ok()?;
    spec.validate().ok()?;
    let mut rows = Rows::new(spec, parts);
    let counted = u64::read_from_bytes(take(bytes, size_of::<u64>())?).ok()?;
    let counts = take(bytes, rows.counts().1.len())?;
    if !rows.set_counts(counted, counts) {
        return None;
    }
    rows.steps = Steps::read(bytes)?;
    let mut numbers = vec![0f32; rows.row_numbers()];
    for _ in 0..count {
        let beside = take(bytes, BESIDE_BYTES)?;
        let (id, pushes) = (u64::read_from_prefix(beside).ok()?.0, u64::read_from_suffix(beside).ok()?.1);
        let row = take(bytes, size_of_val(&numbers[..]))?;
        numbers.as_mut_bytes().copy_from_slice(row);
        if !rows.put(id, pushes, &numbers) {
            return None;
        }
    }
    // Fewer where a row stands there twice, or more than are kept.
    (rows.places() == count).then_some(rows)
}

#[cfg(test)]
mod tests {
    use super::super::Applied;
    use super::*;
    use proptest::prelude::*;
    use proto_common::optimizer::{Adam, Optimizer};
    use proto_common::table::{HOMES, Initial, PUSH_HEAD_BYTES, PushHead, PushStep, RowOp};

    fn contribution(op: RowOp, key: u32, count: usize, body: &[u8]) -> Vec<u8> {
        let head = PushHead { op, key, count: count as u32, parts: 1, room: u32::MAX, which: None };
        [&head.to_bytes()[..], body].concat()
    }

    fn push_of(ids: &[u64]) -> Vec<u8> {
        contribution(
            RowOp::Push,
            3,
            ids.len(),
            &[ids.as_bytes(), vec![1f32; 2 * ids.len()].as_bytes()].concat(),
        )
    }

    fn declaration_of(spec: &TableSpec) -> Vec<u8> {
        let body = encode(spec).unwrap();
        contribution(RowOp::Declare, spec.key, body.len(), &[&body[..], &[0; 3]].concat())
    }

    /// Planned and applied where it is served, and then by whoever has a copy.
    fn contribute(one: &mut Tables, home: ChunkId, copies: &mut [Tables], mut bytes: Vec<u8>) -> Applied {
        one.plan(home, &mut bytes, &|_, _| Ok(()));
        let applied = one.apply(home, &bytes, &|_, _| Ok(()));
        for copy in copies {
            assert_eq!(copy.apply(home, &bytes, &|_, _| Ok(())), applied);
        }
        applied
    }

    fn declared(home: ChunkId, spec: &TableSpec) -> Tables {
        let mut tables = Tables::default();
        assert_eq!(contribute(&mut tables, home, &mut [], declaration_of(spec)), Applied::Done);
        tables
    }

    fn saved(tables: &Tables, home: ChunkId) -> Vec<u8> {
        let mut out = Vec::new();
        tables.save_home(home, &mut out).unwrap();
        out
    }

    fn spec() -> TableSpec {
        TableSpec::new(3, 2, Optimizer::sum(), Initial::Constant(0.0))
    }

    fn home() -> ChunkId {
        ChunkId::new(HOMES, 0)
    }

    #[test]
    fn a_copy_of_a_home_goes_on_as_the_home_does() {
        let adam = Optimizer::mean(Adam::default(), 0.1);
        for spec in [
            TableSpec::new(3, 2, adam, Initial::Constant(1.0)),
            TableSpec { rows_max: 3, ..spec() },
            TableSpec { admit_after: 2, ..spec() },
        ] {
            let (mut one, mut other) = (declared(home(), &spec), [Tables::default()]);
            for ids in [&[1u64, 2][..], &[3, 1]] {
                contribute(&mut one, home(), &mut [], push_of(ids));
            }
            other[0].load_home(home(), &saved(&one, home())).unwrap();
            assert_eq!(other[0].bytes, one.bytes);
            for ids in [&[5u64][..], &[1, 3]] {
                contribute(&mut one, home(), &mut other, push_of(ids));
            }
            assert_eq!(saved(&one, home()), saved(&other[0], home()), "{spec:?}");
            assert!(saved(&other[0], ChunkId::new(8, 0)).is_empty(), "another home");
        }
    }

    fn push_in_step(rank: u32, step: u64, nth: u32, ids: &[u64]) -> Vec<u8> {
        let mut bytes = push_of(ids);
        let head = PushHead::from_bytes(&bytes).unwrap();
        let head = PushHead { which: Some(PushStep { rank, step, nth }), ..head };
        bytes[..PUSH_HEAD_BYTES].copy_from_slice(&head.to_bytes());
        bytes
    }

    #[test]
    fn what_a_worker_that_came_again_repeats_of_a_step_counts_once_at_copies_too() {
        let of = push_in_step;
        let (mut one, mut copies) = (declared(home(), &spec()), [declared(home(), &spec())]);
        for push in [of(0, 4, 0, &[1]), of(0, 5, 0, &[1]), of(0, 5, 1, &[2]), of(1, 5, 0, &[1])] {
            assert_eq!(contribute(&mut one, home(), &mut copies, push), Applied::Done);
        }
        let before = saved(&one, home());
        // One that has all of it from its server, and not as it came.
        let [kept] = copies;
        let mut filled = Tables::default();
        filled.load_home(home(), &before).unwrap();
        let mut copies = [kept, filled];
        for push in [of(0, 5, 0, &[1]), of(0, 5, 1, &[2]), of(1, 5, 0, &[1])] {
            assert_eq!(contribute(&mut one, home(), &mut copies, push), Applied::Done);
        }
        assert_eq!(saved(&one, home()), before, "they were repetitions");
        for push in [of(0, 5, 2, &[3]), of(1, 6, 0, &[1]), push_of(&[1])] {
            assert_eq!(contribute(&mut one, home(), &mut copies, push), Applied::Done);
        }
        assert_eq!(saved(&one, home()).len(), before.len() + 16 + 8, "a row more");
        copies.iter().for_each(|copy| assert_eq!(saved(copy, home()), saved(&one, home())));
    }

    #[test]
    fn copies_leave_out_what_their_server_leaves_out_however_little_room_they_have() {
        let late = TableSpec { admit_after: 2, ..spec() };
        let (mut one, mut copies) = (Tables::default(), [Tables::default()]);
        one.limit(2 << 20);
        copies[0].limit(1);
        assert_eq!(contribute(&mut one, home(), &mut copies, declaration_of(&late)), Applied::Done);
        assert_eq!(contribute(&mut one, home(), &mut copies, push_of(&[4])), Applied::Done);
        assert_eq!(copies[0].stats(|_| true).rows, 0, "it is not admitted");
        let mut ids = 0..;
        while contribute(&mut one, home(), &mut copies, push_of(&[ids.start, ids.start])) == Applied::Done {
            ids.next();
        }
        let rows = one.stats(|_| true).rows;
        assert!(rows > 1000 && one.bytes <= 2 << 20, "{rows} rows, {} bytes", one.bytes);
        assert_eq!((copies[0].stats(|_| true).rows, copies[0].bytes), (rows, one.bytes));
        copies[0].keep(|_| false);
        assert_eq!(copies[0].bytes, 0);
    }

    #[test]
    fn a_step_that_was_left_out_in_part_is_left_out_again_wherever_its_rows_are_by_then() {
        let (mut one, mut copies) = (Tables::default(), [Tables::default()]);
        one.limit(2 << 20);
        contribute(&mut one, home(), &mut [], declaration_of(&spec()));
        let mut ids = 0..;
        while contribute(&mut one, home(), &mut [], push_of(&[ids.start])) == Applied::Done {
            ids.next();
        }
        let step = |step, id| push_in_step(0, step, 0, &[id]);
        assert_eq!(contribute(&mut one, home(), &mut [], step(5, ids.start)), Applied::LeftOut);
        let before = saved(&one, home());
        copies[0].load_home(home(), &before).unwrap();
        assert_eq!(contribute(&mut one, home(), &mut copies, step(5, ids.start)), Applied::LeftOut);
        assert_eq!((saved(&one, home()), saved(&copies[0], home())), (before.clone(), before));
        assert_eq!(contribute(&mut one, home(), &mut copies, step(6, 0)), Applied::Done);
        assert_eq!(saved(&one, home()), saved(&copies[0], home()));
    }

    #[test]
    fn rows_that_were_never_admitted_push_none_out_of_a_copy() {
        let few = TableSpec { admit_after: 3, rows_max: 4, ..spec() };
        let (mut one, mut copies) = (declared(home(), &few), [declared(home(), &few)]);
        contribute(&mut one, home(), &mut copies, push_of(&[1, 1, 1, 2, 2, 2]));
        for id in 100..200 {
            contribute(&mut one, home(), &mut copies, push_of(&[id]));
        }
        assert_eq!(one.stats(|_| true).rows, 2);
        assert_eq!(saved(&one, home()), saved(&copies[0], home()));
    }

    #[test]
    fn what_is_planned_and_thrown_away_takes_no_room() {
        let mut tables = declared(home(), &spec());
        tables.limit(tables.bytes + (1 << 20));
        let before = tables.bytes;
        for _ in 0..3 {
            tables.plan(home(), &mut push_of(&[1, 2, 3]), &|_, _| Ok(()));
            assert!(tables.bytes > before, "room is kept for it");
            let body = encode(&TableSpec { key: 9, ..spec() }).unwrap();
            tables.plan(home(), &mut contribution(RowOp::Declare, 3, body.len(), &body), &|_, _| Ok(()));
            assert_eq!(tables.bytes, before, "the key is another than the head's");
        }
        // Two homes share the bytes: what one was promised the other does not get.
        let other = ChunkId::new(8, 0);
        assert_eq!(contribute(&mut tables, other, &mut [], declaration_of(&spec())), Applied::Done);
        tables.limit(
            tables.bytes + tables.tables[&(other, 3)].bytes_of(1) - tables.tables[&(other, 3)].bytes(),
        );
        let mut first = push_of(&[1]);
        tables.plan(home(), &mut first, &|_, _| Ok(()));
        assert_eq!(contribute(&mut tables, other, &mut [], push_of(&[2])), Applied::LeftOut);
        assert_eq!(tables.apply(home(), &first, &|_, _| Ok(())), Applied::Done);
        assert_eq!(tables.bytes, tables.most_bytes);
    }

    #[test]
    fn a_copy_without_memory_for_a_row_says_what_it_lacks() {
        let (mut one, mut copy) = (declared(home(), &spec()), declared(home(), &spec()));
        copy.tables.values_mut().for_each(Rows::starve);
        let mut bytes = push_of(&[1]);
        one.plan(home(), &mut bytes, &|_, _| Ok(()));
        assert_eq!(one.apply(home(), &bytes, &|_, _| Ok(())), Applied::Done);
        let lacking = copy.apply(home(), &bytes, &|_, _| Ok(()));
        assert_eq!(lacking, Applied::Lacking("no memory for rows of table 3".into()));
        // A server says so itself, to whoever pushes.
        one = declared(home(), &spec());
        one.tables.values_mut().for_each(Rows::starve);
        assert_eq!(contribute(&mut one, home(), &mut [], push_of(&[1])), Applied::LeftOut);
    }

    #[test]
    fn a_table_that_cannot_begin_begins_nowhere() {
        let (mut one, mut copy) = (Tables::default(), Tables::default());
        let mut bytes = declaration_of(&spec());
        one.plan(home(), &mut bytes, &|_, _| Err("damaged".into()));
        for tables in [&mut one, &mut copy] {
            assert_eq!(tables.apply(home(), &bytes, &|_, _| Ok(())), Applied::LeftOut);
            assert_eq!((tables.bytes, tables.tables.len()), (0, 0));
        }
        one.plan(home(), &mut bytes, &|_, _| Ok(()));
        assert!(one.tables.is_empty(), "nobody is told of it before it is in force");
        let damaged = copy.apply(home(), &bytes, &|_, _| Err("damaged".into()));
        assert_eq!(damaged, Applied::Lacking("damaged".into()));
        assert_eq!(one.apply(home(), &bytes, &|_, _| Err("read once".into())), Applied::Done);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn a_copy_holds_exactly_what_its_server_holds(
            pushes in prop::collection::vec(prop::collection::vec(0u64..3000, 1..200), 1..60),
            (admit_after, rows_max) in (0u32..4, prop_oneof![Just(0u64), 5u64..2000]),
            (joins, most_bytes) in (0usize..60, (1u64 << 20) + 60_000..(1 << 20) + 400_000),
        ) {
            let spec = TableSpec { admit_after, rows_max, ..spec() };
            let mut one = Tables::default();
            one.limit(most_bytes);
            let mut copies = [Tables::default(), Tables::default()];
            contribute(&mut one, home(), &mut copies[..1], declaration_of(&spec));
            for (at, ids) in pushes.iter().enumerate() {
                if at == joins {
                    copies[1].load_home(home(), &saved(&one, home())).unwrap();
                }
                let count = if at < joins { 1 } else { 2 };
                contribute(&mut one, home(), &mut copies[..count], push_of(ids));
                prop_assert!(one.bytes <= most_bytes);
                for copy in &copies[..count] {
                    prop_assert_eq!(copy.bytes, one.bytes);
                    prop_assert!(saved(copy, home()) == saved(&one, home()), "after push {}", at);
                }
            }
        }
    }

    #[test]
    fn rows_that_stand_there_twice_are_refused_and_so_are_more_than_are_kept() {
        let home = ChunkId::new(7, 0);
        let plain = TableSpec::new(3, 2, Optimizer::sum(), Initial::Constant(0.0));
        let mut tables = declared(home, &plain);
        let rows = tables.tables.get_mut(&(home, 3)).unwrap();
        assert!(rows.put(1, 0, &[1.0; 2]) && rows.put(2, 0, &[1.0; 2]));
        let whole = saved(&tables, home);
        let row = BESIDE_BYTES + plain.row_bytes();
        let mut twice = whole.clone();
        twice.copy_within(whole.len() - 2 * row..whole.len() - row, whole.len() - row);
        assert!(tables.load_home(home, &twice).is_err());
        let few = encode(&TableSpec { rows_max: 1, ..plain.clone() }).unwrap();
        let mut many = whole.clone();
        many[LEAD_BYTES..][..few.len()].copy_from_slice(&few);
        assert!(tables.load_home(home, &many).is_err());
        assert_eq!(saved(&tables, home), whole, "nothing has changed");
    }

    #[test]
    fn a_home_has_so_many_tables_at_most() {
        let home = ChunkId::new(7, 0);
        let image = |tables: usize| {
            let mut image = Vec::new();
            for key in 0..tables {
                let spec = TableSpec::new(key as u32, 2, Optimizer::sum(), Initial::Constant(0.0));
                image.extend(saved(&declared(home, &spec), home));
            }
            image
        };
        let mut tables = Tables::default();
        tables.load_home(home, &image(TABLES_MAX)).unwrap();
        assert!(tables.load_home(home, &image(TABLES_MAX + 1)).unwrap_err().contains("1024 tables"));
    }

    #[test]
    fn what_is_cut_short_is_refused() {
        let (home, mut tables) = (home(), declared(home(), &spec()));
        contribute(&mut tables, home, &mut [], push_of(&[1, 2]));
        let whole = saved(&tables, home);
        for bytes in 1..whole.len() {
            assert!(tables.load_home(home, &whole[..bytes]).is_err(), "{bytes} bytes");
        }
        assert!(tables.load_home(home, &whole.repeat(2)).unwrap_err().contains("twice"));
        assert_eq!(saved(&tables, home), whole, "nothing has changed");
    }
}
