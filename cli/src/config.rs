//! `gradwire config`: checks settings before anything is started with them, shows which are in force and where each came from,
//! and prints a sample file. What settings mean stands with their types; nothing is written down twice.

use crate::common::{environment_of_no_role, print, role};
use clap::{Args, Subcommand};
use daemon::exit::Failure;
use daemon::security::{Security, role_of};
use daemon::settings::{CommonArgs, Loaded, Reference, load_settings, reference};
use proto_common::config::is_pem;
use proto_common::error::ExitCode;
use proto_common::ids::Role;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Columns of a sample file's comments.
const COLUMNS: usize = 100;

/// Check settings, show the effective ones, print a sample file: check, show, sample
#[derive(Args, Debug)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Check a settings file: names, values, bounds and contradictions. Starts nothing and ignores environment variables. Exit
    /// code 78 if the file is invalid.
    Check(CheckArgs),
    /// Print every setting that a process started here with these flags would use, and its source.
    Show(ShowArgs),
    /// Print a settings file with every setting, its meaning and its default, as comments.
    Sample,
}

#[derive(Args, Debug)]
struct CheckArgs {
    /// Settings files. ROLE.toml is checked for that role; any other file for all three roles, unless --role is given.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Role: scheduler, server or worker.
    #[arg(long, value_name = "ROLE", value_parser = role)]
    role: Option<Role>,
}

#[derive(Args, Debug)]
struct ShowArgs {
    /// Role: scheduler, server or worker.
    #[arg(long, value_name = "ROLE", default_value = "server", value_parser = role)]
    role: Role,
    /// Print only settings that differ from their defaults.
    #[arg(long)]
    changed: bool,
    #[command(flatten)]
    common: CommonArgs,
}

pub(crate) fn run(args: &ConfigArgs) -> Result<(), anyhow::Error> {
    let (text, code) = match &args.what {
        What::Check(args) => check(args),
        What::Show(args) => (show(args)?, ExitCode::Ok),
        What::Sample => (sample(), ExitCode::Ok),
    };
    print(&text)?;
    match code {
        ExitCode::Ok => Ok(()),
        code => Err(Failure::message(code, "invalid settings").into()),
    }
}

fn check(args: &CheckArgs) -> (String, ExitCode) {
    let (mut text, mut code) = (String::new(), ExitCode::Ok);
    for file in &args.files {
        for role in roles(file, args.role) {
            let checked =
                load_settings(role, &[], Some(file), &[]).map_err(anyhow::Error::from).and_then(|loaded| {
                    Security::open(&loaded.settings, Some(role))?;
                    Ok(loaded)
                });
            let _ = match checked {
                Ok(loaded) => {
                    let said = loaded.origins.len();
                    writeln!(
                        text,
                        "ok    {} for a {role}: {said} settings, defaults for all others",
                        file.display()
                    )
                }
                Err(error) => {
                    code = ExitCode::Config;
                    writeln!(
                        text,
                        "WRONG {} for a {role}: {}",
                        file.display(),
                        daemon::exit::describe(&error)
                    )
                }
            };
        }
    }
    (text, code)
}

fn roles(file: &Path, given: Option<Role>) -> Vec<Role> {
    let by_name = file.file_stem().and_then(|stem| role_of(stem.to_str()?));
    match given.or(by_name) {
        Some(role) => vec![role],
        None => vec![Role::Scheduler, Role::Server, Role::Worker],
    }
}

fn show(args: &ShowArgs) -> Result<String, anyhow::Error> {
    let loaded = args.common.load(args.role, &environment_of_no_role())?;
    let mut text = String::new();
    for (key, value) in values(&loaded) {
        let origin = loaded.origins.get(&key);
        if origin.is_some() || !args.changed {
            let from = origin.map_or("default", String::as_str);
            let _ = writeln!(text, "{key:<34} {value:<28} {from}");
        }
    }
    let files: Vec<_> = loaded.files.iter().map(|file| file.display().to_string()).collect();
    let read = if files.is_empty() { "no settings file".to_owned() } else { files.join(", ") };
    let _ = writeln!(text, "\nread: {read}");
    for warning in &loaded.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    Ok(text)
}

/// Every setting as it is in force; keys of certificates are not shown.
fn values(loaded: &Loaded) -> Vec<(String, String)> {
    let shown = |(key, value): (String, String)| match key.as_str() {
        "security.key" if is_pem(&value) => (key, "(text, not shown)".to_owned()),
        _ => (key, value.lines().next().unwrap_or_default().to_owned()),
    };
    loaded.values().into_iter().map(shown).collect()
}

