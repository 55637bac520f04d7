//! Where a timeline's documents come from: the processes that the scheduler lists, and files that failed ones left.

use crate::status::{get, get_status};
use anyhow::Context as _;
use daemon::exit::{Failure, WithCode as _};
use daemon::flight::{Dump, FORMAT, Stamp};
use proto_common::error::ExitCode;
use serde_json::Value;
use std::io::Read as _;
use std::path::Path;

/// Looks at a process's clock: the quickest counts.
const LOOKS: usize = 4;
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
        let dump = read().with_context(|| {
            format!("{} is nothing that a process of this release left behind", path.display())
        });
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
    anyhow::ensure!(dump.format == FORMAT, "it is in format {:?}, and not {FORMAT}", dump.format);
    Ok(dump)
}

/// Asks the scheduler, and all whom it lists.
pub(super) async fn ask(scheduler: &str) -> Result<Found, anyhow::Error> {
    let (status, _) = get_status(scheduler).await?;
    let targets: Value = serde_json::from_slice(&get(scheduler, "/targets").await?)?;
    let mut found = Found::default();
    found.take("scheduler".into(), one(scheduler).await);
    for group in targets.as_array().into_iter().flatten() {
        let label = |name: &str| group["labels"][name].as_str().unwrap_or_default().to_owned();
        let Some(address) = group["targets"][0].as_str() else { continue };
        if label("role") != "scheduler" {
            found.take(format!("{} {}", label("role"), label("rank")), one(address).await);
        }
    }
    for member in status.members.iter().filter(|member| !member.left && member.http_address.is_none()) {
        found
            .missing
            .push(format!("{} {}: its HTTP endpoints are off (node.http)", member.role, member.rank));
    }
    let missing = status.missing.iter().map(|member| format!("{member}: it is not there"));
    found.missing.extend(missing);
    Ok(found)
}

impl Found {
    fn take(&mut self, name: String, answer: Result<Source, anyhow::Error>) {
        match answer {
            Ok(source) => self.sources.push(source),
            Err(error) => self.missing.push(format!("{name}: {}", daemon::exit::describe(&error))),
        }
    }
}

async fn one(address: &str) -> Result<Source, anyhow::Error> {
    let mut best: Option<Look> = None;
    for _ in 0..LOOKS {
        let before = Stamp::here();
        let theirs = serde_json::from_slice(&get(address, "/trace/clock").await?)?;
        let look = Look { before, theirs, after_ns: Stamp::here().monotonic_ns };
        if best.as_ref().is_none_or(|best| look.took_ns() < best.took_ns()) {
            best = Some(look);
        }
    }
    let dump = parse(&get(address, "/trace").await?)?;
    Ok(Source { dump, look: best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_document_of_ours_is_refused_with_its_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for text in ["", "{}", "[1]"] {
            std::fs::write(file.path(), text).unwrap();
            let error = Found::default().read(file.path()).unwrap_err();
            assert_eq!(error.code(), ExitCode::BadData);
            assert!(error.to_string().contains("left behind"), "{error}");
        }
        assert!(Found::default().read(Path::new("/nonexistent")).is_err());
    }
}
