//! Bytes: they land whole, where they should, before their notice, in the order of their posts; reads bring them.

use super::rig::{
    End, NOWHERE, Place, Queue, Rig, at, bytes_of, connect_all, connect_only, filled, pair, pair_with,
    pattern, region, soon,
};
use fabric::{
    Access, CompletionKind, CompletionQueue, Order, PeerWritable, PostError, Read, RemoteKey, Span, Write,
};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Around what drivers treat apart: inline requests, non-temporal copies, pages, what a socket reads ahead.
const SIZES: [usize; 14] = [0, 1, 8, 127, 128, 129, 511, 512, 4095, 4096, 4097, 65_537, MIB - 1, MIB];

pub fn writes_of_all_sizes_land_before_their_notice<R: Rig>() {
    let long = R::LIMITS.long_bytes;
    let (lent, source) = (region(long + 2), region(long));
    let (mut a, mut b, key) = pair_with::<R>(&lent);
    for (i, bytes) in SIZES.into_iter().chain([long]).enumerate() {
        let sent = pattern(i as u64, bytes);
        source.write(0, &sent).unwrap();
        lent.write(0, &vec![0xEE; bytes + 2]).unwrap();
        let span = source.span(0, bytes as u64).unwrap();
        a.write_patiently(&[span], at(key, 1), Some(i as u32), Some(100 + i as u64));
        assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate: i as u32 });
        assert!(bytes_of(&lent, 1, bytes) == sent, "{bytes} bytes");
        assert_eq!(bytes_of(&lent, 0, 1), [0xEE], "before {bytes} bytes");
        assert_eq!(bytes_of(&lent, 1 + bytes as u64, 1), [0xEE], "after {bytes} bytes");
        assert_eq!(a.next(), CompletionKind::WriteDone { id: 100 + i as u64 });
    }
}

pub fn many_spans_become_one_stretch<R: Rig>() {
    let (lent, source) = (region(MIB), filled(3, MIB));
    let (mut a, mut b, key) = pair_with::<R>(&lent);
    let most = a.queue.caps().gather_max;
    // Of all sizes, none among them.
    let spans: Vec<Span> = (0..most as u64).map(|i| source.span(i * 4000, (i % 7) * 300).unwrap()).collect();
    a.write(&spans, at(key, 8), Some(9), None).unwrap();
    assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate: 9 });
    let mut place = 8;
    for span in &spans {
        let bytes = span.len() as usize;
        assert_eq!(bytes_of(&lent, place, bytes), bytes_of(&source, span.offset(), bytes));
        place += span.len();
    }
    let spans = vec![source.span(0, 1).unwrap(); R::LIMITS.gather_refused];
    assert_eq!(a.write(&spans, at(key, 0), Some(10), None), Err(PostError::TooManySpans));
    a.notify(11);
    assert_eq!(b.next_notice(), 11, "a refused write sends no notice");
}

pub fn thousands_of_writes_keep_their_order_over_full_queues<R: Rig>() {
    const PLACES: u32 = 256;
    let (lent, source) = (region(4096), region(4096));
    let (mut a, mut b, key) = pair_with::<R>(&lent);
    let rounds = R::LIMITS.rounds;
    let (tell, is_full) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for i in 0..rounds {
                let place = u64::from(i % PLACES) * 4;
                source.write(place, &i.to_le_bytes()).unwrap();
                let span = [source.span(place, 4).unwrap()];
                // Not started one by one, so that they pile up.
                if let Err(error) = a.post(&span, at(key, place), Some(i), None) {
                    assert_eq!(error, PostError::Full);
                    a.queue.flush();
                    a.poll();
                    tell.send(()).unwrap();
                    a.write_patiently(&span, at(key, place), Some(i), None);
                }
            }
            a.queue.flush();
            assert_eq!(a.next(), CompletionKind::Received { immediate: rounds });
        });
        // Nothing is taken before the queue has been full once.
        is_full.recv().expect("a queue without end");
        for expected in 0..rounds {
            assert_eq!(b.next_notice(), expected);
            let landed = bytes_of(&lent, u64::from(expected % PLACES) * 4, 4);
            let landed = u32::from_le_bytes(landed.try_into().unwrap());
            // A later lap may have come over it, never an earlier one.
            assert!(landed >= expected && (landed - expected) % PLACES == 0, "{landed} for {expected}");
        }
        b.notify(rounds);
    });
}

