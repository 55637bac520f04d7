//! How the processes of one launch know each other beyond loopback: an authority that lives as long as this plan is made signs
//! a certificate for each role of this job. They go to processes as the rest of their settings does, in variables, which on
//! other hosts come through ssh's input. No file is written, and the authority's key is never kept.

use super::hosts::is_loopback;
use super::plan::{Meeting, Plan};
use super::ranks::value;
use daemon::exit::{Failure, WithCode as _};
use daemon::security::Name;
use daemon::security::authority::{Authority, Pair, Validity};
use daemon::settings::variable_of;
use proto_common::error::ExitCode;
use proto_common::ids::{JobId, Role};

/// Longer than any job.
const DAYS: u32 = 3650;
const SETTINGS: [&str; 4] = ["security.mode", "security.ca", "security.certificate", "security.key"];

/// The certificates of one launch.
#[derive(Clone, Debug)]
pub(super) struct Trust {
    ca: String,
    of_roles: Vec<(Role, Pair)>,
}

impl Trust {
    /// Certificates for a plan whose processes reach each other beyond loopback, where nothing else is said about it.
    pub(super) fn of(plan: &Plan, env: &[(String, String)]) -> Result<Option<Self>, Failure> {
        let given = [env, &plan.common[..]].concat();
        let is_said = SETTINGS.iter().any(|key| value(&given, &variable_of(key)).is_some());
        let meets = match &plan.meeting {
            Meeting::Asked { host, .. } => host,
            Meeting::Known(root) => &root.host,
        };
        // Others start the rest of the cluster, and would have to be told.
        if is_said || plan.is_part() || is_loopback(meets) {
            return Ok(None);
        }
        let job = value(&given, &variable_of("job")).and_then(|job| job.parse().ok()).map(JobId);
        let authority = Authority::new("gradwire launch", Validity::days(DAYS)).code(ExitCode::Internal)?;
        let issue = |role: Role| {
            let name = Name { job, role: Some(role) };
            let pair =
                authority.issue("gradwire launch", &[name], Validity::days(DAYS)).code(ExitCode::Internal)?;
            Ok::<_, Failure>((role, pair))
        };
        let of_roles =
            [Role::Scheduler, Role::Server, Role::Worker].into_iter().map(issue).collect::<Result<_, _>>()?;
        Ok(Some(Self { ca: authority.pair().certificate.clone(), of_roles }))
    }

    /// What a process of this role is told.
    pub(super) fn variables(&self, role: Role) -> Vec<(String, String)> {
        let own = self.of_roles.iter().filter(|(of, _)| *of == role);
        own.flat_map(|(_, pair)| {
            [
                ("security.ca", &self.ca),
                ("security.certificate", &pair.certificate),
                ("security.key", &pair.key),
            ]
        })
        .map(|(key, text)| (variable_of(key), text.clone()))
        .collect()
    }
}
