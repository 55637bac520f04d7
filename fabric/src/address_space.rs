//! How much address space this process may still reserve (`ulimit -v`). Pools reserve far more address space than they use. This
//! module must not map memory.

use crate::error::FabricError;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// The most bytes of address space that this process may have; `None` without a limit.
fn limit_bytes() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Is there such a limit?
pub(crate) fn is_address_space_limited() -> bool {
    limit_bytes().is_some()
}

/// Bytes of address space that this process uses.
fn used_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    used_of(&status).unwrap_or(0)
}

fn used_of(status: &str) -> Option<u64> {
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    Some(size.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Bytes of address space that this process may still reserve; `None` without a limit.
#[must_use]
pub fn left_bytes() -> Option<u64> {
    limit_bytes().map(|limit| limit.saturating_sub(used_bytes()))
}

/// The error if `what` needs this many bytes of address space, and the limit leaves fewer.
#[must_use]
pub fn too_little(what: impl Into<String>, bytes: u64) -> FabricError {
    let (used, limit) = (used_bytes(), limit_bytes().unwrap_or(u64::MAX));
    FabricError::AddressSpace { what: what.into(), bytes, used_bytes: used, limit_bytes: limit }
}

/// The error of a mapping that the system refused. It names the limit of the address space, if that is the reason.
pub(crate) fn not_mapped(what: &str, bytes: usize, error: Errno) -> FabricError {
    let size = bytes as u64;
    match left_bytes() {
        Some(left) if error == Errno::NOMEM && left < size => too_little(what, size),
        _ => FabricError::os(format!("{what} of {bytes} bytes"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_has_is_read_from_its_status() {
        assert_eq!(used_of("Name:\tx\nVmPeak:\t     9 kB\nVmSize:\t   308 kB\n"), Some(308 << 10));
        assert_eq!(used_of("VmSize:\tmany kB\n"), None);
        assert_eq!(used_of(""), None);
        assert!(used_bytes() > 0, "this process has some");
    }

    #[test]
    fn a_mapping_that_no_limit_refused_keeps_the_system_s_error() {
        let error = not_mapped("mapping", 4096, Errno::ACCESS);
        assert!(matches!(error, FabricError::Os { .. }), "{error}");
    }

    #[test]
    fn the_error_has_limit_need_and_fix() {
        let error = FabricError::AddressSpace {
            what: "a pool".into(),
            bytes: 3 << 20,
            used_bytes: 5 << 20,
            limit_bytes: 7 << 20,
        };
        let text = error.to_string();
        for word in
            ["a pool needs 3072 KiB of address space", "limited to 7168 KiB", "5120 KiB", "`ulimit -v`"]
        {
            assert!(text.contains(word), "{text}");
        }
    }
}