pub fn a_notice_needs_no_bytes_and_no_key<R: Rig>() {
    let (mut a, mut b) = pair::<R>();
    let source = region(64);
    for (i, key) in [0, 1, u64::MAX].into_iter().enumerate() {
        for gather in [&[][..], &[source.span(3, 0).unwrap()]] {
            let immediate = 0xFFFF_FFF0 + i as u32;
            a.write_patiently(gather, at(RemoteKey(key), u64::MAX), Some(immediate), None);
            assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate });
        }
    }
}

pub fn only_signalled_writes_complete_in_their_order<R: Rig>() {
    let (lent, source) = (region(4096), region(4096));
    let (mut a, mut b, key) = pair_with::<R>(&lent);
    let span = [source.span(0, 100).unwrap()];
    let mut done = Vec::new();
    for i in 0..200u64 {
        a.write_patiently(&span, at(key, 0), (i % 5 == 0).then_some(i as u32), (i % 3 == 0).then_some(i));
        b.poll();
        a.poll();
        done.extend(a.seen.drain(..).map(|completion| completion.kind));
    }
    a.write_patiently(&span, at(key, 0), None, Some(1000));
    while done.last() != Some(&CompletionKind::WriteDone { id: 1000 }) {
        done.push(a.next_with(&mut b));
    }
    let signalled = (0..200).filter(|i| i % 3 == 0).chain([1000]);
    assert!(done.into_iter().eq(signalled.map(|id| CompletionKind::WriteDone { id })));
    let deadline = soon();
    while b.seen.len() < 40 {
        assert!(Instant::now() < deadline, "{} of 40 notices", b.seen.len());
        a.poll();
        b.poll();
    }
    let noticed = (0..200).filter(|i| i % 5 == 0).map(|immediate| CompletionKind::Received { immediate });
    assert!(b.seen.drain(..).map(|completion| completion.kind).eq(noticed));
}

pub fn reads_of_all_sizes_bring_the_bytes_both_ways<R: Rig>() {
    let long = R::LIMITS.long_bytes;
    let (lent, target) = (filled(5, long + 1), region(long));
    let (mut a, mut b, key) = pair_with::<R>(&lent);
    let of_a = filled(6, MIB);
    a.grant(&of_a);
    let key_of_a = b.granted();
    for (i, bytes) in SIZES.into_iter().chain([long]).enumerate() {
        let local = target.span(0, bytes as u64).unwrap();
        a.read(&local, at(key, 1), i as u64).unwrap();
        assert_eq!(a.next_with(&mut b), CompletionKind::ReadDone { id: i as u64 });
        assert!(bytes_of(&target, 0, bytes) == bytes_of(&lent, 1, bytes), "{bytes} bytes");
    }
    b.read(&target.span(0, MIB as u64).unwrap(), at(key_of_a, 0), 7).unwrap();
    assert_eq!(b.next_with(&mut a), CompletionKind::ReadDone { id: 7 });
    assert!(bytes_of(&target, 0, MIB) == pattern(6, MIB));
    assert!(a.seen.is_empty() && b.seen.is_empty(), "who is read from is not asked");
}

pub fn several_reads_are_under_way_at_once_and_complete_in_their_order<R: Rig>() {
    const STEP: u64 = 16 << 10;
    let (lent, target) = (filled(8, MIB), region(MIB));
    let (mut a, mut b, key) = pair_with::<R>(&lent);
    for lap in 0..3 {
        target.write(0, &vec![0; MIB]).unwrap();
        let mut posted = 0;
        loop {
            let place = posted % (MIB as u64 / STEP) * STEP;
            let local = target.span(place, STEP).unwrap();
            let read = Read { id: posted, local: &local, remote: at(key, place) };
            match a.queue.post_read(a.channel, &read) {
                Ok(()) => posted += 1,
                Err(error) => break assert_eq!(error, PostError::Full),
            }
            assert!(posted < 1000, "the queue never fills");
        }
        a.queue.flush();
        assert!(posted > 1, "in lap {lap}");
        for id in 0..posted {
            assert_eq!(a.next_with(&mut b), CompletionKind::ReadDone { id });
        }
        let bytes = (posted.min(MIB as u64 / STEP) * STEP) as usize;
        assert!(bytes_of(&target, 0, bytes) == bytes_of(&lent, 0, bytes));
    }
}

pub fn a_read_sees_what_was_written_before_it<R: Rig>() {
    let (lent, source, back) = (region(MIB), region(MIB), region(MIB));
    let (mut a, mut b, key) = pair_with::<R>(&lent);
    assert_eq!(a.queue.caps().order, Order::Posted, "`fabric::machine` promises this to its users");
    for i in 0..20u64 {
        let sent = pattern(i, 100_000);
        source.write(0, &sent).unwrap();
        a.write_patiently(&[source.span(0, 100_000).unwrap()], at(key, 5), None, None);
        a.read(&back.span(0, 100_000).unwrap(), at(key, 5), i).unwrap();
        assert_eq!(a.next_with(&mut b), CompletionKind::ReadDone { id: i });
        assert!(bytes_of(&back, 0, 100_000) == sent, "round {i}");
    }
}

