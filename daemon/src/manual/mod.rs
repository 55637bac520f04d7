//! What a program says of itself: `PROGRAM --generate man|bash|zsh|fish DIRECTORY` writes its manual pages, or what completes its
//! command line in a shell, from the very definitions that its command line is read with. It must not know any one program:
//! examples and further pages are the program's own.

mod page;

pub use page::Text;

use crate::exit::run_main;
use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::{Arg, Command, Parser, ValueEnum};
use clap_complete::Shell;
use proto_common::ids::Role;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const GENERATE: &str = "generate";
/// What clap adds by itself has no page and needs no example.
const HELP: &str = "help";

/// What a program's pages say beside its command line.
#[derive(Clone, Copy, Debug)]
pub struct Manual {
    /// Examples, which `--help` shows, too: after a command and a colon, indented, lines that can be typed, each with a line
    /// below that says what it does.
    pub examples: &'static str,
    /// A daemon's role: its settings file is named after it.
    pub role: Option<Role>,
    /// Pages that are no command's, as (file name, text).
    pub others: fn() -> Vec<(&'static str, String)>,
}

impl Manual {
    fn examples_of(&self, path: &str) -> Vec<(&'static str, &'static str)> {
        let after = self.examples.lines().skip_while(|line| line.strip_suffix(':') != Some(path)).skip(1);
        let lines: Vec<_> = after.take_while(|line| line.starts_with(' ')).map(str::trim).collect();
        lines.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
    }
}

/// What is written.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Man,
    Bash,
    Zsh,
    Fish,
}

/// The command line of this process, or the code to end with where all that was asked for is done: `--generate`.
/// Ends the process as [`Parser::parse`] does on `--help` and on bad usage.
pub fn parse<A: Parser>(manual: &Manual) -> Result<A, ExitCode> {
    parse_from(manual, std::env::args_os().collect())
}

/// As [`parse`], of these words instead of the process's own.
pub fn parse_from<A: Parser>(manual: &Manual, words: Vec<OsString>) -> Result<A, ExitCode> {
    let mut command = with_manual(A::command(), manual);
    if words.get(1).is_some_and(|word| word == "--generate") {
        let (kind, directory) = wanted(&command, words);
        let name = command.get_name().to_owned();
        let write = || generate(command, manual, kind, &directory);
        let fix =
            || format!("cannot write into {}; name a directory that can be written", directory.display());
        return Err(run_main(&name, || write().with_context(fix)));
    }
    let matches = command.clone().get_matches_from(words);
    A::from_arg_matches(&matches).or_else(|error| error.format(&mut command).exit())
}

/// The command with `--generate`, and with its examples at the end of what `--help` says.
fn with_manual(command: Command, manual: &Manual) -> Command {
    let about = "Write manual pages, or completions for a shell, into a directory, and do nothing else. KIND is man, \
                 bash, zsh or fish";
    let generate = Arg::new(GENERATE).long(GENERATE).num_args(2).value_names(["KIND", "DIRECTORY"]);
    let command = command.arg(generate.value_parser(clap::value_parser!(OsString)).help(about));
    let name = command.get_name().to_owned();
    with_examples(command, &name, manual)
}

fn with_examples(mut command: Command, path: &str, manual: &Manual) -> Command {
    let below: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    for name in below {
        let path = format!("{path} {name}");
        command = command.mut_subcommand(name, |below| with_examples(below, &path, manual));
    }
    let examples = manual.examples_of(path);
    if examples.is_empty() {
        return command;
    }
    let lines = examples.iter().map(|(line, does)| format!("  {line}\n      {does}\n"));
    let text = format!("Examples:\n{}", lines.collect::<String>());
    let before = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
    command.after_long_help(before + text.trim_end())
}

/// What `--generate` is followed by.
fn wanted(command: &Command, words: Vec<OsString>) -> (Kind, PathBuf) {
    let mut command = command.clone().subcommand_required(false).arg_required_else_help(false);
    let matches = command.clone().get_matches_from(words);
    let values: Vec<&OsString> = matches.get_many(GENERATE).into_iter().flatten().collect();
    let kind = values.first().and_then(|kind| Kind::from_str(&kind.to_string_lossy(), false).ok());
    match (kind, values.get(1)) {
        (Some(kind), Some(directory)) => (kind, PathBuf::from(directory)),
        _ => command.error(ErrorKind::InvalidValue, "KIND is man, bash, zsh or fish").exit(),
    }
}

fn generate(command: Command, manual: &Manual, kind: Kind, into: &Path) -> std::io::Result<()> {
    fs::create_dir_all(into)?;
    let name = command.get_name().to_owned();
    let (shell, file) = match kind {
        Kind::Man => {
            for (file, text) in pages(command, manual) {
                fs::write(into.join(file), text)?;
            }
            return Ok(());
        }
        Kind::Bash => (Shell::Bash, name.clone()),
        Kind::Zsh => (Shell::Zsh, format!("_{name}")),
        Kind::Fish => (Shell::Fish, format!("{name}.fish")),
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut shown(&command), &name, &mut text);
    fs::write(into.join(file), text)
}

/// The command without what is of no use to people: shells would offer that as well.
fn shown(command: &Command) -> Command {
    // Names of commands live as long as the process, which ends when this is written.
    let kept = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let bare = Command::new(kept(command.get_name())).disable_help_subcommand(true);
    let bare =
        bare.about(command.get_about().cloned().unwrap_or_default()).version(command.get_version().map(kept));
    bare.args(command.get_arguments().cloned()).subcommands(visible(command).map(shown))
}

/// Every page, as (file name, text).
fn pages(command: Command, manual: &Manual) -> Vec<(String, String)> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut found: Vec<_> =
        (manual.others)().into_iter().map(|(file, text)| (file.to_owned(), text)).collect();
    let mut left = vec![(command.get_name().to_owned(), command)];
    while let Some((path, command)) = left.pop() {
        for below in visible(&command) {
            left.push((format!("{path} {}", below.get_name()), below.clone()));
        }
        found.push((format!("{}.1", path.replace(' ', "-")), page::of(&path, command, manual)));
    }
    found
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != HELP)
}

/// What is wrong with the examples of a program, for its tests: those that its command line does not take, those of no command,
/// and commands that do something and have none.
#[must_use]
pub fn unfit(command: &Command, manual: &Manual) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut left = vec![(command.get_name().to_owned(), command)];
    let mut known = Vec::new();
    while let Some((path, command)) = left.pop() {
        left.extend(visible(command).map(|below| (format!("{path} {}", below.get_name()), below)));
        if manual.examples_of(&path).is_empty() && visible(command).next().is_none() {
            wrong.push(format!("{path} has no example"));
        }
        known.push(path);
    }
    for path in manual.examples.lines().filter_map(|line| line.strip_suffix(':')) {
        if !known.iter().any(|known| known == path) {
            wrong.push(format!("examples of {path}, which is no command"));
        }
        for (line, _) in manual.examples_of(path) {
            // What a shell makes of it is not looked at, but for a variable before it.
            let words = line
                .split_whitespace()
                .skip_while(|word| word.contains('='))
                .map(|word| word.trim_matches('\''));
            if !line.contains(path) {
                wrong.push(format!("`{line}` is no example of {path}"));
            } else if let Err(error) = command.clone().try_get_matches_from(words) {
                wrong.push(format!("`{line}`: {error}"));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests;
