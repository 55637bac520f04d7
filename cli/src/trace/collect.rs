//! Where a timeline's documents come from: the processes that the scheduler lists, and files that failed ones left.

use crate::status::{Whose, get, get_status};
use anyhow::Context as _;
use daemon::exit::{Failure, WithCode as _};
use daemon::flight::{Dump, FORMAT, Stamp};
use proto_common::error::ExitCode;
use serde_json::Value;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Looks at a process's clock: the quickest counts.
const LOOKS: usize = 4;
/// Processes that are asked at once.
const ASKED_MAX: usize = 64;
/// Bytes of a file: more than any process writes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A look at another process's clock, between two looks at ours.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) before: Stamp,
    pub(super) theirs: Stamp,
    pub(super) after_ns: u64,
}

impl Look {
    /// How long it took.
    pub(super) fn took_ns(&self) -> u64 {
        self.after_ns.saturating_sub(self.before.monotonic_ns)
    }
}

/// One process's document.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) dump: Dump,
    /// None of files.
    pub(super) look: Option<Look>,
}

impl Source {
    /// `server 0`.
    pub(super) fn name(&self) -> String {
        match self.dump.rank {
            Some(rank) => format!("{} {rank}", self.dump.role),
            None => self.dump.role.to_string(),
        }
    }
}

/// Everything that was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) sources: Vec<Source>,
    /// Who is not in it, and why.
    pub(super) missing: Vec<String>,
}

impl Found {
    /// Reads what a process left.
    pub(super) fn read(&mut self, path: &Path) -> Result<(), Failure> {
        let read = || -> anyhow::Result<Dump> {
            let mut text = Vec::new();
            std::fs::File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
            parse(&text)
        };
        let dump = read()
            .with_context(|| format!("{} is not a flight recorder dump of this release", path.display()));
        self.sources.push(Source { dump: dump.code(ExitCode::BadData)?, look: None });
        Ok(())
    }

    /// What was asked for joins what was read. A process that left a file counts with that.
    pub(super) fn add(&mut self, asked: Self) {
        let is_there = |source: &Source| {
            let same = |own: &Source| own.dump.pid == source.dump.pid && own.name() == source.name();
            self.sources.iter().any(same)
        };
        let new: Vec<Source> = asked.sources.into_iter().filter(|source| !is_there(source)).collect();
        self.sources.extend(new);
        self.missing.extend(asked.missing);
    }
}

fn parse(text: &[u8]) -> anyhow::Result<Dump> {
    let dump: Dump = serde_json::from_slice(text)?;
    anyhow::ensure!(dump.format == FORMAT, "it has format {:?}, expected {FORMAT}", dump.format);
    Ok(dump)
}

#[derive(Clone, Debug)]
struct Asked {
    name: String,
    whose: Whose,
    address: String,
}

impl Asked {
    async fn get(self, path: &'static str) -> anyhow::Result<Vec<u8>> {
        get(self.whose, &self.address, path).await
    }
}

/// Asks the scheduler, and all whom it lists.
pub(super) async fn ask(scheduler: &str) -> Result<Found, anyhow::Error> {
    let (status, _) = get_status(scheduler).await?;
    let targets: Value = serde_json::from_slice(&get(Whose::Scheduler, scheduler, "/targets").await?)?;
    let (name, whose) = ("scheduler".to_owned(), Whose::Scheduler);
    let mut all = vec![Asked { name, whose, address: scheduler.to_owned() }];
    for group in targets.as_array().into_iter().flatten() {
        let label = |name: &str| group["labels"][name].as_str().unwrap_or_default().to_owned();
        let Some(address) = group["targets"][0].as_str() else { continue };
        if label("role") != "scheduler" {
            let (name, whose) = (format!("{} {}", label("role"), label("rank")), Whose::Member);
            all.push(Asked { name, whose, address: address.to_owned() });
        }
    }
    let mut found = together(all).await;
    for member in status.members.iter().filter(|member| !member.left && member.http_address.is_none()) {
        found
            .missing
            .push(format!("{} {}: its HTTP endpoints are off (node.http)", member.role, member.rank));
    }
    let missing = status.missing.iter().map(|member| format!("{member}: it has not registered"));
    found.missing.extend(missing);
    Ok(found)
}

