//! What the peer of one channel may reach: the stretches that it was granted, until they are taken back. For drivers whose own
//! process touches the bytes, and so can refuse. Scenario: worker 1 writes to slot 7 of a server, which is worker 0's. Without
//! this check, worker 0's gradient would be replaced, and nobody would notice.

use crate::memory::{Access, Span};

#[derive(Debug)]
struct Grant {
    span: Span,
    access: Access,
    lease: u64,
}

impl Grant {
    fn place(&self) -> (u64, u64) {
        (self.span.region().id(), self.span.offset())
    }

    fn end(&self) -> u64 {
        self.span.offset() + self.span.len()
    }
}

/// See the module. A peer that is granted nothing reaches nothing.
#[derive(Debug, Default)]
pub(crate) struct Grants(
    /// By region and offset. Stretches may overlap: two operations may send from the same memory.
    Vec<Grant>,
);

impl Grants {
    /// The peer may reach the stretch. What is granted already stays so; no bytes need no grant.
    pub(crate) fn add(&mut self, span: &Span, access: Access, lease: u64) {
        if span.is_empty() {
            return;
        }
        let new = Grant { span: span.clone(), access, lease };
        let at = self.0.partition_point(|grant| grant.place() < new.place());
        let mut equal = self.0[at..].iter().take_while(|grant| grant.place() == new.place());
        if !equal.any(|of| (of.lease, of.access, of.end()) == (lease, access, new.end())) {
            self.0.insert(at, new);
        }
    }

    /// The grants of a lease that begin in the stretch end.
    pub(crate) fn remove(&mut self, span: &Span, lease: u64) {
        let region = span.region().id();
        let first_from = |offset| self.0.partition_point(|grant| grant.place() < (region, offset));
        let within = first_from(span.offset())..first_from(span.offset() + span.len());
        self.0.extract_if(within, |grant| grant.lease == lease).for_each(drop);
    }

    /// The stretch, if one grant covers it. Or why it is refused.
    pub(crate) fn find(&self, access: Access, key: u64, offset: u64, bytes: u64) -> Result<Span, String> {
        let is_write = access == Access::ReadWrite;
        let what = if is_write { "a write of" } else { "a read of" };
        let last = self.0.partition_point(|grant| grant.place() <= (key, offset));
        // The nearest one is nearly always it. A peer that makes us look at all of them is refused, and that once.
        let before = self.0[..last].iter().rev().take_while(|grant| grant.place().0 == key);
        let end = offset.checked_add(bytes);
        let mut covers = before.filter(|grant| end.is_some_and(|end| end <= grant.end()));
        let grant = covers.find(|grant| !is_write || grant.access == Access::ReadWrite);
        let grant = grant.ok_or_else(|| {
            format!("{what} {bytes} bytes at offset {offset} of region {key}, which it was not granted")
        })?;
        if is_write && !grant.span.region().peers_write() {
            return Err(format!("{what} {bytes} bytes to region {key}, which is read-only"));
        }
        grant.span.slice(offset - grant.span.offset(), bytes).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;
    use proptest::prelude::*;

    #[test]
    fn what_was_granted_is_reached_and_nothing_beside_it() {
        let region = Region::allocate(4096, "grants").unwrap();
        let (key, mut grants) = (region.id(), Grants::default());
        assert!(grants.find(Access::Read, key, 0, 1).is_err());
        grants.add(&region.span(64, 64).unwrap(), Access::ReadWrite, 0);
        grants.add(&region.span(128, 64).unwrap(), Access::Read, 7);
        let reaches =
            |grants: &Grants, access, offset, bytes| grants.find(access, key, offset, bytes).is_ok();
        assert!(reaches(&grants, Access::ReadWrite, 64, 64) && reaches(&grants, Access::Read, 100, 28));
        assert!(!reaches(&grants, Access::Read, 63, 2) && !reaches(&grants, Access::Read, 64, 65));
        assert!(reaches(&grants, Access::Read, 128, 64) && !reaches(&grants, Access::ReadWrite, 128, 64));
        assert!(
            !reaches(&grants, Access::Read, u64::MAX, 2) && !reaches(&grants, Access::Read, 100, u64::MAX)
        );
        assert!(grants.find(Access::Read, key + 1, 64, 1).is_err());
        grants.add(&region.span(0, 0).unwrap(), Access::ReadWrite, 3);
        assert_eq!(grants.0.len(), 2, "nobody would take back a grant of nothing");
        grants.remove(&region.all(), 7);
        assert!(!reaches(&grants, Access::Read, 128, 1) && reaches(&grants, Access::Read, 64, 1));
        let constant = Region::of_bytes(vec![0; 64]);
        grants.add(&constant.all(), Access::ReadWrite, 0);
        assert!(grants.find(Access::Read, constant.id(), 0, 64).is_ok());
        let refused = grants.find(Access::ReadWrite, constant.id(), 0, 64).unwrap_err();
        assert!(refused.contains("read-only"), "{refused}");
    }

    proptest! {
        #[test]
        fn as_a_list_of_all_grants_would_say(
            steps in prop::collection::vec((0u8..3, 0u64..40, 1u64..20, 0u64..3, any::<bool>()), 1..80),
        ) {
            let region = Region::allocate(64, "grants").unwrap();
            let (mut grants, mut all) = (Grants::default(), Vec::new());
            for (step, offset, bytes, lease, writes) in steps {
                let (span, end) = (region.span(offset, bytes).unwrap(), offset + bytes);
                let access = if writes { Access::ReadWrite } else { Access::Read };
                match step {
                    0 => {
                        grants.add(&span, access, lease);
                        all.push((offset, end, writes, lease));
                    }
                    1 => {
                        grants.remove(&span, lease);
                        all.retain(|of| of.3 != lease || of.0 < offset || of.0 >= end);
                    }
                    _ => {
                        let expected = all.iter().any(|of| of.0 <= offset && end <= of.1 && (of.2 || !writes));
                        let found = grants.find(access, region.id(), offset, bytes);
                        prop_assert_eq!(found.is_ok(), expected);
                    }
                }
            }
        }
    }
}
