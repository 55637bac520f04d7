//! Certificates of one launch, for processes that reach each other beyond loopback. The launcher makes an authority that lives as
//! long as this function call, and the authority signs one certificate for each role of this job. Processes receive them as
//! variables: on other hosts through ssh's input, in the tasks of Slurm and MPI through the environment that srun and mpirun pass
//! on. It must not write a file, and it must not keep the authority's key.

use super::args::LaunchArgs;
use super::hosts::is_loopback;
use super::kind::Kind;
use super::plan::{Meeting, Plan};
use super::ranks::{is_handed_on, value};
use super::variables;
use daemon::exit::{Failure, WithCode as _};
use daemon::security::Name;
use daemon::security::authority::{Authority, Validity};
use daemon::settings::{load_settings, variable_of};
use proto_common::error::ExitCode;
use proto_common::ids::{JobId, Role};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The variable in which a launcher passes certificates of all roles to the launchers in the tasks of Slurm or MPI. Each of
/// them gives its process the certificate of its role only, and removes this variable.
pub(super) const VARIABLE: &str = "GRADWIRE_LAUNCH_TRUST";
/// Longer than any job.
const DAYS: u32 = 3650;
const SETTINGS: [&str; 4] = ["security.mode", "security.ca", "security.certificate", "security.key"];

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
    /// Certificates for a plan whose processes reach each other beyond loopback, unless the user has set `security`.
    pub(super) fn of(plan: &Plan, env: &[(String, String)]) -> Result<Option<Self>, Failure> {
        let given = [env, &plan.common[..]].concat();
        if !needs_certificates(plan, &given) {
            return Ok(None);
        }
        if !plan.is_part() {
            return Self::new(job_in(&given)).map(Some);
        }
        let unreadable = |error: serde_json::Error| {
            let text =
                format!("{VARIABLE} is damaged ({error}); all nodes need the same version of gradwire");
            Failure::message(ExitCode::Usage, text)
        };
        value(env, VARIABLE).map(|text| serde_json::from_str(text).map_err(unreadable)).transpose()
    }

    fn new(job: Option<JobId>) -> Result<Self, Failure> {
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

/// What srun or mpirun has to pass on to the tasks: the job's id and the certificates for it. Nothing where the user has set
/// `security`. The tasks ignore the certificates where all of them are on one host.
pub(super) fn for_tasks(
    args: &LaunchArgs,
    env: &[(String, String)],
    kind: Kind,
) -> Result<Vec<(String, String)>, Failure> {
    let counts = (args.servers.unwrap_or(1), args.workers.unwrap_or(1));
    let given = [env, &variables::common(args, env, kind, counts)?[..]].concat();
    if is_set(&given) {
        return Ok(Vec::new());
    }
    let job = match job_in(&given) {
        Some(job) => job,
        None => JobId(daemon::host::new_incarnation()?.0),
    };
    let text = serde_json::to_string(&Trust::new(Some(job))?).code(ExitCode::Internal)?;
    Ok(vec![(variable_of("job"), job.to_string()), (VARIABLE.into(), text)])
}

/// What to do about tasks on several hosts that have received no certificates, because srun or mpirun was started by hand.
pub(super) fn advice(plan: &Plan, env: &[(String, String)]) -> Option<String> {
    let given = [env, &plan.common[..]].concat();
    let starter = match plan.kind {
        Kind::Slurm => "srun",
        Kind::Mpi => "mpirun",
        _ => return None,
    };
    if plan.trust.is_some() || !needs_certificates(plan, &given) {
        return None;
    }
    Some(format!(
        "the tasks are on several hosts and have no certificates: run gradwire launch --cluster {} without {starter}, which makes \
         them for each job, or set security.ca, security.certificate and security.key (gradwire certs issue --role any)",
        plan.kind.name()
    ))
}

fn needs_certificates(plan: &Plan, given: &[(String, String)]) -> bool {
    let meets = match &plan.meeting {
        Meeting::Asked { host, .. } => host,
        Meeting::Known(root) => &root.host,
    };
    plan.kind != Kind::BytePs && !is_loopback(meets) && !is_set(given)
}

/// Has the user set anything about certificates, in variables, flags or a settings file?
fn is_set(given: &[(String, String)]) -> bool {
    let in_variables = SETTINGS.iter().any(|key| value(given, &variable_of(key)).is_some());
    let known: Vec<(String, String)> =
        given.iter().filter(|(name, _)| !is_handed_on(name)).cloned().collect();
    // A process reports by itself what is wrong with its settings.
    let in_files = load_settings(Role::Scheduler, &known, None, &[])
        .is_ok_and(|loaded| SETTINGS.iter().any(|key| loaded.origins.contains_key(*key)));
    in_variables || in_files
}

fn job_in(given: &[(String, String)]) -> Option<JobId> {
    value(given, &variable_of("job")).and_then(|job| job.parse().ok()).map(JobId)
}
