//! `gradwire certs show`: what certificates say, as text or JSON. It judges only whether their time is over.

use anyhow::Context as _;
use clap::Args;
use daemon::exit::{Failure, WithCode as _};
use daemon::security::Certificate;
use daemon::small_file;
use proto_common::error::ExitCode;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;

#[derive(Args, Debug)]
pub(super) struct ShowArgs {
    /// Certificate files, such as certificate.pem and ca.pem.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON: times are seconds since 1970.
    #[arg(long)]
    json: bool,
}

pub(super) fn show(args: &ShowArgs) -> Result<String, Failure> {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let mut found = Vec::new();
    for path in &args.files {
        let name = path.display().to_string();
        let pem = small_file::read(path).with_context(|| format!("cannot read {name}")).code(ExitCode::Io)?;
        let all = Certificate::all_of_pem(&pem).context(name.clone()).code(ExitCode::BadData)?;
        found.extend(all.into_iter().map(|one| (name.clone(), one)));
    }
    if args.json {
        return Ok(
            Value::from(found.iter().map(|(name, one)| value(name, one)).collect::<Vec<_>>()).to_string()
        );
    }
    let texts = found.iter().map(|(name, one)| text(name, one, now_s));
    Ok(texts.collect::<Vec<_>>().join("\n\n"))
}

fn value(name: &str, one: &Certificate) -> Value {
    json!({
        "file": name,
        "for": one.identity.to_string(),
        "authority": one.is_authority,
        "subject": one.subject,
        "issuer": one.issuer,
        "not_before": one.not_before_s,
        "not_after": one.not_after_s,
        "serial": one.serial,
        "sha256": one.fingerprint,
    })
}

fn text(name: &str, one: &Certificate, now_s: i64) -> String {
    let held = match one.is_authority {
        true => "an authority: signs the others".to_owned(),
        false => one.identity.to_string(),
    };
    let left_days = (one.not_after_s - now_s) / 86_400;
    let state = match now_s {
        now if now > one.not_after_s => "EXPIRED".to_owned(),
        now if now < one.not_before_s => "NOT VALID YET: check this host's clock".to_owned(),
        _ => format!("{left_days} days left"),
    };
    format!(
        "{name}\n  for      {held}\n  until    {} ({state})\n  name     {}\n  signed   {}\n  serial   {}\n  sha256   {}",
        day(one.not_after_s),
        one.subject,
        one.issuer,
        one.serial,
        one.fingerprint
    )
}

fn day(seconds: i64) -> String {
    // What no calendar has is shown as it is.
    OffsetDateTime::from_unix_timestamp(seconds).map_or(seconds.to_string(), |time| time.date().to_string())
}
