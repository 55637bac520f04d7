//! What the writing thread does where a place panics, or does not answer.

use super::super::part::Piece;
use super::*;
use crate::engine::ChunkSpec;
use checkpoint::Staged;
use std::sync::Mutex;
use std::time::Instant;

const PATIENCE: Duration = Duration::from_secs(20);

/// A place that panics, or waits for a word that may never come.
#[derive(Debug)]
struct Bad(Option<Mutex<Receiver<()>>>);

impl Store for Bad {
    fn place(&self) -> String {
        "nowhere".into()
    }
    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        Ok(Vec::new())
    }
    fn files(&self, _: &str) -> Result<Vec<(String, u64)>, CheckpointError> {
        Ok(Vec::new())
    }
    fn bytes(&self, _: &str, _: &str) -> Result<Option<u64>, CheckpointError> {
        Ok(None)
    }
    fn read(&self, _: &str, _: &str, _: u64, _: &mut [u8]) -> Result<(), CheckpointError> {
        Ok(())
    }
    fn stage(&self, _: &str, _: &str) -> Result<Staged, CheckpointError> {
        match &self.0 {
            None => panic!("a bug"),
            Some(word) => {
                let word = word.lock().unwrap();
                // The first word shows that a part is begun, the second lets it go on.
                let _ = (word.recv(), word.recv());
            }
        }
        Err(CheckpointError::BadPlace { place: "nowhere".into(), why: "it is not there".into() })
    }
    fn put(&self, _: &str, _: &str, _: Staged) -> Result<(), CheckpointError> {
        Ok(())
    }
    fn put_bytes(&self, _: &str, _: &str, _: &[u8]) -> Result<(), CheckpointError> {
        Ok(())
    }
    fn put_new(&self, _: &str, _: &str, _: &[u8]) -> Result<bool, CheckpointError> {
        Ok(true)
    }
    fn remove(&self, _: &str, _: &str) -> Result<(), CheckpointError> {
        Ok(())
    }
    fn forget(&self, _: &str) -> Result<bool, CheckpointError> {
        Ok(true)
    }
}

fn saver(store: Arc<dyn Store>, drain: Duration, has_room: impl Fn() + Send + 'static) -> Saver {
    let settings = CheckpointSettings { memory_bytes: 100, ..CheckpointSettings::default() };
    let own = (Rank(0), Incarnation(1), 4096);
    Saver::start(Some(store), &settings, own, (drain, None), has_room).unwrap()
}

fn copied(round: u64, bytes: usize) -> Copied {
    Copied { round, what: Piece::Chunk(Default::default(), vec![0; bytes]), bytes: bytes as u64 }
}

fn begin(lane: &LaneSaver, round: u64) {
    lane.begin(Begin { round, chunks: Vec::new(), tables: Vec::new() });
}

#[test]
fn a_panic_fails_the_checkpoint_and_gives_its_room_back() {
    let (told, room) = channel();
    let mut saver = saver(Arc::new(Bad(None)), PATIENCE, move || {
        let _ = told.send(());
    });
    let lane = saver.lane(0);
    for round in [1, 2] {
        begin(&lane, round);
        let news = saver.news.blocking_recv();
        let Some(CheckpointNews::Failed { round: failed, reason }) = news else { panic!("{news:?}") };
        assert!(failed == round && reason.contains("panicked"), "{reason}");
        assert!(lane.take(100) && !lane.take(1));
        lane.write(copied(round, 100));
        room.recv_timeout(PATIENCE).unwrap();
        assert_eq!(lane.used_bytes(), 0);
    }
    drop(saver);
    assert!(lane.take(100));
    lane.write(copied(3, 100));
    assert_eq!(lane.used_bytes(), 0, "nobody writes it");
}

/// Of a saver over a directory: what it tells, once everything before is done.
fn told(saver: &mut Saver, lane: &LaneSaver, round: u64) -> Vec<CheckpointNews> {
    saver.save(round);
    begin(lane, round);
    let mut all = Vec::new();
    loop {
        let news = saver.news.blocking_recv().unwrap();
        let is_last = matches!(&news, CheckpointNews::Part(part) if part.round == round);
        all.push(news);
        if is_last {
            return all;
        }
    }
}

