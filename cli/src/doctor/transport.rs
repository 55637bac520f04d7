//! Which transports these settings leave, and so how bad it is where RDMA cannot be used. Judges settings; looks at
//! nothing.

use super::check::{Check, Level};
use proto_common::config::Settings;
use proto_common::error::ExitCode;
use proto_common::transport::{Driver, Policies, Policy};

/// Why a driver is not used whatever this host has; none where it may be.
pub(super) fn unused(driver: Driver, policies: &Policies) -> Option<String> {
    // Who asks for one driver turns the others off with it: "off" says less.
    if policies.of(driver) == Policy::Off {
        return Some(format!("off by transport.{driver}"));
    }
    let other = policies.required().filter(|required| *required != driver)?;
    Some(format!("not used: transport.{other} is required"))
}

/// How bad it is where RDMA cannot be used: a job fails where it is required, or where nothing else is left.
pub(super) fn without_verbs(policies: &Policies) -> Level {
    match instead_of_verbs(policies) {
        Some(_) => Level::Warn,
        None => Level::Fail(ExitCode::Transport),
    }
}

/// What carries a job without RDMA.
pub(super) fn instead_of_verbs(policies: &Policies) -> Option<String> {
    told(|driver| !driver.is_device() && unused(driver, policies).is_none())
}

fn told(is_left: impl Fn(Driver) -> bool) -> Option<String> {
    let each = Driver::ALL.into_iter().filter(|driver| is_left(*driver)).map(|driver| {
        let between = if driver.shares_memory() { " between processes of one user on one host" } else { "" };
        format!("{driver}{between}")
    });
    let each = each.collect::<Vec<_>>().join(", then ");
    (!each.is_empty()).then_some(each)
}

/// What a job would use. Where a device is all that is left and cannot be used, its own line says so.
pub(super) fn check(settings: &Settings, has_verbs: bool) -> Option<Check> {
    let what = "transport";
    let policies = &settings.transport;
    if Driver::ALL.iter().all(|driver| policies.of(*driver) == Policy::Off) {
        let fix = "set transport.tcp = \"prefer\" (and transport.shm for processes on one host)";
        return Some(Check::fail(
            what,
            ExitCode::Transport,
            format!("{} are all off", Driver::list(Driver::name, "and")),
            fix,
        ));
    }
    let left = |driver| unused(driver, policies).is_none() && (!driver.is_device() || has_verbs);
    let used = told(left)?;
    let is_shm_alone = !Driver::ALL.into_iter().any(|driver| left(driver) && !driver.shares_memory());
    if is_shm_alone && policies.required().is_none() {
        let fix = "for a job of several hosts or users set transport.tcp = \"prefer\"";
        return Some(Check::warn(what, used, fix));
    }
    Some(Check::good(what, used))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(shm: Policy, verbs: Policy, tcp: Policy) -> Settings {
        // Further transports are off.
        let transport = Policies { shm, verbs, tcp, ..Policies::only(Driver::Tcp) };
        Settings { transport, ..Settings::default() }
    }

    #[test]
    fn a_job_fails_without_a_device_only_where_nothing_else_is_left() {
        use Policy::{Off, Prefer, Require};
        for (settings, expected) in [
            (with(Prefer, Prefer, Prefer), Level::Warn),
            (with(Off, Prefer, Prefer), Level::Warn),
            (with(Prefer, Prefer, Off), Level::Warn),
            (with(Off, Prefer, Off), Level::Fail(ExitCode::Transport)),
            (with(Prefer, Require, Prefer), Level::Fail(ExitCode::Transport)),
        ] {
            assert_eq!(without_verbs(&settings.transport), expected, "{:?}", settings.transport);
        }
    }

    #[test]
    fn what_is_left_is_told_and_nothing_left_fails() {
        use Policy::{Off, Prefer, Require};
        let line = |settings: &Settings, has_verbs| check(settings, has_verbs).map(|check| check.to_string());
        let all = line(&with(Prefer, Prefer, Prefer), true).unwrap();
        assert!(all.starts_with("ok") && all.ends_with("then verbs, then tcp"), "{all}");
        let none = line(&with(Off, Off, Off), false).unwrap();
        assert!(none.starts_with("FAIL") && none.contains("set transport.tcp"), "{none}");
        let shm = line(&with(Prefer, Prefer, Off), false).unwrap();
        assert!(shm.starts_with("warn") && shm.contains("several hosts"), "{shm}");
        assert!(line(&with(Require, Off, Off), false).unwrap().starts_with("ok"), "it was asked for");
        let tcp = line(&with(Prefer, Prefer, Require), true).unwrap();
        assert!(tcp.ends_with("— tcp"), "{tcp}");
        assert_eq!(line(&with(Off, Prefer, Off), false), None, "the device's own line fails");
    }
}
