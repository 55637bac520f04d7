//! Whether the scheduler that owns a job's checkpoints still runs. If two schedulers wrote and removed checkpoints at once, each would
//! remove files of the other. This module must not read or write the records.
//!
//! A new scheduler replaces an owner that has exited: its record says so, its process is gone, or it had the address that the new
//! scheduler has now. Of an owner on another machine only the record is visible; a running owner changes its record every 5 s.

use checkpoint::Owner;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often an owner changes its record, to show that it runs.
pub(super) const BEAT: Duration = Duration::from_secs(5);
/// An owner whose record has not changed for this long is replaced. If it still runs, it finds the record of the new owner before it
/// writes again.
pub(super) const SILENCE: Duration = Duration::from_secs(20);

/// Does an owner run?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Ended,
    Runs,
    Unknown,
}

/// The record of this process as an owner.
pub(super) fn of_this_process() -> Owner {
    Owner {
        host: daemon::host::name().unwrap_or_default(),
        machine: machine(),
        pid: std::process::id(),
        started_ticks: started_ticks(std::process::id()).unwrap_or(0),
        since_unix_ms: now_unix_ms(),
        ..Owner::default()
    }
}

pub(super) fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The scope of process ids: the boot id of the kernel, and the PID namespace. Empty: unknown.
fn machine() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = fs::read_link("/proc/self/ns/pid");
    match (boot, namespace) {
        (Ok(boot), Ok(namespace)) => format!("{}/{}", boot.trim(), namespace.display()),
        _ => String::new(),
    }
}

/// When a process started; `None` if it does not run, or is a zombie.
fn started_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name may contain spaces and parentheses: the fields start after the last one (proc(5): state is field 3).
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let is_over = matches!(fields.next()?, "Z" | "X");
    fields.nth(18)?.parse().ok().filter(|_| !is_over)
}

/// Does this owner still run, as far as the scheduler `own` can determine, which has bound its own address?
pub(super) fn standing(owner: &Owner, own: &Owner) -> Standing {
    // One process listens at a port, and the new scheduler does now. Equal addresses alone prove nothing, because each container
    // network may have a host named "scheduler".
    let is_replaced = !own.address.is_empty() && owner.address == own.address && owner.host == own.host;
    if owner.has_ended || is_replaced {
        return Standing::Ended;
    }
    if owner.machine.is_empty() || owner.machine != own.machine {
        return Standing::Unknown;
    }
    match started_ticks(owner.pid) {
        Some(ticks) if ticks == owner.started_ticks => Standing::Runs,
        // The process belongs to another user, and /proc is mounted with hidepid.
        None if is_hidden(owner.pid) => Standing::Unknown,
        _ => Standing::Ended,
    }
}

/// Does this process run although /proc hides it?
fn is_hidden(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::PERM))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_has_ended_is_known_by_its_number_and_its_start() {
        let own = of_this_process();
        assert!(own.started_ticks > 0 && !own.machine.is_empty());
        assert_eq!(standing(&own, &own), Standing::Runs);
        let earlier = Owner { started_ticks: own.started_ticks - 1, ..own.clone() };
        assert_eq!(standing(&earlier, &own), Standing::Ended, "another process has its number");
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let there =
            Owner { pid: child.id(), started_ticks: started_ticks(child.id()).unwrap(), ..own.clone() };
        assert_eq!(standing(&there, &own), Standing::Runs);
        // The child exits, and stays a zombie until `wait` below.
        drop(child.stdin.take());
        let path = format!("/proc/{}/stat", child.id());
        while !fs::read_to_string(&path).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        assert_eq!(standing(&there, &own), Standing::Ended);
        child.wait().unwrap();
        assert_eq!(standing(&there, &own), Standing::Ended);
        assert_eq!(standing(&Owner { has_ended: true, ..own.clone() }, &own), Standing::Ended);
    }

    #[test]
    fn a_scheduler_at_the_same_address_of_the_same_host_replaces_the_one_before() {
        let at = |host: &str, machine: &str, address: &str| Owner {
            host: host.into(),
            machine: machine.into(),
            address: address.into(),
            ..Owner::default()
        };
        let standing = |one: Owner, other: Owner| standing(&one, &other);
        let address = "scheduler:9091";
        assert_eq!(standing(at("s-0", "before", address), at("s-0", "now", address)), Standing::Ended);
        assert_eq!(standing(at("s-0", "before", "a:1"), at("s-0", "now", "a:2")), Standing::Unknown);
        assert_eq!(standing(at("n1", "a", address), at("n2", "b", address)), Standing::Unknown);
        assert_eq!(standing(at("n1", "a", ""), at("n1", "b", "")), Standing::Unknown);
    }
}
