//! What a suite needs of the machine, and whether this one has it. Looks, changes nothing.

use anyhow::{Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};

/// One thing a suite needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// To run as root.
    Root,
    /// To make network namespaces.
    Netns,
    /// A program in the path.
    Program(String),
    /// This much available memory.
    MemoryGib(u64),
}

/// `root`, `netns`, `program:NAME` or `memory_gib:N`.
pub fn parse(text: &str) -> Result<Need> {
    Ok(match text.split_once(':') {
        None if text == "root" => Need::Root,
        None if text == "netns" => Need::Netns,
        Some(("program", name)) if !name.is_empty() => Need::Program(name.to_owned()),
        Some(("memory_gib", gib)) => Need::MemoryGib(gib.parse()?),
        _ => bail!("need {text:?} is unknown: use root, netns, program:NAME or memory_gib:N"),
    })
}

/// Why this machine cannot serve a suite's needs, with the fix; `None` where it can.
#[must_use]
pub fn lacking(needs: &[String]) -> Option<String> {
    needs.iter().find_map(|text| match parse(text) {
        Ok(need) => need.lacking(),
        Err(error) => Some(error.to_string()),
    })
}

/// Can a suite's own preparation help here? It may install programs, and nothing else that is lacking.
#[must_use]
pub fn is_preparable(needs: &[String]) -> bool {
    let others: Vec<String> = needs.iter().filter(|need| !need.starts_with("program:")).cloned().collect();
    lacking(&others).is_none()
}

impl Need {
    fn lacking(&self) -> Option<String> {
        match self {
            Self::Root if !rustix::process::geteuid().is_root() => Some("needs root: run it as root".into()),
            Self::Netns if !can_make_netns() => {
                Some("cannot make network namespaces: run as root, with iproute2 installed".into())
            }
            Self::Program(name) if find_program(name).is_none() => Some(format!(
                "{name} is not installed: run deploy/bootstrap.sh test (or guest, or launchers)"
            )),
            Self::MemoryGib(gib) => {
                let have = available_gib(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
                (have < *gib).then(|| format!("needs {gib} GiB of available memory, there are {have}"))
            }
            _ => None,
        }
    }
}

fn find_program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    let system = ["/usr/sbin", "/sbin"].map(|dir| Path::new(dir).to_owned());
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Tries it: rights, kernel options and container filters all have a say.
fn can_make_netns() -> bool {
    let quiet = |mut command: Command| {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let Some(ip) = find_program("ip") else { return false };
    let mut command = Command::new("unshare");
    command.arg("--net").arg(ip).args(["link", "set", "lo", "up"]);
    quiet(command)
}

fn available_gib(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib =
        line.and_then(|rest| rest.trim().split(' ').next()).and_then(|number| number.parse::<u64>().ok());
    kib.unwrap_or(0) >> 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_need_and_refuses_others() {
        assert_eq!(parse("root").unwrap(), Need::Root);
        assert_eq!(parse("netns").unwrap(), Need::Netns);
        assert_eq!(parse("program:ip").unwrap(), Need::Program("ip".into()));
        assert_eq!(parse("memory_gib:12").unwrap(), Need::MemoryGib(12));
        for wrong in ["", "program", "program:", "memory_gib:much", "root:x", "luck"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn says_what_lacks_and_how_to_get_it() {
        assert_eq!(lacking(&["program:sh".into()]), None);
        let reason = lacking(&["program:sh".into(), "program:no-such-program".into()]).unwrap();
        assert!(reason.contains("no-such-program") && reason.contains("bootstrap.sh"), "{reason}");
        assert!(is_preparable(&["program:no-such-program".into()]), "it may be installed");
        assert!(!is_preparable(&["program:no-such-program".into(), "memory_gib:1000000".into()]));
        assert!(lacking(&["memory_gib:1000000".into()]).is_some());
        assert_eq!(lacking(&["memory_gib:0".into()]), None);
    }

    #[test]
    fn reads_available_memory() {
        assert_eq!(available_gib("MemTotal: 9 kB\nMemAvailable:   16777216 kB\n"), 16);
        assert_eq!(available_gib("MemTotal: 9 kB\n"), 0);
    }
}
