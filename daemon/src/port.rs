//! What the port of a process's RDMA device had trouble with lately, for heartbeats. A count since the process began would tell
//! of one bad minute for ever.

use fabric::{Devices, PortCounters};
use proto_common::limits::PORT_COUNTERS_MAX;
use proto_common::message::PortReport;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lately is the time since a look that is so old at least, and twice so old at most.
const LATELY: Duration = Duration::from_secs(30);

/// Looks at the port whenever it is asked.
#[derive(Clone, Debug)]
pub struct PortWatch {
    devices: Devices,
    looks: Arc<Mutex<Looks>>,
}

/// Two looks back.
#[derive(Debug)]
struct Looks {
    older: PortCounters,
    newer: (Instant, PortCounters),
}

impl Looks {
    /// What was counted since the older look.
    fn lately(&mut self, now: Instant, counted: PortCounters) -> PortCounters {
        let since = counted.since(&self.older);
        if now.saturating_duration_since(self.newer.0) >= LATELY {
            self.older = std::mem::replace(&mut self.newer, (now, counted)).1;
        }
        since
    }
}

impl PortWatch {
    /// Of this process's devices.
    #[must_use]
    pub fn new(devices: &Devices) -> Self {
        let looks =
            Looks { older: PortCounters::default(), newer: (Instant::now(), PortCounters::default()) };
        Self { devices: devices.clone(), looks: Arc::new(Mutex::new(looks)) }
    }

    /// What went wrong lately; none where nothing did, or where there is no RDMA device.
    #[must_use]
    pub fn lately(&self) -> Option<PortReport> {
        let verbs = self.devices.verbs()?;
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = looks.lately(Instant::now(), verbs.counted()).trouble();
        let (device, port) = verbs.port();
        let counts = trouble.iter().take(PORT_COUNTERS_MAX).map(|(name, count)| (name.to_owned(), count));
        (!trouble.is_empty()).then(|| PortReport { device: device.into(), port, trouble: counts.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_minute_is_forgotten_after_two() {
        let begun = Instant::now();
        let mut looks = Looks { older: PortCounters::default(), newer: (begun, PortCounters::default()) };
        let after = |seconds| begun + Duration::from_secs(seconds);
        let bad = PortCounters::from_iter([("rcvd_seq_err".to_owned(), 7)]);
        for (seconds, is_told) in
            [(1, true), (29, true), (31, true), (60, true), (62, true), (93, false), (200, false)]
        {
            let told = looks.lately(after(seconds), bad.clone());
            assert_eq!(!told.trouble().is_empty(), is_told, "after {seconds} s: {told}");
        }
    }
}
