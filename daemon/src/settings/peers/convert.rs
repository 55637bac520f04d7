//! Peers' values as values of our settings: seconds in milliseconds, levels by other names. Text in, text out; what
//! makes no sense is an error that says what would.

use proto_common::transport::Driver;

/// Settings by name, with their values as text.
pub(super) type Pairs = Vec<(&'static str, String)>;

type Converted = Result<Pairs, &'static str>;

/// Pages that chunks are whole multiples of.
const PAGE_BYTES: u64 = 4096;

fn one(setting: &'static str, value: impl ToString) -> Converted {
    Ok(vec![(setting, value.to_string())])
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

fn is_on(text: &str) -> Result<bool, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "0" | "false" => Ok(false),
        "1" | "true" => Ok(true),
        _ => Err("use 0 or 1"),
    }
}

/// ps-lite's levels: 1 tells of connections, 2 of every message.
pub(super) fn verbose(text: &str) -> Converted {
    match number(text) {
        Some(0) => Ok(Vec::new()),
        Some(1) => one("log.filter", "debug"),
        Some(2..) => one("log.filter", "trace"),
        None => Err("use 0, 1 or 2"),
    }
}

pub(super) fn log_level(text: &str) -> Converted {
    let level = match text.to_ascii_uppercase().as_str() {
        "TRACE" => "trace",
        "DEBUG" => "debug",
        "INFO" => "info",
        "WARNING" | "WARN" => "warn",
        "ERROR" | "FATAL" => "error",
        _ => return Err("use TRACE, DEBUG, INFO, WARNING, ERROR or FATAL"),
    };
    one("log.filter", level)
}

/// Seconds; 0 is ps-lite's default and means none there, where ours are always on.
fn seconds(setting: &'static str, text: &str) -> Converted {
    match number(text) {
        Some(0) => Ok(Vec::new()),
        Some(seconds) => one(setting, seconds.saturating_mul(1000)),
        None => Err("use whole seconds; 0 leaves our default, because liveness is always watched"),
    }
}

pub(super) fn heartbeat(text: &str) -> Converted {
    seconds("deadlines.heartbeat_ms", text)
}

pub(super) fn silence(text: &str) -> Converted {
    seconds("deadlines.silence_ms", text)
}

/// Partitions of any size become chunks of whole pages.
pub(super) fn partition(text: &str) -> Converted {
    match number(text) {
        Some(bytes @ 1..) => {
            one("cluster.chunk_bytes", bytes.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES))
        }
        _ => Err("use a number of bytes, such as 4096000"),
    }
}

pub(super) fn all_addresses(text: &str) -> Converted {
    if is_on(text)? { one("scheduler.bind", "0.0.0.0") } else { Ok(Vec::new()) }
}

pub(super) fn asynchronous(text: &str) -> Converted {
    if is_on(text)? { one("cluster.mode", "async") } else { Ok(Vec::new()) }
}

fn require(driver: Driver) -> Pairs {
    driver.settings().into_iter().map(|(setting, value)| (setting, value.to_owned())).collect()
}

/// The fork takes a van's name as well as a switch.
pub(super) fn rdma(text: &str) -> Converted {
    match text {
        "0" | "false" | "zmq" => Ok(Vec::new()),
        "1" | "true" | "ibverbs" => Ok(require(Driver::Verbs)),
        _ => Err(
            "use 1 or ibverbs for RDMA, 0 or zmq for the best transport that both sides have; others do not exist here",
        ),
    }
}

pub(super) fn van(text: &str) -> Converted {
    match text {
        "zmq" | "p3" | "0" => Ok(Vec::new()),
        "ibverbs" | "1" => Ok(require(Driver::Verbs)),
        _ => Err(
            "use ibverbs for RDMA, zmq or p3 for the best transport that both sides have; others do not exist here",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_ours_and_nonsense_is_refused() {
        let is = |converted: Converted, setting: &str, value: &str| {
            assert_eq!(converted.unwrap(), [(setting, value.to_owned())]);
        };
        is(heartbeat("2"), "deadlines.heartbeat_ms", "2000");
        is(silence("30"), "deadlines.silence_ms", "30000");
        is(partition("4096000"), "cluster.chunk_bytes", "4096000");
        is(partition("1"), "cluster.chunk_bytes", "4096");
        is(partition("4097"), "cluster.chunk_bytes", "8192");
        is(verbose("1"), "log.filter", "debug");
        is(verbose("3"), "log.filter", "trace");
        is(log_level("Fatal"), "log.filter", "error");
        is(all_addresses("1"), "scheduler.bind", "0.0.0.0");
        is(asynchronous("1"), "cluster.mode", "async");
        for nothing in [heartbeat("0"), verbose("0"), rdma("0"), van("zmq"), all_addresses("0")] {
            assert_eq!(nothing.unwrap(), []);
        }
        let wrong = [
            heartbeat("-1"),
            silence("3s"),
            partition("0"),
            verbose("much"),
            log_level("loud"),
            rdma("yes please"),
            van("fabric"),
            all_addresses("2"),
        ];
        assert!(wrong.iter().all(|result| result.as_ref().is_err_and(|fix| fix.starts_with("use "))));
    }

    #[test]
    fn whoever_asks_for_rdma_gets_it_or_an_error() {
        for converted in [rdma("1"), van("ibverbs")] {
            let settings = converted.unwrap();
            assert!(settings.contains(&("transport.verbs", "require".into())), "{settings:?}");
            assert!(settings.contains(&("transport.tcp", "off".into())), "{settings:?}");
            assert!(settings.contains(&("transport.shm", "off".into())), "{settings:?}");
        }
    }
}
