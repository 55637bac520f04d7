//! All rows of a home as bytes, and back: what a new copy begins with. It must not know how they travel.

use super::{Rows, TABLES_MAX, Tables};
use proto_common::ids::ChunkId;
use proto_common::message::{decode, encode};
use proto_common::table::TableSpec;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a table before its specification: of that, parts, and rows.
const LEAD_BYTES: usize = 16;
/// Bytes of a row beside its numbers: its id, and how many pushes it had.
const BESIDE_BYTES: usize = 16;

impl Tables {
    /// Writes all tables of a home behind what is in `out`.
    pub(crate) fn save_home(&self, home: ChunkId, out: &mut Vec<u8>) -> Result<(), String> {
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
            for (id, pushes, numbers) in rows.in_order().filter_map(|place| rows.at(place)) {
                out.extend(id.to_le_bytes());
                out.extend(pushes.to_le_bytes());
                out.extend_from_slice(numbers.as_bytes());
            }
        }
        Ok(())
    }

    /// A home's tables become what these bytes say. Nothing changes on error.
    pub(crate) fn load_home(&mut self, home: ChunkId, mut bytes: &[u8]) -> Result<(), String> {
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
        self.bytes = self.tables.values().map(Rows::bytes).sum();
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
    rows.set_copy(true);
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
    use super::*;
    use proto_common::optimizer::Optimizer;
    use proto_common::table::{Initial, PushHead, RowOp};

    fn push(tables: &mut Tables, home: ChunkId, serves: bool, ids: &[u64]) -> bool {
        let head = PushHead { op: RowOp::Push, key: 3, count: ids.len() as u32, parts: 0 };
        let bytes = [&head.to_bytes()[..], ids.as_bytes(), vec![1f32; 2 * ids.len()].as_bytes()].concat();
        tables.apply(home, serves, &bytes, &|_, _| Ok(()))
    }

    fn declared(home: ChunkId, spec: &TableSpec) -> Tables {
        let mut tables = Tables::default();
        let body = encode(spec).unwrap();
        let head = PushHead { op: RowOp::Declare, key: spec.key, count: body.len() as u32, parts: 1 };
        let padded = [&head.to_bytes()[..], &body, &[0; 3]].concat();
        assert!(tables.apply(home, true, &padded, &|_, _| Ok(())));
        tables
    }

    fn saved(tables: &Tables, home: ChunkId) -> Vec<u8> {
        let mut out = Vec::new();
        tables.save_home(home, &mut out).unwrap();
        out
    }

    #[test]
    fn a_copy_of_a_home_goes_on_as_the_home_does() {
        let home = ChunkId::new(7, 0);
        let adam = Optimizer::mean(proto_common::optimizer::Rule::Adam(Default::default()), 0.1);
        for spec in [
            TableSpec::new(3, 2, adam, Initial::Constant(1.0)),
            TableSpec { rows_max: 3, ..TableSpec::new(3, 2, Optimizer::sum(), Initial::Constant(0.0)) },
        ] {
            let (mut one, mut other) = (declared(home, &spec), Tables::default());
            for ids in [&[1u64, 2][..], &[3, 1]] {
                assert!(push(&mut one, home, true, ids));
            }
            other.load_home(home, &saved(&one, home)).unwrap();
            assert_eq!(other.bytes, one.bytes);
            for ids in [&[5u64][..], &[1, 3]] {
                assert!(push(&mut one, home, true, ids) && push(&mut other, home, false, ids));
            }
            assert_eq!(saved(&one, home), saved(&other, home), "{spec:?}");
            assert!(saved(&other, ChunkId::new(8, 0)).is_empty(), "another home");
        }
    }

    #[test]
    fn copies_take_what_their_server_has_admitted_and_had_room_for() {
        let home = ChunkId::new(7, 0);
        let spec =
            TableSpec { admit_after: 2, ..TableSpec::new(3, 2, Optimizer::sum(), Initial::Constant(0.0)) };
        let (mut one, mut other) = (declared(home, &spec), declared(home, &spec));
        other.limit(1);
        assert!(push(&mut one, home, true, &[4]) && push(&mut other, home, false, &[4]));
        assert_eq!((one.stats(|_| true).rows, other.stats(|_| true).rows), (0, 1));
        assert!(!push(&mut other, home, true, &[5, 5]), "it serves, and has no room");
        other.keep(|_| false);
        assert_eq!(other.bytes, 0);
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
        let home = ChunkId::new(7, 0);
        let spec = TableSpec::new(3, 2, Optimizer::sum(), Initial::Constant(0.0));
        let mut tables = declared(home, &spec);
        assert!(push(&mut tables, home, true, &[1, 2]));
        let whole = saved(&tables, home);
        for bytes in 1..whole.len() {
            assert!(tables.load_home(home, &whole[..bytes]).is_err(), "{bytes} bytes");
        }
        assert!(tables.load_home(home, &whole.repeat(2)).unwrap_err().contains("twice"));
        assert_eq!(saved(&tables, home), whole, "nothing has changed");
    }
}
