//! One manual page: what the command line's definitions say, and the sections that every program has. It must not say twice what
//! stands in a type or a table.

use super::{Manual, visible};
use crate::settings::{CONFIG_VARIABLE, service_file};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use proto_common::error::ExitCode;
use proto_common::ids::Role;

/// Where packages and people look things up.
const DOCUMENTS: &str = "/usr/share/doc/gradwire";

/// The text of a page, made line by line, behind its head.
#[derive(Debug, Default)]
pub struct Text(Roff, String);

impl Text {
    /// A page in a section of the manual.
    #[must_use]
    pub fn page(title: &str, section: &str) -> Self {
        // By hand: an empty date would be left out, and pages are the same whenever they are made.
        let version = env!("CARGO_PKG_VERSION");
        let head = format!(".TH {title} {section} \"\" \"Gradwire {version}\" \"Gradwire Manual\"\n");
        Self(Roff::default(), head)
    }

    /// Begins a section.
    pub fn section(&mut self, name: &str) -> &mut Self {
        self.0.control("SH", [name]);
        self
    }

    /// Begins a part of a section.
    pub fn part(&mut self, name: &str) -> &mut Self {
        self.0.control("SS", [name]);
        self
    }

    /// A sentence, or several.
    pub fn says(&mut self, words: &str) -> &mut Self {
        self.0.text(marked(words));
        self
    }

    /// A word with what it means; the word may have more behind it.
    pub fn term(&mut self, word: &str, more: &str, meaning: &str) -> &mut Self {
        self.0.control("TP", []);
        self.0.text([bold(word), roman(more)]);
        self.says(meaning)
    }

    /// Lines as they are typed.
    pub fn typed(&mut self, lines: &str) -> &mut Self {
        self.0.control("RS", ["4"]).control("nf", []);
        for line in lines.lines() {
            self.0.text([bold(line)]);
        }
        self.0.control("fi", []).control("RE", []);
        self
    }

    /// A new paragraph.
    pub fn paragraph(&mut self) -> &mut Self {
        self.0.control("PP", []);
        self
    }

    /// The page's source.
    #[must_use]
    pub fn source(&self) -> String {
        self.1.clone() + &self.0.to_roff()
    }
}

/// What stands between grave accents is bold.
fn marked(words: &str) -> Vec<Inline> {
    let pieces = words.split('`').enumerate();
    pieces.map(|(at, piece)| if at % 2 == 1 { bold(piece) } else { roman(piece) }).collect()
}

/// The page of one command; `path` is all of its words.
pub(super) fn of(path: &str, command: Command, manual: &Manual) -> String {
    let name = path.replace(' ', "-");
    let below: Vec<String> = visible(&command).map(|below| format!("{name}-{}", below.get_name())).collect();
    let about = command.get_about().map(|about| about.to_string().replace('\n', " ")).unwrap_or_default();
    let notes = command.get_after_help().map(ToString::to_string);
    let is_whole = !path.contains(' ');
    let command = command.version(None::<&str>);
    let mut text = Text::page(&name.to_uppercase(), "1");
    text.section("NAME").0.text([roman(format!("{name} - {}", about.trim_end_matches('.')))]);
    let mut page = text.source();
    page += &of_clap(command, path);
    let mut text = Text::default();
    examples(&mut text, path, manual);
    text.section("EXIT STATUS");
    if let Some(notes) = &notes {
        text.says(notes).paragraph();
    }
    let codes = ExitCode::TABLE.into_iter().map(|(code, meaning)| (code as u8, meaning));
    for (code, meaning) in codes {
        text.term(&code.to_string(), "", meaning);
    }
    environment(&mut text, manual.role);
    files(&mut text, manual.role);
    if manual.role.is_some() && is_whole {
        signals(&mut text);
    }
    see_also(&mut text, path, &below);
    page + &text.source()
}

/// What clap knows: the sections from SYNOPSIS to the subcommands.
fn of_clap(command: Command, path: &str) -> String {
    let has_options = command.get_arguments().any(|argument| !argument.is_hide_set());
    let has_more = visible(&command).next().is_some();
    let page = Man::new(command.bin_name(path));
    let mut bytes = Vec::new();
    // A vector takes all that is written.
    let _ = page.render_synopsis_section(&mut bytes);
    let _ = page.render_description_section(&mut bytes);
    if has_options {
        let _ = page.render_options_section(&mut bytes);
    }
    if has_more {
        let _ = page.render_subcommands_section(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn examples(text: &mut Text, path: &str, manual: &Manual) {
    let examples = manual.examples_of(path);
    if !examples.is_empty() {
        text.section("EXAMPLES");
    }
    for (at, (line, does)) in examples.iter().enumerate() {
        if at > 0 {
            text.paragraph();
        }
        text.says(&format!("{does}:")).typed(line);
    }
}

fn environment(text: &mut Text, role: Option<Role>) {
    text.section("ENVIRONMENT");
    let any = "Sets `section.name`; every setting has its variable, see `gradwire.toml`(5). Flags come before variables, and \
               variables before files.";
    text.term("GRADWIRE_SECTION__NAME", "", any);
    text.term(CONFIG_VARIABLE, "", "Names the settings file, as `--config` does.");
    let peers = "What ps-lite, BytePS and MXNet read, such as `DMLC_PS_ROOT_URI`, is read below our own names: `gradwire env` \
                 lists all of them.";
    text.term("DMLC_*, PS_*, BYTEPS_*", "", peers);
    if role.is_some() {
        text.term(
            "NOTIFY_SOCKET, WATCHDOG_USEC",
            "",
            "Set by systemd. The process reports its state and liveness to it.",
        );
    }
}

fn files(text: &mut Text, role: Option<Role>) {
    text.section("FILES");
    let system = "Settings of the daemon that systemd starts on this host, whose unit names the file. No other process reads it \
                  unasked.";
    text.term("./gradwire.toml", "", "Settings of a job.");
    let all = [Role::Scheduler, Role::Server, Role::Worker];
    let own = all.into_iter().filter(|of| role.is_none_or(|role| role == *of));
    let files: Vec<_> = own.map(|role| service_file(role).display().to_string()).collect();
    text.term(&files.join(", "), "", system);
    text.term(
        DOCUMENTS,
        "",
        "Documents, a sample of every setting, rules for Prometheus, a dashboard, files for Slurm and Kubernetes.",
    );
}

fn signals(text: &mut Text) {
    text.section("SIGNALS");
    text.term("SIGTERM, SIGINT", "", "Stops the process in an orderly way: it notifies the other members, or hands its shards over to them.");
    text.term(
        "SIGHUP",
        "",
        "Reloads settings. log.filter takes effect; the log names settings that need a restart.",
    );
    text.term(
        "SIGUSR1",
        "",
        "Dumps the flight recorder into log.dump_directory, if that is set, and continues.",
    );
}

fn see_also(text: &mut Text, path: &str, below: &[String]) {
    let programs = ["gradwire", "gradwire-scheduler", "gradwire-server", "gradwire-worker"];
    let own = path.replace(' ', "-");
    let others = programs.into_iter().filter(|name| *name != own).map(str::to_owned);
    let mut words = Vec::new();
    for name in below.iter().cloned().chain(others) {
        words.extend([bold(name), roman("(1), ")]);
    }
    words.extend([bold("gradwire.toml"), roman("(5)")]);
    text.section("SEE ALSO").0.text(words);
    text.paragraph().0.text([roman("All documents: "), italic(DOCUMENTS)]);
}
