//! Command lines of pages held against the programs' own `--help`: a page names no program's subcommand, flag or setting that
//! does not exist, also where nothing runs it.

use super::blocks;
use std::collections::{BTreeMap, BTreeSet};

/// Programs whose command lines are held against their help.
pub const PROGRAMS: [&str; 4] = ["gradwire", "gradwire-scheduler", "gradwire-server", "gradwire-worker"];

/// Commands whose arguments may have our programs' names and start nothing.
const OTHERS: [&str; 11] =
    ["systemctl", "cp", "cargo", "pkill", "pgrep", "cat", "ls", "grep", "chgrp", "install", "useradd"];

/// What a program, or a subcommand, takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Names of subcommands.
    pub commands: BTreeSet<String>,
    /// Flags as they are written, and how many of the next words are their values.
    pub flags: BTreeMap<String, usize>,
}

impl Usage {
    /// Reads clap's help.
    #[must_use]
    pub fn of(help: &str) -> Self {
        let mut usage = Self::default();
        let mut among_commands = false;
        for line in help.lines() {
            if !line.starts_with(' ') && !line.is_empty() {
                among_commands = line.trim_end() == "Commands:";
            } else if among_commands && line.starts_with("  ") && !line.starts_with("   ") {
                usage.commands.extend(line.split_whitespace().next().map(str::to_owned));
            } else if line.trim_start().starts_with('-') {
                usage.read_flags(line.trim_start());
            } else {
                usage.read_aliases(line);
            }
        }
        usage
    }

    /// `-n, --workers <N>   How many` or `--restart[=<N>]`.
    fn read_flags(&mut self, line: &str) {
        let form = line.split("  ").next().unwrap_or(line);
        // Behind `[=` a value is no word of its own.
        let is_optional = form.contains("[=") || form.contains(" [<");
        let takes = if is_optional { 0 } else { form.matches('<').count() };
        for word in form.split([',', ' ', '=', '[']).filter(|word| word.starts_with('-')) {
            self.flags.insert(word.to_owned(), takes);
        }
    }

    /// `[aliases: --num-servers]`, of the flag before it; such flags take values.
    fn read_aliases(&mut self, line: &str) {
        for word in line.split([',', ' ', ']']).filter(|_| line.contains("[alias")) {
            if word.starts_with("--") {
                self.flags.insert(word.to_owned(), 1);
            }
        }
    }
}

/// A command line on a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Line of the page.
    pub line: usize,
    /// Its words, from the program's name on.
    pub words: Vec<String>,
}

/// Every command line of [`PROGRAMS`] on a page, in blocks of commands and in backticks.
#[must_use]
pub fn command_lines(page: &str) -> Vec<Line> {
    let mut found = Vec::new();
    for block in blocks::of(page).iter().filter(|block| block.language == "sh") {
        let mut line = block.line + 1;
        for joined in block.text.replace("\\\n", "\u{1}").lines() {
            found.extend(in_shell(&joined.replace('\u{1}', " "), line));
            line += 1 + joined.matches('\u{1}').count();
        }
    }
    for (line, code) in inline_code(page) {
        if PROGRAMS.iter().any(|program| code.strip_prefix(program).is_some_and(|rest| rest.starts_with(' ')))
        {
            found.extend(in_shell(&code, line));
        }
    }
    found
}

/// What stands in backticks outside blocks, with its line.
#[must_use]
pub fn inline_code(page: &str) -> Vec<(usize, String)> {
    let mut in_block = false;
    let mut found = Vec::new();
    for (index, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            let code = line.split('`').skip(1).step_by(2);
            found.extend(code.map(|code| (index + 1, code.to_owned())));
        }
    }
    found
}

