//! How much memory this process may pin, and what to do when that is not enough. Devices pin what is registered.

use rustix::process::{Resource, getrlimit};

/// The bit of `CAP_IPC_LOCK`, which knows no limit.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// The user namespace that the kernel starts with, by its number, which never changes.
const FIRST_NAMESPACE: &str = "user:[4026531837]";

/// Bytes this process may pin; none where there is no limit.
#[must_use]
pub fn limit_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/user").unwrap_or_default();
    let is_privileged = is_privileged(&status, &namespace.to_string_lossy());
    if is_privileged { None } else { getrlimit(Resource::Memlock).current }
}

/// In a user namespace of its own (a rootless container, say) a process has the capability, and the kernel asks for that
/// of the first one.
fn is_privileged(status: &str, namespace: &str) -> bool {
    if namespace != FIRST_NAMESPACE {
        return false;
    }
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits & CAP_IPC_LOCK != 0)
}

/// What raises the limit, for people.
pub const FIX: &str = "raise `ulimit -l` (LimitMEMLOCK=infinity in a systemd unit, memlock in /etc/security/limits.conf, \
    PropagateResourceLimitsExcept=MEMLOCK in slurm.conf)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_pin_everything_is_known_by_a_capability() {
        let status = |bits: &str| format!("Name:\tx\nCapEff:\t{bits}\n");
        assert!(is_privileged(&status("000001ffffffffff"), FIRST_NAMESPACE));
        assert!(is_privileged(&status("0000000000004000"), FIRST_NAMESPACE));
        assert!(!is_privileged(&status("0000000000003fff"), FIRST_NAMESPACE));
        assert!(!is_privileged("", FIRST_NAMESPACE));
        assert!(!is_privileged(&status("000001ffffffffff"), "user:[4026532561]"), "it counts in there only");
    }
}
