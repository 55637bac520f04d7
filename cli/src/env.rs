//! `gradwire env`: every setting with its variable and default, and the exit codes. Prints what the types
//! say; nothing is written down twice.

use daemon::settings::reference;
use proto_common::error::ExitCode;
use std::io::{self, Write};

/// The `DMLC_*` names that are accepted, and what they set.
const ALIASES: [(&str, &str); 7] = [
    ("DMLC_ROLE", "checked against the program's role"),
    ("DMLC_PS_ROOT_URI", "scheduler.host"),
    ("DMLC_PS_ROOT_PORT", "scheduler.port"),
    ("DMLC_NUM_WORKER", "cluster.workers"),
    ("DMLC_NUM_SERVER", "cluster.servers"),
    ("DMLC_NODE_HOST", "node.bind and node.advertise"),
    ("DMLC_INTERFACE", "node.bind and node.advertise, by the interface's IPv4 address"),
];

pub(crate) fn run() -> Result<(), anyhow::Error> {
    match print(&mut io::stdout().lock()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

fn print(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{:<28} {:<40} DEFAULT", "SETTING", "VARIABLE")?;
    for line in reference() {
        writeln!(out, "{:<28} {:<40} {}", line.key, line.variable, line.default)?;
    }
    writeln!(out, "\n{:<28} SETS", "ALIAS")?;
    for (name, sets) in ALIASES {
        writeln!(out, "{name:<28} {sets}")?;
    }
    writeln!(out, "\n{:<28} MEANING", "EXIT CODE")?;
    for (code, meaning) in ExitCode::TABLE {
        writeln!(out, "{:<28} {meaning}", code as u8)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_codes_are_listed() {
        let mut text = Vec::new();
        print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("GRADWIRE_SCHEDULER__PORT") && text.contains("9092"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("71 ") && line.contains("died")), "{text}");
    }
}