pub fn a_region_exposed_late_can_be_used_as_soon_as_it_is_granted<R: Rig>() {
    let (mut a, mut b) = pair::<R>();
    let source = filled(9, 4096);
    for i in 0..20u32 {
        let late = region(4096);
        assert_eq!(b.grant(&late), b.queue.expose(b.channel, &late).unwrap(), "again is the same");
        let key = a.granted();
        a.write(&[source.span(0, 4096).unwrap()], at(key, 0), Some(i), None).unwrap();
        assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate: i });
        assert_eq!(bytes_of(&late, 0, 4096), pattern(9, 4096));
    }
}

/// A region of which little is touched, as servers have one for all weights.
pub fn stretches_of_a_region_far_larger_than_memory_are_lent<R: Rig>() {
    const BYTES: u64 = 300_000;
    let (mut a, mut b) = pair::<R>();
    let huge = region(1 << 40);
    let key = b.queue.expose(b.channel, &huge).unwrap();
    let from = region(1 << 40);
    // Borders of whatever a driver registers at once lie at powers of two.
    for (i, middle) in [150_000u64, 1 << 24, 5 << 24, 1 << 30, (1 << 40) - BYTES / 2].into_iter().enumerate()
    {
        let start = middle - BYTES / 2;
        let bytes = pattern(i as u64, BYTES as usize);
        from.write(start, &bytes).unwrap();
        b.queue.lend(b.channel, &huge.span(start, BYTES).unwrap(), Access::ReadWrite, 0).unwrap();
        b.notify(i as u32);
        assert_eq!(a.next_with(&mut b), CompletionKind::Received { immediate: i as u32 });
        a.write(&[from.span(start, BYTES).unwrap()], at(key, start), Some(7), None).unwrap();
        assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate: 7 });
        assert!(bytes_of(&huge, start, BYTES as usize) == bytes, "around {middle}");
        let back = region(BYTES as usize);
        a.read(&back.span(0, BYTES).unwrap(), at(key, start), 9).unwrap();
        assert_eq!(a.next_with(&mut b), CompletionKind::ReadDone { id: 9 });
        assert!(bytes_of(&back, 0, BYTES as usize) == bytes, "read around {middle}");
    }
}

/// One side's lane is busy with another channel when the new one's first messages come.
pub fn what_is_sent_before_the_peer_has_the_channel_waits_for_it<R: Rig>() {
    let (mut a, mut b) = pair::<R>();
    for a_is_early in [true, false] {
        let (near, far) = connect_only::<R>(&a.queue, &b.queue);
        let (early, late) = if a_is_early { (&mut a, &mut b) } else { (&mut b, &mut a) };
        let (first, second) = if a_is_early { (near, far) } else { (far, near) };
        let first = early.queue.attach(first).unwrap();
        let lent = region(4096);
        let key = early.queue.expose(first, &lent).unwrap();
        early.queue.lend(first, &lent.all(), Access::ReadWrite, 0).unwrap();
        let notice = |immediate| Write {
            id: 0,
            gather: &[],
            remote: NOWHERE,
            immediate: Some(immediate),
            signaled: false,
        };
        early.queue.post_write(first, &notice(3)).unwrap();
        for i in 0..50 {
            early.notify(i);
            assert_eq!(late.next_with(early), CompletionKind::Received { immediate: i });
        }
        let second = late.queue.attach(second).unwrap();
        let deadline = soon();
        while late.seen.is_empty() {
            assert!(Instant::now() < deadline, "{} lost it", R::NAME);
            early.poll();
            late.poll();
        }
        let received = late.seen.pop_front().unwrap();
        assert_eq!((received.channel, received.kind), (second, CompletionKind::Received { immediate: 3 }));
        let source = filled(1, 4096);
        let gather = [source.span(0, 4096).unwrap()];
        let write = Write { gather: &gather, remote: at(key, 0), ..notice(4) };
        late.queue.post_write(second, &write).unwrap();
        late.queue.flush();
        while early.seen.is_empty() {
            assert!(Instant::now() < deadline, "the key was lost");
            early.poll();
            late.poll();
        }
        early.seen.clear();
        assert_eq!(bytes_of(&lent, 0, 4096), pattern(1, 4096));
    }
}

