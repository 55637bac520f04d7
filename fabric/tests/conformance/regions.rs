//! Memory at scale: as many regions as a trainer has buffers, and regions far larger than what is ever touched of them.

use super::rig::{Rig, at, bytes_of, filled, pair, pattern, region, report};
use fabric::{Access, CompletionKind, CompletionQueue, PeerWritable};
use std::time::{Duration, Instant};

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

/// Bytes of a region's mappings that are in memory.
fn resident_bytes(name: &str) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_it, mut kib) = (false, 0);
    for line in maps.lines() {
        // A mapping begins with its addresses, its properties with their names.
        if line.split(' ').next().is_some_and(|first| first.contains('-')) {
            is_it = line.contains(name);
        } else if let Some(rest) = line.strip_prefix("Rss:").filter(|_| is_it) {
            kib += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
        }
    }
    kib << 10
}

/// A pool is reserved for the largest job: what nobody touches must not cost memory.
pub fn a_region_costs_what_is_touched_of_it<R: Rig>() {
    const GIB: u64 = 1 << 30;
    let name = format!("sparse-{}", R::NAME);
    let huge = PeerWritable::allocate(GIB as usize, &name).unwrap();
    let (mut a, mut b) = pair::<R>();
    let started = Instant::now();
    let named = b.expose(&huge);
    b.notify(u32::try_from(named.0).unwrap());
    let key = a.granted();
    report(&format!("{}: 1 GiB exposed, none of it touched", R::NAME), "no fault, granted", started);
    let source = filled(2, 4096);
    let span = source.span(0, 4096).unwrap();
    for (i, place) in [0, GIB / 2 - 4096, GIB / 2, GIB - 4096].into_iter().enumerate() {
        b.queue.lend(b.channel, &huge.span(place, 4096).unwrap(), Access::ReadWrite, 0).unwrap();
        b.notify(i as u32);
        assert_eq!(a.next_with(&mut b), CompletionKind::Received { immediate: i as u32 });
        a.write_patiently(std::slice::from_ref(&span), at(key, place), Some(i as u32), None);
        assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate: i as u32 });
        assert!(bytes_of(&huge, place, 4096) == bytes_of(&source, 0, 4096), "at {place}");
    }
    // As what is sent from, too.
    let far = huge.span(GIB - 4096, 4096).unwrap();
    b.queue.lend(b.channel, &huge.span(1 << 20, 4096).unwrap(), Access::ReadWrite, 0).unwrap();
    b.notify(8);
    assert_eq!(a.next_with(&mut b), CompletionKind::Received { immediate: 8 });
    a.write_patiently(&[far], at(key, 1 << 20), Some(9), None);
    assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate: 9 });
    let resident = resident_bytes(&name);
    assert!(resident < 256 << 20, "{resident} of {GIB} bytes are in memory for a few pages");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}
