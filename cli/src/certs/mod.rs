//! `gradwire certs`: makes a cluster's certificate authority and the certificates of its processes, and shows them. It speaks
//! to nobody; who uses certificates, and how, is the `daemon` crate's.

mod file;
mod show;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use daemon::exit::{Failure, WithCode as _};
use daemon::security::authority::{Authority, AuthorityError, Pair, Validity};
use daemon::security::{Certificate, Name, role_of};
use daemon::small_file;
use file::{EVERYBODY, OWNER_ONLY, make, put, trust};
use proto_common::error::ExitCode;
use proto_common::ids::{JobId, Role};
use std::fs;
use std::io;
use std::path::PathBuf;

const CA: &str = "ca.pem";
const CA_KEY: &str = "ca.key";
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";

/// Create and show the certificates that a cluster's processes authenticate with: init, issue, show
///
/// On addresses other than loopback, both sides of every control connection present a certificate. One authority signs all
/// certificates: create it once (`gradwire certs init`) on a machine that you trust, and keep its key there. Then issue one
/// certificate for each role or host (`gradwire certs issue --role server --out DIR`), and copy DIR to the hosts of the
/// processes. The settings security.ca, security.certificate and security.key name the three files in DIR. A certificate is
/// valid for one role or all roles, and for one job or all jobs; host names are not checked. Processes read renewed files
/// without a restart.
#[derive(Args, Debug)]
pub(crate) struct CertsArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Create the authority: ca.pem, which every process needs, and ca.key, which must stay secret.
    Init(InitArgs),
    /// Issue a certificate for one role or all roles: a directory with ca.pem, certificate.pem and key.pem.
    Issue(IssueArgs),
    /// Show the role, job and expiry of certificates.
    Show(show::ShowArgs),
}

#[derive(Args, Debug)]
struct InitArgs {
    /// Directory of the authority; created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "gradwire-ca")]
    ca: PathBuf,
    /// Its name, for people.
    #[arg(long, default_value = "Gradwire cluster")]
    name: String,
    /// Validity in days.
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..))]
    days: u32,
}

#[derive(Args, Debug)]
struct IssueArgs {
    /// Directory of the authority.
    #[arg(long, value_name = "DIR", default_value = "gradwire-ca")]
    ca: PathBuf,
    /// Role of the holder: scheduler, server, worker, or any. Default for a renewal: the roles of the previous certificate.
    #[arg(long, value_parser = role, required_unless_present = "replace")]
    role: Option<Word<Role>>,
    /// Job of the holder: the setting `job`, or any. Default: any; for a renewal, the jobs of the previous certificate.
    #[arg(long, value_parser = job)]
    job: Option<Word<JobId>>,
    /// Directory for the three files; created if it does not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Name shown to people. Default: role and job.
    #[arg(long)]
    name: Option<String>,
    /// Validity in days.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..))]
    days: u32,
    /// Renew: replace existing files. Role and job are kept unless given; owner, group, mode and other authorities in ca.pem
    /// are kept. Running processes read the new files without a restart.
    #[arg(long)]
    replace: bool,
}

/// One of something, or any.
#[derive(Clone, Copy, Debug)]
struct Word<T>(Option<T>);

fn role(word: &str) -> Result<Word<Role>, String> {
    match word {
        "any" => Ok(Word(None)),
        word => role_of(word)
            .map(|role| Word(Some(role)))
            .ok_or_else(|| "use scheduler, server, worker or any".to_owned()),
    }
}

fn job(word: &str) -> Result<Word<JobId>, String> {
    match word {
        "any" => Ok(Word(None)),
        word => {
            let number =
                word.parse().map_err(|_| "use the number that the setting `job` has, or any".to_owned())?;
            Ok(Word(Some(JobId(number))))
        }
    }
}

