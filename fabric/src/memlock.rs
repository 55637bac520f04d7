//! How much memory this process may pin, and what to do when that is not enough. Devices pin what is registered.

use rustix::process::{Resource, getrlimit};

/// The bit of `CAP_IPC_LOCK`, which knows no limit.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// Bytes this process may pin; none where there is no limit.
#[must_use]
pub fn limit_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if is_privileged(&status) { None } else { getrlimit(Resource::Memlock).current }
}

fn is_privileged(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits & CAP_IPC_LOCK != 0)
}

/// What raises the limit, for people.
pub const FIX: &str =
    "raise `ulimit -l` (LimitMEMLOCK=infinity in a systemd unit, memlock in /etc/security/limits.conf)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_pin_everything_is_known_by_a_capability() {
        assert!(is_privileged("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(is_privileged("CapEff:\t0000000000004000\n"));
        assert!(!is_privileged("CapEff:\t0000000000003fff\n"));
        assert!(!is_privileged(""));
    }
}
