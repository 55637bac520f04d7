//! Certificates of one launch, for processes that reach each other beyond loopback. The launcher makes an authority that lives as
//! long as this function call, and the authority signs one certificate for each role of this job. Processes receive them as
//! variables: on other hosts through ssh's input, in the tasks of Slurm and MPI through the environment that srun and mpirun pass
//! on. It must not write a file, and it must not keep the authority's key.

use super::ranks::value;
use daemon::exit::{Failure, WithCode as _};
use daemon::security::Name;
use daemon::security::authority::{Authority, Validity};
use daemon::settings::variable_of;
use proto_common::error::ExitCode;
use proto_common::ids::{JobId, Role};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The variable in which a launcher passes certificates of all roles to the launchers in the tasks of Slurm or MPI. Each of
/// them gives its process the certificate of its role only, and removes this variable.
pub(super) const VARIABLE: &str = "GRADWIRE_LAUNCH_TRUST";
/// Longer than any job.
const DAYS: u32 = 3650;
/// The certificates of one launch.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Trust {
    ca: String,
    of_roles: Vec<OfRole>,
}

#[derive(Clone, Serialize, Deserialize)]
struct OfRole {
    role: Role,
    certificate: String,
    key: String,
}

impl fmt::Debug for Trust {
    /// Keys must not reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust(..)")
    }
}

impl Trust {
    /// The certificates that another launcher has passed on to this one.
    pub(super) fn passed_on(env: &[(String, String)]) -> Result<Option<Self>, Failure> {
        let unreadable = |error: serde_json::Error| {
            let text =
                format!("{VARIABLE} is damaged ({error}); all nodes need the same version of gradwire");
            Failure::message(ExitCode::Usage, text)
        };
        value(env, VARIABLE).map(|text| serde_json::from_str(text).map_err(unreadable)).transpose()
    }

    /// The variable for other launchers.
    pub(super) fn to_pass_on(&self) -> Result<(String, String), Failure> {
        Ok((VARIABLE.into(), serde_json::to_string(self).code(ExitCode::Internal)?))
    }

    pub(super) fn new(job: Option<JobId>) -> Result<Self, Failure> {
        let authority = Authority::new("gradwire launch", Validity::days(DAYS)).code(ExitCode::Internal)?;
        let issue = |role: Role| {
            let name = Name { job, role: Some(role) };
            let pair =
                authority.issue("gradwire launch", &[name], Validity::days(DAYS)).code(ExitCode::Internal)?;
            Ok::<_, Failure>(OfRole { role, certificate: pair.certificate, key: pair.key })
        };
        let of_roles =
            [Role::Scheduler, Role::Server, Role::Worker].into_iter().map(issue).collect::<Result<_, _>>()?;
        Ok(Self { ca: authority.pair().certificate.clone(), of_roles })
    }

    /// The settings of a process of this role.
    pub(super) fn variables(&self, role: Role) -> Vec<(String, String)> {
        let own = self.of_roles.iter().filter(|of| of.role == role);
        own.flat_map(|of| {
            [("security.ca", &self.ca), ("security.certificate", &of.certificate), ("security.key", &of.key)]
        })
        .map(|(key, text)| (variable_of(key), text.clone()))
        .collect()
    }
}