pub(crate) fn run(args: &CertsArgs) -> Result<(), anyhow::Error> {
    let text = match &args.what {
        What::Init(args) => init(args)?,
        What::Issue(args) => issue(args)?,
        What::Show(args) => show::show(args)?,
    };
    Ok(crate::common::print(&text)?)
}

fn init(args: &InitArgs) -> Result<String, Failure> {
    let directory = &args.ca;
    let taken = [CA, CA_KEY].iter().map(|name| directory.join(name)).find(|path| path.exists());
    if let Some(path) = taken {
        let text = format!(
            "{} already exists, and certificates of another authority would be rejected: name another directory with --ca, or remove it",
            path.display()
        );
        return Err(Failure::message(ExitCode::Io, text));
    }
    let authority = Authority::new(&args.name, Validity::days(args.days)).map_err(failure)?;
    let pair = authority.pair();
    make(directory, 0o700)?;
    put(&directory.join(CA_KEY), &pair.key, OWNER_ONLY)?;
    put(&directory.join(CA), &pair.certificate, EVERYBODY)?;
    let at = directory.display();
    Ok(format!(
        "{at}/{CA_KEY}  signs; keep it on this machine, and a copy in a safe place\n\
         {at}/{CA}   goes to every process\n\
         next: gradwire certs issue --ca {at} --role scheduler --job JOB --out scheduler-tls, and so for server and worker; JOB \
         is the setting `job`"
    ))
}

fn issue(args: &IssueArgs) -> Result<String, Failure> {
    let read = |name: &str| {
        let path = args.ca.join(name);
        let fix = "create the authority with `gradwire certs init`, or give its directory with --ca";
        small_file::read_text(&path)
            .with_context(|| format!("cannot read {}; {fix}", path.display()))
            .code(ExitCode::Io)
    };
    let authority = Authority::open(Pair { certificate: read(CA)?, key: read(CA_KEY)? }).map_err(failure)?;
    let out = &args.out;
    let taken = [KEY, CERTIFICATE].iter().map(|name| out.join(name)).find(|path| path.exists());
    if let Some(path) = taken.filter(|_| !args.replace) {
        let text = format!("{} already exists: give --replace to renew it, or another --out", path.display());
        return Err(Failure::message(ExitCode::Io, text));
    }
    let names = names_of(args)?;
    let all = names.iter().map(Name::to_string).collect::<Vec<_>>().join(", ");
    let label = args.name.clone().unwrap_or_else(|| all.clone());
    let issued = authority.issue(&label, &names, Validity::days(args.days)).map_err(failure)?;
    make(out, 0o755)?;
    let note = trust(&out.join(CA), &authority.pair().certificate)?;
    // The key first: whoever looks in between finds a pair that does not fit, and keeps the old one.
    put(&out.join(KEY), &issued.key, OWNER_ONLY)?;
    put(&out.join(CERTIFICATE), &issued.certificate, EVERYBODY)?;
    let absolute = fs::canonicalize(out).code(ExitCode::Io)?;
    let at = absolute.display();
    let note = note.map_or_else(String::new, |note| format!(" {note}."));
    let every = if names.iter().any(|name| name.job.is_none()) { "every job and " } else { "" };
    Ok(format!(
        "{all}, good for {every}{} days.{note} Settings of its holder:\n\n[security]\nca = \"{at}/{CA}\"\ncertificate = \
         \"{at}/{CERTIFICATE}\"\nkey = \"{at}/{KEY}\"",
        args.days
    ))
}

fn failure(error: AuthorityError) -> Failure {
    let code = match error {
        AuthorityError::Kept { .. } => ExitCode::BadData,
        AuthorityError::Time(_) => ExitCode::Usage,
        AuthorityError::Made(_) => ExitCode::Internal,
    };
    Failure::new(code, error)
}

/// The job and role that a new certificate is for, from the flags. What the flags leave open is taken from the certificate that it
/// replaces, so that a renewal does not permit more than before unasked.
fn names_of(args: &IssueArgs) -> Result<Vec<Name>, Failure> {
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
