//! Who owns a job's checkpoints; and two jobs at one place, each of them killed again and again.

use super::*;
use crate::store::Staged;
use crate::{
    Manifest, PartPlan, PartRecord, PartWriter, Shape, catalog, open_job, retain, round_name, sweep, verify,
};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};

const CHECKPOINTS: u64 = 100;
const KEEP: u32 = 2;

fn owner(id: u64) -> Owner {
    Owner { id, host: "n1".into(), pid: 4711, ..Owner::default() }
}

#[test]
fn one_of_those_that_claim_a_term_has_it_and_the_one_before_writes_no_more() {
    let place = tempfile::tempdir().unwrap();
    let store = open_job(place.path().to_str().unwrap(), 7).unwrap();
    assert_eq!(newest_term(&*store).unwrap(), None);
    let first = claim(store.clone(), None, owner(1)).unwrap().unwrap();
    assert!(claim(store.clone(), None, owner(2)).unwrap().is_none(), "not quick enough");
    first.beat().unwrap();
    let found = newest_term(&*store).unwrap().unwrap();
    assert_eq!((found.number, found.owner.clone()), (1, Some(Owner { beats: 1, ..owner(1) })));
    let racing: Vec<Option<Ownership>> = std::thread::scope(|scope| {
        let each = |id| {
            let (store, found) = (store.clone(), &found);
            scope.spawn(move || claim(store, Some(found), owner(id)).unwrap())
        };
        let racing: Vec<_> = (2..10).map(each).collect();
        racing.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let winners: Vec<&Ownership> = racing.iter().flatten().collect();
    assert_eq!(winners.len(), 1);
    winners[0].check().unwrap();
    for error in [first.check(), first.beat(), first.end()].map(Result::unwrap_err) {
        assert!(matches!(error, CheckpointError::Deposed { .. }), "{error}");
        assert!(
            error.to_string().contains("process 4711 on host \"n1\", owner since 1970-01-01T"),
            "{error}"
        );
    }
    winners[0].end().unwrap();
    assert!(winners[0].check().is_err(), "it was given up");
    let last = newest_term(&*store).unwrap().unwrap();
    assert!(last.number == 2 && last.owner.unwrap().has_ended);
}

/// It looked, and slept while two others came and removed what they were not to read any more.
#[test]
fn who_claims_a_term_that_is_past_does_not_have_it() {
    let place = tempfile::tempdir().unwrap();
    let store = open_job(place.path().to_str().unwrap(), 7).unwrap();
    claim(store.clone(), None, owner(1)).unwrap().unwrap();
    let found = newest_term(&*store).unwrap();
    let claim_next = |id| claim(store.clone(), newest_term(&*store).unwrap().as_ref(), owner(id)).unwrap();
    assert_eq!((claim_next(2).unwrap().term(), claim_next(3).unwrap().term()), (2, 3));
    assert_eq!(store.files(OWNERS).unwrap().len(), 1, "older records are removed");
    assert!(claim(store.clone(), found.as_ref(), owner(4)).unwrap().is_none());
    assert_eq!(newest_term(&*store).unwrap().unwrap().owner, Some(owner(3)));
}

#[test]
fn times_are_those_of_people() {
    assert_eq!(utc(0), "1970-01-01T00:00:00Z");
    assert_eq!(utc(951_782_399_000), "2000-02-28T23:59:59Z");
    assert_eq!(utc(951_868_800_000), "2000-03-01T00:00:00Z");
    assert_eq!(utc(951_782_400_000), "2000-02-29T00:00:00Z");
    assert_eq!(utc(1_735_689_599_000), "2024-12-31T23:59:59Z");
    assert_eq!(utc(1_795_000_000_000), "2026-11-18T11:06:40Z");
    assert_eq!(utc(4_107_542_400_000), "2100-03-01T00:00:00Z");
}

/// Small random numbers, the same ones each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A place as a process sees it that is killed after so many steps: half of the time before the last one has had its effect.
#[derive(Debug)]
struct Mortal {
    store: Arc<dyn Store>,
    steps_left: AtomicU64,
    has_last_effect: bool,
}

impl Mortal {
    fn step<T>(&self, step: impl FnOnce() -> Result<T, CheckpointError>) -> Result<T, CheckpointError> {
        let killed = || CheckpointError::io("go on in", "the process")(ErrorKind::BrokenPipe.into());
        match self.steps_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(1) if self.has_last_effect => step().and_then(|_| Err(killed())),
            Ok(left) if left > 1 => step(),
            _ => Err(killed()),
        }
    }

    fn is_dead(&self) -> bool {
        self.steps_left.load(Ordering::Relaxed) == 0
    }
}

impl Store for Mortal {
    fn place(&self) -> String {
        self.store.place()
    }
    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        self.step(|| self.store.names())
    }
    fn files(&self, name: &str) -> Result<Vec<(String, u64)>, CheckpointError> {
        self.step(|| self.store.files(name))
    }
    fn bytes(&self, name: &str, file: &str) -> Result<Option<u64>, CheckpointError> {
        self.step(|| self.store.bytes(name, file))
    }
    fn read(&self, name: &str, file: &str, offset: u64, into: &mut [u8]) -> Result<(), CheckpointError> {
        self.step(|| self.store.read(name, file, offset, into))
    }
    fn stage(&self, name: &str, file: &str) -> Result<Staged, CheckpointError> {
        self.step(|| self.store.stage(name, file))
    }
    fn put(&self, name: &str, file: &str, staged: Staged) -> Result<(), CheckpointError> {
        let mut staged = Some(staged);
        let put = self.step(|| staged.take().map_or(Ok(()), |staged| self.store.put(name, file, staged)));
        // Who is killed removes nothing.
        std::mem::forget(staged);
        put
    }
    fn put_bytes(&self, name: &str, file: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.step(|| self.store.put_bytes(name, file, bytes))
    }
    fn put_new(&self, name: &str, file: &str, bytes: &[u8]) -> Result<bool, CheckpointError> {
        self.step(|| self.store.put_new(name, file, bytes))
    }
    fn remove(&self, name: &str, file: &str) -> Result<(), CheckpointError> {
        self.step(|| self.store.remove(name, file))
    }
    fn forget(&self, name: &str) -> Result<bool, CheckpointError> {
        self.step(|| self.store.forget(name))
    }
}