#[test]
fn a_part_that_nobody_wants_leaves_nothing_and_one_that_is_wanted_later_is_there_then() {
    let place = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(checkpoint::Directory::new(place.path()));
    let mut saver = saver(store.clone(), PATIENCE, || ());
    let lane = saver.lane(0);
    let rounds = |news: &[CheckpointNews]| -> Vec<u64> {
        let round = |news: &CheckpointNews| match news {
            CheckpointNews::Part(part) => part.round,
            other => panic!("{other:?}"),
        };
        news.iter().map(round).collect()
    };
    // Whole before the scheduler says a word: one is wanted then, and one is not.
    [5, 10].into_iter().for_each(|round| begin(&lane, round));
    saver.drop_part(10);
    saver.save(5);
    assert_eq!(rounds(&told(&mut saver, &lane, 15)), [5, 15]);
    let names = [5, 15].map(checkpoint::round_name);
    assert_eq!(store.names().unwrap(), names);
    names.iter().for_each(|name| assert_eq!(store.files(name).unwrap().len(), 1));
    // Of as many as it keeps so, one too many.
    let most = (0..=UNSAID_MAX as u64).map(|n| 20 + 5 * n);
    most.for_each(|round| begin(&lane, round));
    let news = told(&mut saver, &lane, 90);
    let [CheckpointNews::Failed { round: 30, .. }, CheckpointNews::Part(_)] = &news[..] else {
        panic!("{news:?}")
    };
    // The scheduler has said nothing of the others, and does not want them beside this one.
    assert_eq!(store.names().unwrap(), [5, 15, 90].map(checkpoint::round_name));
    assert_eq!(store.files(&checkpoint::round_name(90)).unwrap().len(), 1);
}

#[test]
fn a_part_that_cannot_get_its_name_takes_no_other_one_along() {
    let place = tempfile::tempdir().unwrap();
    let mut saver = saver(Arc::new(checkpoint::Directory::new(place.path())), PATIENCE, || ());
    let lane = saver.lane(0);
    // One that is whole, with a name only that the scheduler wants later, and the next one, which is being written.
    begin(&lane, 5);
    let spec = TensorSpec::f32(1, 4, proto_common::optimizer::Optimizer::sum());
    let span = proto_common::tensor::ChunkSpan { id: Default::default(), offset: 0, bytes: 16 };
    lane.begin(Begin { round: 10, chunks: vec![ChunkSpec::of(&spec, &span)], tables: Vec::new() });
    let other = saver.lane(1);
    let news = told(&mut saver, &other, 1);
    assert!(matches!(&news[..], [CheckpointNews::Part(part)] if part.round == 1), "{news:?}");
    std::fs::remove_dir_all(place.path().join(checkpoint::round_name(5))).unwrap();
    saver.save(5);
    // It is there still: what is no chunk fails it.
    lane.write(copied(10, 1));
    let news = told(&mut saver, &lane, 15);
    let [
        CheckpointNews::Failed { round: 5, .. },
        CheckpointNews::Failed { round: 10, .. },
        CheckpointNews::Part(_),
    ] = &news[..]
    else {
        panic!("{news:?}")
    };
}

#[test]
fn an_end_waits_for_the_disk_within_a_bound_and_for_no_letter_behind() {
    // A place that answers: what waits behind is not written any more.
    let (word, waits) = std::sync::mpsc::sync_channel(0);
    let mut first = saver(Arc::new(Bad(Some(Mutex::new(waits)))), PATIENCE, || ());
    let mut news = std::mem::replace(&mut first.news, unbounded_channel().1);
    let lane = first.lane(0);
    (0..1000).for_each(|round| begin(&lane, round));
    let before = Instant::now();
    // It has the first in hand.
    word.send(()).unwrap();
    first.is_over.store(true, Ordering::Release);
    drop(word);
    drop(first);
    assert!(before.elapsed() < PATIENCE);
    assert!(matches!(news.try_recv(), Ok(CheckpointNews::Failed { round: 0, .. })));
    assert!(news.try_recv().is_err());
    // One that does not: its thread is left.
    let (word, waits) = channel();
    let second = saver(Arc::new(Bad(Some(Mutex::new(waits)))), Duration::from_millis(50), || ());
    begin(&second.lane(0), 1);
    let before = Instant::now();
    drop(second);
    assert!(before.elapsed() < PATIENCE);
    drop(word);
}
