//! `gradwire env`: every setting with its variable and default, what other systems' variables do here, and the exit
//! codes; as text, or as the page `docs/environment.md`. Prints what the types and tables say; nothing is written down
//! twice.

use crate::common::unless_closed;
use clap::Args;
use daemon::settings::peers::variables;
use daemon::settings::reference;
use proto_common::error::ExitCode;
use std::io::{self, Write};

/// How to print it.
#[derive(Args, Debug)]
pub(crate) struct EnvArgs {
    /// As the page docs/environment.md.
    #[arg(long)]
    markdown: bool,
}

pub(crate) fn run(args: &EnvArgs) -> Result<(), anyhow::Error> {
    let out = &mut io::stdout().lock();
    Ok(unless_closed(if args.markdown { page(out) } else { print(out) })?)
}

fn print(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{:<34} {:<46} DEFAULT", "SETTING", "VARIABLE")?;
    for line in reference() {
        writeln!(out, "{:<34} {:<46} {}", line.key, line.variable, line.default)?;
    }
    writeln!(out, "\n{:<38} {:<17} HERE", "VARIABLE OF", "SYSTEM")?;
    for variable in variables() {
        let words = variable.words().replace('`', "");
        writeln!(out, "{:<38} {:<17} {words}", variable.name, variable.peer.name())?;
    }
    writeln!(out, "\n{:<34} MEANING", "EXIT CODE")?;
    for (code, meaning) in ExitCode::TABLE {
        writeln!(out, "{:<34} {meaning}", code as u8)?;
    }
    Ok(())
}

const INTRODUCTION: &str = "\
# Environment

`gradwire env --markdown` writes this page; a test keeps it up to date.

Settings come from flags (`--set section.name=VALUE`), then the environment (`GRADWIRE_SECTION__NAME`), then `gradwire.toml` in the
working directory; the first source that has a value wins. In a variable's name, two underscores separate section and name.
`--config FILE` or `GRADWIRE_CONFIG` names another settings file; the systemd units use `/etc/gradwire/ROLE.toml`, which is not
read otherwise. Unknown `GRADWIRE_` names and values out of range end the process with exit code 78.
";

const PEERS: &str = "
## Variables of other systems

Gradwire also reads the variables of ps-lite, BytePS, MXNet's kvstore and dmlc-submit; its own variables take precedence. At
start, a process logs a warning for a variable that has no effect here, and for an unknown name with one of these prefixes;
an invalid value is an error. `PORT`, which ps-lite reads, is too common a name: use `node.port`.
";

fn page(out: &mut impl Write) -> io::Result<()> {
    write!(out, "{INTRODUCTION}\n## Settings\n\n| setting | default | meaning |\n| --- | --- | --- |\n")?;
    for line in reference() {
        let default = if line.default.is_empty() { String::new() } else { format!("`{}`", line.default) };
        // A bar would end the cell.
        writeln!(out, "| `{}` | {default} | {} |", line.key, line.meaning.replace('|', "\\|"))?;
    }
    write!(out, "{PEERS}\n| variable | of | here |\n| --- | --- | --- |\n")?;
    for variable in variables() {
        writeln!(out, "| `{}` | {} | {} |", variable.name, variable.peer.name(), variable.words())?;
    }
    write!(out, "\n## Exit codes\n\n| code | meaning |\n| --- | --- |\n")?;
    for (code, meaning) in ExitCode::TABLE {
        writeln!(out, "| {} | {meaning} |", code as u8)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(print: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut text = Vec::new();
        print(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn settings_and_codes_are_listed() {
        let text = text(print);
        assert!(text.contains("GRADWIRE_SCHEDULER__PORT") && text.contains("9092"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("71 ") && line.contains("failed")), "{text}");
        assert!(text.contains("PS_HEARTBEAT_TIMEOUT") && text.contains("deadlines.silence_ms, from seconds"));
    }

    #[test]
    fn the_page_says_what_the_tables_say() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/environment.md");
        let written = std::fs::read_to_string(path).unwrap();
        let fix = "write it anew: cargo run -p gradwire-cli -- env --markdown > docs/environment.md";
        assert!(written == text(page), "docs/environment.md is not what the tables say; {fix}");
    }
}
