//! Memory at scale: as many regions as a trainer has buffers.

use super::rig::{Rig, at, bytes_of, filled, pair, pattern, region};
use fabric::CompletionKind;

/// All of them granted on one channel, none before it was connected; then used in another order.
pub fn hundreds_of_regions_are_granted_and_told_apart<R: Rig>() {
    const REGIONS: usize = 300;
    const BYTES: u64 = 100;
    let (mut a, mut b) = pair::<R>();
    let source = filled(1, REGIONS * BYTES as usize);
    let lent: Vec<_> = (0..REGIONS).map(|_| region(4096)).collect();
    let keys: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| {
            lent.iter().for_each(|region| _ = b.expose(region));
            lent.iter().for_each(|region| _ = b.grant(region));
        });
        lent.iter().map(|_| a.granted()).collect()
    });
    for i in (0..REGIONS).rev() {
        let span = source.span(i as u64 * BYTES, BYTES).unwrap();
        a.write_patiently(&[span], at(keys[i], i as u64), Some(i as u32), None);
        assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate: i as u32 });
    }
    let sent = pattern(1, REGIONS * BYTES as usize);
    for (i, region) in lent.iter().enumerate() {
        let sent = &sent[i * BYTES as usize..][..BYTES as usize];
        assert_eq!(bytes_of(region, i as u64, BYTES as usize), sent, "region {i}");
    }
}