/// Three lanes a side, three channels between each two, all driven by their own threads at once.
pub fn channels_of_several_queues_are_told_apart_and_work_at_once<R: Rig>() {
    const LANES: usize = 3;
    const CHANNELS: usize = 3;
    const BYTES: u64 = 10_000;
    let queues = |place| (0..LANES).map(|_| R::queue(place, super::rig::DEPTH).unwrap()).collect::<Vec<_>>();
    let (mut near, mut far) = (queues(Place::Near), queues(Place::Far));
    let pairs: Vec<_> = (0..LANES * CHANNELS).map(|i| (i % LANES, i % LANES)).collect();
    let ids = connect_all::<R>(&mut near, &mut far, &pairs);
    std::thread::scope(|scope| {
        for (lane, (near, far)) in near.drain(..).zip(far.drain(..)).enumerate() {
            let of_lane = |side: fn(&(fabric::ChannelId, fabric::ChannelId)) -> fabric::ChannelId| {
                ids.iter().skip(lane).step_by(LANES).map(side).collect::<Vec<_>>()
            };
            let (ours, theirs) = (of_lane(|ids| ids.0), of_lane(|ids| ids.1));
            let lent = std::sync::Arc::new(region(CHANNELS * BYTES as usize));
            let (told, hear) = std::sync::mpsc::channel::<Vec<RemoteKey>>();
            let finished = std::sync::Arc::new(std::sync::Barrier::new(2));
            let (lent_there, finished_there) = (lent.clone(), finished.clone());
            scope.spawn(move || {
                send_on_each(End::<R>::new(near, ours[0]), &ours, lane, BYTES, &hear.recv().unwrap());
                finished.wait();
            });
            scope.spawn(move || {
                let mut end = End::<R>::new(far, theirs[0]);
                let expose = |id: &fabric::ChannelId| {
                    let key = end.queue.expose(*id, &lent_there).unwrap();
                    end.queue.lend(*id, &lent_there.all(), Access::ReadWrite, 0).unwrap();
                    key
                };
                told.send(theirs.iter().map(expose).collect::<Vec<_>>()).unwrap();
                take_from_each(&mut end, &theirs, lane, BYTES, &lent_there);
                finished_there.wait();
            });
        }
    });
}

const LAPS: u32 = 20;

fn send_on_each<R: Rig>(
    mut end: End<R>,
    channels: &[fabric::ChannelId],
    lane: usize,
    bytes: u64,
    keys: &[RemoteKey],
) {
    let source = filled(lane as u64, channels.len() * bytes as usize);
    let deadline = soon();
    for lap in 0..LAPS {
        for (i, (&channel, &key)) in channels.iter().zip(keys).enumerate() {
            let place = i as u64 * bytes;
            let gather = [source.span(place, bytes).unwrap()];
            let immediate = Some(lap * 100 + i as u32);
            let write = Write { id: 0, gather: &gather, remote: at(key, place), immediate, signaled: false };
            // The keys were not told over the channels: they may come later than their names.
            while let Err(error) = end.queue.post_write(channel, &write) {
                assert!(matches!(error, PostError::Full | PostError::RemoteAccess), "{error}");
                assert!(Instant::now() < deadline, "{error}");
                end.queue.wait(Duration::from_millis(1));
                end.poll();
            }
            end.queue.flush();
        }
    }
    // Until the other end has everything.
    while end.seen.is_empty() {
        assert!(Instant::now() < deadline, "no word of the end");
        end.poll();
        end.queue.wait(Duration::from_millis(10));
    }
}

fn take_from_each<R: Rig>(
    end: &mut End<R>,
    channels: &[fabric::ChannelId],
    lane: usize,
    bytes: u64,
    lent: &PeerWritable,
) {
    let deadline = soon();
    let mut laps = vec![0; channels.len()];
    while laps.iter().any(|lap| *lap < LAPS) {
        assert!(Instant::now() < deadline, "{laps:?}");
        end.poll();
        for completion in end.seen.drain(..) {
            let i = channels.iter().position(|id| *id == completion.channel).expect("a channel of this lane");
            assert_eq!(completion.kind, CompletionKind::Received { immediate: laps[i] * 100 + i as u32 });
            laps[i] += 1;
        }
        end.queue.wait(Duration::from_millis(10));
    }
    assert!(bytes_of(lent, 0, lent.len()) == pattern(lane as u64, lent.len()));
    assert_eq!(lent.len() as u64, bytes * channels.len() as u64);
    end.write_patiently(&[], NOWHERE, Some(7), None);
}
