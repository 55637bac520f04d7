//! Names and directories of the jobs that share a `checkpoint.directory` (the *place*): each job has the directory `job-N` in it. This
//! module must not read the files of checkpoints.

use crate::catalog::{self, Listed, is_name};
use crate::directory::Directory;
use crate::error::CheckpointError;
use crate::store::Store;
use std::sync::Arc;

/// The prefix of the directories of jobs.
const JOB: &str = "job-";

/// The job of a directory; `None` unless the name is exactly the one that [`job_name`] makes.
fn job_of(name: &str) -> Option<u64> {
    let job = name.strip_prefix(JOB)?.parse().ok()?;
    (job_name(job) == name).then_some(job)
}

fn job_name(job: u64) -> String {
    format!("{JOB}{job}")
}

fn within(place: &str, directory: &str) -> String {
    format!("{}/{directory}", place.trim_end_matches('/'))
}

/// The store of a job's own checkpoints. The job writes and removes nothing outside of it.
pub fn open_job(place: &str, job: u64) -> Result<Arc<dyn Store>, CheckpointError> {
    open(&within(place, &job_name(job)))
}

/// The name of a job's checkpoint in the place, as in `checkpoint.restore`.
#[must_use]
pub fn name_of_job(job: u64, name: &str) -> String {
    format!("{JOB}{job}/{name}")
}

/// A checkpoint's name within its job's directory; `None` if it belongs to another job.
#[must_use]
pub fn own_name(job: u64, name: &str) -> Option<&str> {
    let (directory, own) = name.split_once('/')?;
    (directory == job_name(job)).then_some(own)
}

/// The store of a checkpoint, and its name there. A name is `job-N/NAME`, or `NAME` for a checkpoint outside of all jobs' directories,
/// as release 0.1 wrote them.
pub fn find(place: &str, name: &str) -> Result<(Arc<dyn Store>, String), CheckpointError> {
    match name.split_once('/') {
        Some((directory, own)) if job_of(directory).is_some() => {
            Ok((open(&within(place, directory))?, own.to_owned()))
        }
        Some(_) => Err(CheckpointError::BadName { name: name.into() }),
        None => Ok((open(place)?, name.to_owned())),
    }
}

/// Is this a valid name of a checkpoint in a place?
#[must_use]
pub fn is_name_at(name: &str) -> bool {
    match name.split_once('/') {
        Some((directory, own)) => job_of(directory).is_some() && is_name(own),
        None => is_name(name),
    }
}

/// The jobs that have a directory in a place.
fn jobs(place: &str) -> Result<Vec<u64>, CheckpointError> {
    let mut jobs: Vec<u64> = open(place)?.names()?.iter().filter_map(|name| job_of(name)).collect();
    jobs.sort_unstable();
    Ok(jobs)
}

/// All checkpoints of a place: first those outside of all jobs' directories, then job by job.
pub fn list_all(place: &str) -> Result<Vec<Listed>, CheckpointError> {
    let mut all = catalog::list(&*open(place)?)?;
    for job in jobs(place)? {
        // If one job's directory cannot be read, for example because it belongs to another user, the other jobs are still listed.
        match catalog::list(&*open_job(place, job)?) {
            Ok(of_job) => all.extend(
                of_job.into_iter().map(|listed| Listed { name: name_of_job(job, &listed.name), ..listed }),
            ),
            Err(error) => all.push(Listed { name: job_name(job), bytes: 0, manifest: Err(error) }),
        }
    }
    Ok(all)
}

/// The checkpoint for `checkpoint.restore = latest`: the job's own newest checkpoint or, if it has none, the newest of any job.
/// `gradwire launch` gives each job a new number, so a training that is launched again has no checkpoint of its own.
pub fn newest_of(place: &str, job: u64) -> Result<Option<String>, CheckpointError> {
    if let Some(own) = catalog::newest(&*open_job(place, job)?)? {
        return Ok(Some(name_of_job(job, &own.name)));
    }
    let mut newest: Option<(u64, String)> = None;
    for Listed { name, manifest, .. } in list_all(place)? {
        if matches!(manifest, Err(CheckpointError::Io { .. })) && name.starts_with(JOB) {
            // It belongs to another user, or its job is removing it at this moment.
            continue;
        }
        // A checkpoint whose manifest is damaged may be the newest.
        let unclear =
            |why| CheckpointError::Unclear { name: name.clone(), place: place.into(), why: Box::new(why) };
        if let Some(manifest) = manifest.map_err(unclear)? {
            newest = newest.max(Some((manifest.unix_ms, name)));
        }
    }
    Ok(newest.map(|(_, name)| name))
}

/// Resolves a name in `checkpoint.restore`: a name without a directory means this job's checkpoint, if the job has one of this name.
pub fn resolve(place: &str, job: u64, name: &str) -> Result<String, CheckpointError> {
    let is_own = !name.contains('/') && crate::restore::manifest(&*open_job(place, job)?, name)?.is_some();
    Ok(if is_own { name_of_job(job, name) } else { name.to_owned() })
}

/// The store at a directory's path or an object store's URL.
pub fn open(place: &str) -> Result<Arc<dyn Store>, CheckpointError> {
    match place.split_once("://") {
        None => Ok(Arc::new(Directory::new(place))),
        #[cfg(feature = "object-store")]
        Some(_) => Ok(Arc::new(crate::bucket::Bucket::open(place)?)),
        #[cfg(not(feature = "object-store"))]
        Some(_) => {
            let why = "this build knows directories only; build it with the feature object-store".to_owned();
            Err(CheckpointError::BadPlace { place: place.into(), why })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_into_jobs_directories_and_nowhere_else() {
        assert_eq!(name_of_job(7, "round-000000001"), "job-7/round-000000001");
        assert_eq!(own_name(7, "job-7/round-000000001"), Some("round-000000001"));
        for other in ["job-8/round-000000001", "round-000000001", "job-07/round-000000001"] {
            assert_eq!(own_name(7, other), None, "{other}");
        }
        let place = |name| find("place/", name).map(|(store, own)| (store.place(), own));
        assert_eq!(place("job-7/a").unwrap(), ("place/job-7".into(), "a".into()));
        assert_eq!(place("a").unwrap(), ("place/".into(), "a".into()));
        for name in ["../a", "job-7/../a", "job-+7/a", "job-7x/a", "/a", "owner/a"] {
            let opened = place(name).and_then(|_| {
                let (store, own) = find("place", name)?;
                crate::restore::manifest(&*store, &own)
            });
            assert!(matches!(opened, Err(CheckpointError::BadName { .. })), "{name}: {opened:?}");
            assert!(!is_name_at(name));
        }
        assert!(is_name_at("job-7/round-000000001") && is_name_at("round-000000001-again"));
    }
}