/// A job that writes one checkpoint after the other, step by step.
struct Job {
    place: String,
    number: u64,
    store: Arc<Mortal>,
    owner: Option<Ownership>,
    round: u64,
    parts: Vec<PartRecord>,
    /// The round that was complete last.
    complete: u64,
    written: u64,
    killed: u64,
}

impl Job {
    fn new(place: &str, number: u64, dice: &mut Dice) -> Self {
        let store = Self::process(place, number, dice);
        let (place, owner, parts) = (place.to_owned(), None, Vec::new());
        Self { place, number, store, owner, round: 1, parts, complete: 0, written: 0, killed: 0 }
    }

    fn process(place: &str, number: u64, dice: &mut Dice) -> Arc<Mortal> {
        let store = open_job(place, number).unwrap();
        let (steps_left, has_last_effect) = (AtomicU64::new(10 + dice.below(200)), dice.below(2) == 0);
        Arc::new(Mortal { store, steps_left, has_last_effect })
    }

    /// What comes next, of: become the owner, clear up, two parts, the manifest and what is too old.
    fn step(&mut self) -> Result<(), CheckpointError> {
        let store: Arc<dyn Store> = self.store.clone();
        let Some(owner) = &self.owner else {
            let found = newest_term(&*store)?;
            self.owner = claim(store.clone(), found.as_ref(), owner(self.number))?;
            return sweep(&*store, self.round, |_| false).map(drop);
        };
        owner.check()?;
        let name = round_name(self.round);
        if self.parts.len() < 2 {
            let file = format!("part-{}-{}-{}.safetensors", self.number, self.round, self.parts.len());
            self.parts.push(PartWriter::begin(store, &name, &file, &PartPlan::default())?.finish()?);
            return Ok(());
        }
        let mut manifest = Manifest::new(&name, self.number, self.round, self.round, Shape::default());
        manifest.parts = std::mem::take(&mut self.parts);
        catalog::commit(&*store, &manifest)?;
        (self.complete, self.written) = (self.round, self.written + 1);
        self.round += 1;
        retain(&*store, &manifest, KEEP, |_| false, |_| false)?.failed.map_or(Ok(()), Err)?;
        sweep(&*store, self.round, |_| false)?.failed.map_or(Ok(()), Err)
    }

    /// One of the rounds is given up by being killed, another one begins.
    fn restart(&mut self, dice: &mut Dice) {
        assert!(self.store.is_dead());
        self.store = Self::process(&self.place, self.number, dice);
        (self.owner, self.killed, self.round) = (None, self.killed + 1, self.round + 1);
        self.parts.clear();
    }

    /// All parts of each complete one are there; with `reads`, every byte is read.
    fn is_restorable(&self, reads: bool) {
        let store = open_job(&self.place, self.number).unwrap();
        let newest = catalog::newest(&*store).unwrap();
        let round = newest.as_ref().map_or(0, |manifest| manifest.round);
        assert!(round >= self.complete, "job {} had round {}, and has {round}", self.number, self.complete);
        for listed in catalog::list(&*store).unwrap() {
            if let Some(manifest) = listed.complete() {
                for part in &manifest.parts {
                    assert_eq!(
                        store.bytes(&manifest.name, &part.file).unwrap(),
                        Some(part.bytes),
                        "{part:?}"
                    );
                }
                if reads {
                    verify(&store, &manifest.name, |_, _| ()).unwrap();
                }
                assert_eq!(manifest.job, self.number);
            }
        }
    }
}

#[test]
fn two_jobs_at_one_place_are_restorable_whenever_either_of_them_is_killed() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path().to_str().unwrap();
    let mut dice = Dice(7);
    let mut jobs = [1, 2].map(|number| Job::new(place, number, &mut dice));
    // The second one is always rounds ahead: what the first one writes looks like leftovers to it.
    jobs[1].round = 1000;
    while jobs.iter().any(|job| job.written < CHECKPOINTS) {
        let at = dice.below(2) as usize;
        let step = jobs[at].step();
        jobs.iter().for_each(|job| job.is_restorable(step.is_err()));
        if let Err(error) = step {
            assert!(jobs[at].store.is_dead(), "job {}: {error}", jobs[at].number);
            jobs[at].restart(&mut dice);
        }
    }
    assert!(jobs.iter().all(|job| job.killed > 10), "{:?}", jobs.map(|job| job.killed));
}