/// The command lines in one line of shell.
fn in_shell(text: &str, line: usize) -> Vec<Line> {
    let mut found = Vec::new();
    for words in commands(text) {
        let named = |word: &String| PROGRAMS.iter().any(|program| word.rsplit('/').next() == Some(*program));
        let Some(at) = words.iter().position(named) else { continue };
        // In the place of an argument it is somebody's value, such as a unit's name, or the group's.
        if at == 0 || !OTHERS.contains(&words[0].as_str()) {
            found.push(Line { line, words: words[at..].to_vec() });
        }
    }
    found
}

/// Words of each command of a line, without comments and what quotes stand for.
fn commands(text: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word) = (Vec::new(), Vec::new(), String::new());
    let mut quote = None;
    for c in text.chars() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '#') if word.is_empty() => break,
            (None, ';' | '|' | '&' | '(' | ')' | '>' | '<') => {
                words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
                all.push(std::mem::take(&mut words));
            }
            (None, c) if c.is_whitespace() => {
                words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
            }
            _ => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    all.push(words);
    all.retain(|words| !words.is_empty());
    all
}

/// What is wrong with a command line, by what `help` says of a program and its subcommands.
pub fn fault(words: &[String], help: &mut impl FnMut(&[&str]) -> Usage) -> Option<String> {
    let program = words.first()?.rsplit('/').next()?.to_owned();
    let mut path = vec![program.as_str()];
    let mut usage = help(&path);
    let mut rest = words[1..].iter();
    let mut skip = 0;
    while let Some(raw) = rest.next() {
        // `[--json]` may be left out; `--restart[=N]` may have a value.
        let word = raw.trim_start_matches('[').trim_end_matches(']').split("[=").next().unwrap_or(raw);
        if skip > 0 {
            skip -= 1;
            continue;
        }
        if word == "…" || word.is_empty() {
            continue;
        }
        if word == "--" {
            return rest.as_slice().first().and_then(|_| behind(rest.as_slice(), help));
        }
        if path.last() == Some(&"bench") {
            // It hands on what it is told.
            return None;
        }
        if word.starts_with('-') && word.len() > 1 && !word.starts_with("-…") {
            let name = word.split('=').next().unwrap_or(word);
            let Some(takes) = usage.flags.get(name) else {
                return Some(format!("{} has no flag {name}", path.join(" ")));
            };
            skip = takes.saturating_sub(usize::from(word.contains('=')));
        } else if usage.commands.contains(word) {
            path.push(word);
            usage = help(&path);
        } else if !usage.commands.is_empty() {
            return Some(format!("{} has no subcommand {word}", path.join(" ")));
        } else if path.last() == Some(&"launch") {
            return behind(&words[words.len() - rest.len() - 1..], help);
        }
    }
    None
}

/// The program that a launcher is to start.
fn behind(words: &[String], help: &mut impl FnMut(&[&str]) -> Usage) -> Option<String> {
    let ours = words.iter().position(|word| PROGRAMS.contains(&word.rsplit('/').next().unwrap_or(word)))?;
    fault(&words[ours..], help)
}

/// Dotted names of settings on a page: in backticks, behind `--set`, and as `GRADWIRE_SECTION__NAME`; with their lines.
#[must_use]
pub fn settings(page: &str, sections: &BTreeSet<&str>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let wrong = wrong_on_purpose(page);
    for (index, line) in page.lines().enumerate().filter(|(index, _)| !wrong.contains(index)) {
        for word in line.split(|c: char| !c.is_alphanumeric() && !"_.*:/".contains(c)) {
            let word = word.trim_end_matches(['.', ':']);
            if let Some(name) = word.strip_prefix("GRADWIRE_").filter(|name| name.contains("__")) {
                found.push((index + 1, name.to_lowercase().replacen("__", ".", 1)));
                continue;
            }
            let Some((section, name)) = word.split_once('.') else { continue };
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            if sections.contains(section) && !name.is_empty() && name.chars().all(plain) && !is_file(name) {
                found.push((index + 1, word.to_owned()));
            }
        }
    }
    found.retain(|(_, name)| name != "section.name");
    found
}

