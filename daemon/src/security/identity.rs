//! Who a certificate speaks for: `gradwire://JOB/ROLE` among its names, once or more often, each part a word or `any`. Names of
//! hosts say nothing here: processes move between hosts, and every host has processes of several roles.

use proto_common::ids::{JobId, Role};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

const SCHEME: &str = "gradwire://";
const ANY: &str = "any";
/// Names of one certificate that are looked at.
const NAMES_MAX: usize = 64;

/// One name: a job or all, a role or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The job; none: every job.
    pub job: Option<JobId>,
    /// The role; none: every role.
    pub role: Option<Role>,
}

/// What is no name of ours.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} is not gradwire://JOB/ROLE with a job's number or `any`, and scheduler, server, worker or `any`"
)]
pub struct NotAName(String);

impl Name {
    fn permits(self, job: JobId, role: Role) -> bool {
        self.job.is_none_or(|own| own == job) && self.role.is_none_or(|own| own == role)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = self.job.map_or(ANY.to_owned(), |job| job.to_string());
        let role = self.role.map_or(ANY.to_owned(), |role| role.to_string());
        write!(f, "{SCHEME}{job}/{role}")
    }
}

/// A role by its name, as certificates and flags have it.
#[must_use]
pub fn role_of(word: &str) -> Option<Role> {
    [Role::Scheduler, Role::Server, Role::Worker].into_iter().find(|role| role.to_string() == word)
}

impl FromStr for Name {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let not_ours = || NotAName(text.chars().take(80).collect());
        let (job, role) =
            text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/')).ok_or_else(not_ours)?;
        let job = match job {
            ANY => None,
            number => Some(JobId(number.parse().map_err(|_| not_ours())?)),
        };
        let role = match role {
            ANY => None,
            word => Some(role_of(word).ok_or_else(not_ours)?),
        };
        let name = Self { job, role };
        // One way to write each: no signs, no leading zeros.
        if name.to_string() == text { Ok(name) } else { Err(not_ours()) }
    }
}

/// A certificate that speaks for no process of this job.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "its certificate is for {held}, but this is job {job}; issue one for this job: gradwire certs issue --job {job}, with a role"
)]
pub struct NotOfJob {
    /// What it may be.
    pub held: String,
    /// The job that it speaks to.
    pub job: JobId,
}

/// Whom a certificate speaks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    names: Vec<Name>,
}

/// A certificate that does not speak for what its holder claims to be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "its certificate is for {held}, but it claims to be a {role} of job {job}; issue one for that: gradwire certs issue --job {job} --role {role}"
)]
pub struct NotPermitted {
    /// What it may be.
    pub held: String,
    /// The role that it claims.
    pub role: Role,
    /// The job that it claims.
    pub job: JobId,
}

impl Identity {
    /// Takes what is a name of ours among a certificate's.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self { names: names.into_iter().take(NAMES_MAX).filter_map(|name| name.parse().ok()).collect() }
    }

    /// All of it.
    #[must_use]
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// Does it speak for such a process?
    pub fn permits(&self, job: JobId, role: Role) -> Result<(), NotPermitted> {
        let may = self.names.iter().any(|name| name.permits(job, role));
        if may { Ok(()) } else { Err(NotPermitted { held: self.to_string(), role, job }) }
    }

    /// Does it speak for any process of this job?
    pub fn permits_job(&self, job: JobId) -> Result<(), NotOfJob> {
        let may = self.names.iter().any(|name| name.job.is_none_or(|own| own == job));
        if may { Ok(()) } else { Err(NotOfJob { held: self.to_string(), job }) }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.names.is_empty() {
            return f.write_str("nothing of Gradwire's");
        }
        for (at, name) in self.names.iter().enumerate() {
            write!(f, "{}{name}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in ["gradwire://7/worker", "gradwire://any/server", "gradwire://0/any", "gradwire://any/any"]
        {
            assert_eq!(text.parse::<Name>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "gradwire://",
            "gradwire://7",
            "gradwire://+7/any",
            "gradwire://07/any",
            "gradwire://7/boss",
            "gradwire://7/any/",
            "https://7/any",
            "gradwire://18446744073709551616/any",
        ] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
    }

    #[test]
    fn job_and_role_have_to_be_named_together() {
        let identity = Identity::of(["gradwire://7/worker", "gradwire://any/server", "host-1"]);
        assert_eq!(identity.permits(JobId(7), Role::Worker), Ok(()));
        assert_eq!(identity.permits(JobId(8), Role::Server), Ok(()));
        let refused = identity.permits(JobId(8), Role::Worker).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("gradwire://7/worker") && text.contains("worker of job 8"), "{text}");
        assert!(identity.permits(JobId(7), Role::Scheduler).is_err());
        assert!(Identity::default().permits(JobId(7), Role::Worker).is_err());
    }

    #[test]
    fn any_role_of_a_job_is_of_that_job() {
        let identity = Identity::of(["gradwire://7/worker"]);
        assert_eq!(identity.permits_job(JobId(7)), Ok(()));
        let refused = identity.permits_job(JobId(8)).unwrap_err().to_string();
        assert!(refused.contains("gradwire://7/worker") && refused.contains("job 8"), "{refused}");
        assert_eq!(Identity::of(["gradwire://any/server"]).permits_job(JobId(8)), Ok(()));
        assert!(Identity::of(["host-1"]).permits_job(JobId(7)).is_err());
    }

    #[test]
    fn names_beyond_the_bound_count_for_nothing() {
        let many = vec!["gradwire://1/worker"; NAMES_MAX].into_iter();
        let last = Identity::of(many.clone().take(NAMES_MAX - 1).chain(["gradwire://2/worker"]));
        assert!(last.permits(JobId(2), Role::Worker).is_ok());
        let beyond = Identity::of(many.chain(["gradwire://2/worker"]));
        assert!(beyond.permits(JobId(2), Role::Worker).is_err());
    }
}