/// Asks all of these; those that do not answer hold nobody up.
async fn together(all: Vec<Asked>) -> Found {
    let mut found = Found::default();
    let reached = each(&all, |one| one.get("/trace/clock")).await;
    let (mut there, mut looks) = (Vec::new(), Vec::new());
    for (one, reached) in all.into_iter().zip(reached) {
        // One clock after another: what is done beside a look makes it longer, and so less exact.
        let look = match reached {
            Ok(_) => look(&one).await,
            Err(error) => Err(error),
        };
        match look {
            Ok(look) => {
                there.push(one);
                looks.push(look);
            }
            Err(error) => found.miss(&one, &error),
        }
    }
    let dumps = each(&there, |one| one.get("/trace")).await;
    for ((one, look), dump) in there.iter().zip(looks).zip(dumps) {
        match dump.and_then(|dump| parse(&dump)) {
            Ok(dump) => found.sources.push(Source { dump, look: Some(look) }),
            Err(error) => found.miss(one, &error),
        }
    }
    found
}

/// What comes of asking each of them, in their order; so many at once.
async fn each<A>(all: &[Asked], ask: impl Fn(Asked) -> A) -> Vec<anyhow::Result<Vec<u8>>>
where
    A: Future<Output = anyhow::Result<Vec<u8>>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(ASKED_MAX));
    let start = |one: &Asked| {
        let (places, asking) = (places.clone(), ask(one.clone()));
        tokio::spawn(async move {
            // The semaphore is never closed.
            let _place = places.acquire().await;
            asking.await
        })
    };
    let asked: Vec<_> = all.iter().map(start).collect();
    let mut answers = Vec::new();
    for answer in asked {
        answers.push(answer.await.unwrap_or_else(|error| Err(error.into())));
    }
    answers
}

impl Found {
    fn miss(&mut self, who: &Asked, error: &anyhow::Error) {
        self.missing.push(format!("{}: {}", who.name, daemon::exit::describe(error)));
    }
}

/// The quickest of some looks at a process's clock.
async fn look(one: &Asked) -> anyhow::Result<Look> {
    let mut best: Option<Look> = None;
    for _ in 0..LOOKS {
        let before = Stamp::here();
        let theirs = serde_json::from_slice(&one.clone().get("/trace/clock").await?)?;
        let look = Look { before, theirs, after_ns: Stamp::here().monotonic_ns };
        if best.as_ref().is_none_or(|best| look.took_ns() < best.took_ns()) {
            best = Some(look);
        }
    }
    best.context("its clock was not sampled")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn what_is_no_document_of_ours_is_refused_with_its_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for text in ["", "{}", "[1]"] {
            std::fs::write(file.path(), text).unwrap();
            let error = Found::default().read(file.path()).unwrap_err();
            assert_eq!(error.code(), ExitCode::BadData);
            assert!(error.to_string().contains("flight recorder dump"), "{error}");
        }
        assert!(Found::default().read(Path::new("/nonexistent")).is_err());
    }
    /// Those that nobody answers for are waited for together: one after another, they would take their time each.
    #[tokio::test]
    async fn members_that_do_not_answer_hold_nobody_up() {
        const MUTE: usize = 4;
        let listeners = [(); MUTE].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let mute = listeners.iter().enumerate().map(|(rank, listener)| {
            let (name, address) = (format!("worker {rank}"), listener.local_addr().unwrap().to_string());
            Asked { name, whose: Whose::Member, address }
        });
        let begun = Instant::now();
        let found = together(mute.collect()).await;
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        assert_eq!((found.sources.len(), found.missing.len()), (0, MUTE));
        for (rank, missing) in found.missing.iter().enumerate() {
            assert!(missing.starts_with(&format!("worker {rank}: ")), "{missing}");
            assert!(missing.contains("node.http") && !missing.contains("scheduler"), "{missing}");
        }
    }
}