/// A settings file that changes nothing: all of it is comments.
fn sample() -> String {
    let mut text = String::from(
        "# Settings of Gradwire, each with its meaning and its default. `gradwire config sample` prints this file, and\n\
         # `gradwire config check FILE` checks one that is made of it.\n#\n\
         # Flags come before the environment (GRADWIRE_SECTION__NAME), and that before this file: ./gradwire.toml, or what\n\
         # --config or GRADWIRE_CONFIG names.\n",
    );
    let mut section = String::new();
    let (of_none, of_sections): (Vec<_>, Vec<_>) =
        reference().into_iter().partition(|line| !line.key.contains('.'));
    // What follows a section's head belongs to it.
    for line in of_none.into_iter().chain(of_sections) {
        let (head, name) = line.key.split_once('.').unwrap_or(("", &line.key));
        if head != section {
            let _ = write!(text, "\n[{head}]\n");
            section = head.to_owned();
        }
        describe(&mut text, &line, name);
    }
    text
}

fn describe(text: &mut String, line: &Reference, name: &str) {
    let mut comment = String::from("\n#");
    for word in line.meaning.split_whitespace() {
        let width = comment.len() - comment.rfind('\n').map_or(0, |at| at + 1);
        if width + 1 + word.len() > COLUMNS {
            comment.push_str("\n#");
        }
        comment.push(' ');
        comment.push_str(word);
    }
    text.push_str(&comment);
    let _ = match &line.default_toml {
        Some(value) => write!(text, "\n#{name} = {value}\n"),
        None => write!(text, "\n#{name} =\n"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_the_committed_one_and_all_of_it_is_good() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/gradwire.toml");
        let written = std::fs::read_to_string(path).unwrap();
        let fix = "write it anew: cargo run -p gradwire-cli -- config sample > deploy/gradwire.toml";
        assert!(
            written.trim_end() == sample().trim_end(),
            "deploy/gradwire.toml is not what the types say; {fix}"
        );
        // With every default said, and without what has none.
        let is_set = |line: &&str| !line.ends_with(" =") && line.trim_start_matches('#').contains(" = ");
        let said: Vec<_> = written.lines().filter(|line| line.starts_with('[') || is_set(line)).collect();
        let said =
            said.into_iter().filter(|line| !line.starts_with("# ")).map(|line| line.trim_start_matches('#'));
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("gradwire.toml");
        std::fs::write(&file, said.collect::<Vec<_>>().join("\n")).unwrap();
        let args = CheckArgs { files: vec![file], role: None };
        let (text, code) = check(&args);
        assert_eq!((code, text.matches("ok ").count()), (ExitCode::Ok, 3), "{text}");
    }

    #[test]
    fn keys_that_are_text_are_not_shown() {
        let shown = |key: &str| {
            let flag = daemon::settings::Override::new("--set", "security.key", key);
            let all = [("security.ca", "ca.pem"), ("security.certificate", "certificate.pem")];
            let all = all.map(|(name, value)| daemon::settings::Override::new("--set", name, value));
            let named = Some(Path::new("/dev/null"));
            let loaded = load_settings(Role::Server, &[], named, &[&all[..], &[flag]].concat()).unwrap();
            values(&loaded).into_iter().find(|(name, _)| name == "security.key").unwrap().1
        };
        assert_eq!(shown("tls/key.pem"), "tls/key.pem");
        for text in ["MIGHAgEAMBMG\nAgEGCCqGSM49", "Bag Attributes\n-----BEGIN PRIVATE KEY-----"] {
            assert_eq!(shown(text), "(text, not shown)");
        }
    }

    #[test]
    fn every_setting_says_what_it_means() {
        for line in reference() {
            assert!(!line.meaning.is_empty(), "{} has no documentation in its type", line.key);
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_fix_for_the_role_of_the_files_name() {
        let directory = tempfile::tempdir().unwrap();
        let checked = |name: &str, text: &str| {
            let file = directory.path().join(name);
            std::fs::write(&file, text).unwrap();
            check(&CheckArgs { files: vec![file], role: None })
        };
        let (text, code) = checked("server.toml", "[cluster]\nlane = 2\n");
        assert!(text.contains("did you mean cluster.lanes?") && code == ExitCode::Config, "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        let (text, _) = checked("x.toml", "[cluster]\nlanes = 0\n");
        assert_eq!(text.matches("invalid setting cluster.lanes = 0:").count(), 3, "{text}");
        let (text, _) = checked("worker.toml", "[scheduler]\nhost = \"10.0.0.1\"\n");
        assert!(text.contains("gradwire certs"), "{text}");
        let (text, _) =
            checked("y.toml", "security.ca = \"a\"\nsecurity.certificate = \"b\"\nsecurity.key = \"c\"\n");
        assert!(text.contains("cannot read security.ca = a"), "{text}");
        assert!(checked("z.toml", "= 3").0.contains("not valid TOML"));
        let device = check(&CheckArgs { files: vec!["/dev/zero".into()], role: Some(Role::Worker) }).0;
        assert!(device.contains("cannot read") && device.contains("not a regular file"), "{device}");
    }
}
