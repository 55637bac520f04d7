//! The file in which a scheduler tells the launcher its addresses.

use anyhow::Context as _;
use daemon::exit::{Failure, WithCode as _};
use proto_common::error::ExitCode;
use std::path::PathBuf;

/// A directory for the port file, removed at the end.
pub(super) struct PortDirectory {
    pub(super) path: PathBuf,
}

impl PortDirectory {
    pub(super) fn new() -> Result<Self, Failure> {
        let name = format!("gradwire-launch-{}-{}", std::process::id(), daemon::host::new_incarnation()?);
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)
            .with_context(|| format!("cannot create {}; set TMPDIR to a writable directory", path.display()))
            .code(ExitCode::Io)?;
        Ok(Self { path })
    }
}

impl Drop for PortDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The addresses of control port and HTTP endpoints in a complete file.
pub(super) fn parse_ports(text: &str) -> Option<(String, String)> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    Some((value("control")?.to_owned(), value("http")?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_file_is_read_whole_or_not() {
        let ports = Some(("127.0.0.1:5".to_owned(), String::new()));
        assert_eq!(parse_ports("control=127.0.0.1:5\nhttp=\n"), ports);
        assert_eq!(parse_ports("control=127.0.0.1:5\n"), None);
    }
}
