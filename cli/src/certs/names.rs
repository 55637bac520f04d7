//! Whom a certificate that is issued speaks for: what is said, and in a renewal what the one before said. It must not widen that
//! unasked.

use super::{CERTIFICATE, IssueArgs};
use anyhow::Context as _;
use daemon::exit::{Failure, WithCode as _};
use daemon::security::{Certificate, Name};
use daemon::small_file;
use proto_common::error::ExitCode;
use std::io;

/// As the flags and what they leave open say.
pub(super) fn of(args: &IssueArgs) -> Result<Vec<Name>, Failure> {
    if let (Some(role), Some(job)) = (args.role, args.job) {
        return Ok(vec![Name { job: job.0, role: role.0 }]);
    }
    let before = if args.replace { before(args)? } else { None };
    let Some((file, before)) = before else {
        let Some(role) = args.role else {
            let text = format!(
                "there is no {CERTIFICATE} in {}; give the role of the new one with --role",
                args.out.display()
            );
            return Err(Failure::message(ExitCode::Usage, text));
        };
        return Ok(vec![Name { job: None, role: role.0 }]);
    };
    let refuse = |what: &str| {
        let text = format!("{file} is for {}: {what}", before.identity);
        Err(Failure::message(ExitCode::Usage, text))
    };
    match (before.identity.names(), args.role, args.job) {
        ([], ..) => refuse("give role and job of the new one with --role and --job"),
        (names, None, None) => Ok(names.to_vec()),
        ([one], role, job) => Ok(vec![Name {
            job: job.map_or(one.job, |job| job.0),
            role: role.map_or(one.role, |role| role.0),
        }]),
        _ => refuse("give both --role and --job, or neither to renew it for all of them"),
    }
}

/// The certificate that is there, and its file.
fn before(args: &IssueArgs) -> Result<Option<(String, Certificate)>, Failure> {
    let path = args.out.join(CERTIFICATE);
    let name = path.display().to_string();
    let pem = match small_file::read(&path) {
        Ok(pem) => pem,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {name}")).code(ExitCode::Io),
    };
    let fix = || format!("cannot renew {name}; give role and job of the new one with --role and --job");
    let all = Certificate::all_of_pem(&pem).with_context(fix).code(ExitCode::BadData)?;
    // The holder's own is the first of a chain.
    Ok(all.into_iter().next().map(|first| (name, first)))
}