/// Lines (from 0) of commands that are to end with 78, bad settings, and of what they print.
fn wrong_on_purpose(page: &str) -> BTreeSet<usize> {
    let all = blocks::of(page);
    let lines = |block: &blocks::Block| block.line..block.line + block.text.lines().count();
    let wrong = all.iter().enumerate().filter(|(_, block)| block.exit() == 78);
    let shown = |at: usize| all.get(at + 1).filter(|next| next.is("output"));
    wrong.flat_map(|(at, block)| lines(block).chain(shown(at).map(lines).unwrap_or_default())).collect()
}

fn is_file(ending: &str) -> bool {
    matches!(ending, "toml" | "rs" | "md" | "py" | "json" | "yaml" | "log" | "pem" | "service" | "target")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELP: &str = "Does it.\n\nUsage: gradwire <COMMAND>\n\nCommands:\n  launch  Starts\n              more\n  status  Shows\n\n\
        Options:\n  -n, --workers <N>\n          How many\n          \n          [aliases: --num-workers]\n      \
        --restart[=<N>]\n      --listen [<ADDRESS>]\n      --generate <KIND> <DIRECTORY>\n  -h, --help  Print help\n";

    fn help(path: &[&str]) -> Usage {
        let mut usage = Usage::of(HELP);
        if path.len() > 1 || path[0] != "gradwire" {
            usage.commands.clear();
        }
        usage
    }

    #[test]
    fn help_is_read() {
        let usage = Usage::of(HELP);
        assert_eq!(usage.commands, BTreeSet::from(["launch".to_owned(), "status".to_owned()]));
        let flags: Vec<(&str, usize)> =
            usage.flags.iter().map(|(name, takes)| (name.as_str(), *takes)).collect();
        let all = [("--generate", 2), ("--help", 0), ("--listen", 0), ("--num-workers", 1), ("--restart", 0)];
        assert_eq!(flags, [&all[..], &[("--workers", 1), ("-h", 0), ("-n", 1)]].concat());
    }

    #[test]
    fn command_lines_are_found_in_blocks_and_in_backticks() {
        let page = "See `gradwire status --json` and `gradwire.toml`.\n```sh\nA=1 srun gradwire launch \\\n  -n 2 x | cat # gradwire no\n\
                    systemctl start gradwire-server\nchgrp gradwire x\n```\n";
        let lines = command_lines(page);
        let words: Vec<String> =
            lines.iter().map(|line| format!("{}: {}", line.line, line.words.join(" "))).collect();
        assert_eq!(words, ["3: gradwire launch -n 2 x", "1: gradwire status --json"]);
    }

    #[test]
    fn what_does_not_exist_is_named() {
        let told = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            fault(&words, &mut help).unwrap_or_default()
        };
        for good in [
            "gradwire launch -n 2 python --any",
            "gradwire launch --restart[=N] -- x --any",
            "gradwire status [--help]",
        ] {
            assert_eq!(told(good), "", "{good}");
        }
        assert_eq!(told("gradwire lanch"), "gradwire has no subcommand lanch");
        assert_eq!(told("gradwire launch --worker 2 x"), "gradwire launch has no flag --worker");
        assert_eq!(told("gradwire launch -n 2 gradwire-worker --any"), "gradwire-worker has no flag --any");
    }

    #[test]
    fn settings_are_found_in_their_forms() {
        let page = "`cluster.lanes` GRADWIRE_NODE__HTTP=x --set cluster.replicas=1 `node.*` scheduler.toml cluster.\n\
                    ```sh,run,exit=78\ncluster.lane\n```\n\n```text,output\ncluster.lane\n```\n";
        let names: Vec<String> = settings(page, &BTreeSet::from(["cluster", "node", "scheduler"]))
            .into_iter()
            .map(|(_, name)| name)
            .collect();
        assert_eq!(names, ["cluster.lanes", "node.http", "cluster.replicas"]);
    }
}
