//! Settings: every key with its default, bounds and meaning in one place. Reading files, the environment
//! and command lines belongs to the `daemon` crate; here text has become a value and is validated once.

mod checkpoint;
mod cluster;
mod security;

use crate::ids::JobId;
use crate::limits::{INBOX_SLOTS_MAX, INBOX_SLOTS_MIN, REPLICA_SLOTS_MAX, REPLICA_SLOTS_MIN};
use crate::message::ClusterShape;
use crate::transport::{Driver, Policies, Policy};
pub use checkpoint::CheckpointSettings;
pub use cluster::{ClusterSettings, WorkerLoss};
pub use security::{Hidden, SecurityMode, SecuritySettings, is_pem, shown};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("setting {key} = {} is wrong: {fix}", shown(value))]
pub struct SettingError {
    /// Dotted name of the setting.
    pub key: &'static str,
    /// What was given.
    pub value: String,
    /// What would be right.
    pub fix: String,
}

/// Everything that can be set, in the sections of `gradwire.toml`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Id of the job; processes of other jobs are refused.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub job: JobId,
    /// Where the scheduler is.
    pub scheduler: SchedulerSettings,
    /// The cluster's shape; only the scheduler's values count.
    pub cluster: ClusterSettings,
    /// Which drivers may be used.
    pub transport: Policies,
    /// The RDMA device, for the verbs driver.
    pub verbs: VerbsSettings,
    /// Bounds of every wait.
    pub deadlines: DeadlineSettings,
    /// This process on the network.
    pub node: NodeSettings,
    /// Memory and queues.
    pub memory: MemorySettings,
    /// Checkpoints: where, when, and what to start from.
    pub checkpoint: CheckpointSettings,
    /// Who may speak to this process.
    pub security: SecuritySettings,
    /// Logs.
    pub log: LogSettings,
}

/// Where the scheduler is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerSettings {
    /// Host name or address that members connect to, and that the scheduler binds.
    pub host: String,
    /// Address that the scheduler binds, where it differs from `host`: a name of several addresses, or of none of its own.
    pub bind: Option<String>,
    /// TCP port; 0 lets the system choose (the scheduler logs and writes it).
    pub port: u16,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Self { host: "127.0.0.1".into(), bind: None, port: 9092 }
    }
}

/// The RDMA device, for the verbs driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct VerbsSettings {
    /// Its name (`rdma link` lists them); the first one unless said.
    pub device: Option<String>,
    /// Its port.
    pub port: u8,
    /// Index of the address to use; a routable RoCEv2 address of a network interface unless said.
    pub gid_index: Option<u8>,
    /// The largest packet, a power of two from 256 to 4096; the port's own unless said. Peers use the smaller one.
    pub mtu_bytes: Option<u32>,
    /// A packet without answer is sent again after 4.096 microseconds times 2 to this power: 16 is 0.27 s a try, and 1.9 s
    /// in all with six retries (devices may take four times as long).
    pub timeout: u8,
    /// So often, before the peer counts as dead: with `timeout` this bounds how long a dead peer goes unnoticed while
    /// something is under way to it. One whose process died is noticed by its connection, at once.
    pub retries: u8,
    /// So often a peer that is short of receives is asked again; 7 means for ever, as it is slow and not dead.
    pub rnr_retries: u8,
    /// Traffic class of the packets.
    pub traffic_class: u8,
    /// Notices by flag words that are polled, where the peer has it on, too, instead of by immediates: data threads then
    /// never sleep, and rely on an order of arrival that devices keep and no specification promises.
    pub tail_flags: bool,
}

impl Default for VerbsSettings {
    fn default() -> Self {
        Self {
            device: None,
            port: 1,
            gid_index: None,
            mtu_bytes: None,
            timeout: 16,
            retries: 6,
            rnr_retries: 7,
            traffic_class: 0,
            tail_flags: false,
        }
    }
}

/// Bounds of every wait, in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct DeadlineSettings {
    /// Reaching the scheduler, from start.
    pub connect_ms: u64,
    /// From registration until all members are there.
    pub assemble_ms: u64,
    /// One push, pull or push_pull; a declaration's wait for servers.
    pub operation_ms: u64,
    /// A barrier, from a member's coming until all are there.
    pub barrier_ms: u64,
    /// A connection's first message; slow strangers are dropped after it.
    pub handshake_ms: u64,
    /// Heartbeat period.
    pub heartbeat_ms: u64,
    /// A member silent for this long is dead.
    pub silence_ms: u64,
    /// Draining after SIGTERM or at the end.
    pub drain_ms: u64,
    /// A worker that died, with `cluster.worker_loss = "wait"`, has this long to come again. With `"continue"` servers have this
    /// long to say from which rounds on one that comes counts; else it is taken out.
    pub rejoin_ms: u64,
    /// Members go on without a scheduler for this long, and look for another one at its address; 0: they end at once.
    pub scheduler_ms: u64,
    /// A server that is told to go, while others are there to take over what it has, waits this long for that.
    pub move_ms: u64,
}

impl Default for DeadlineSettings {
    fn default() -> Self {
        Self {
            connect_ms: 30_000,
            assemble_ms: 120_000,
            operation_ms: 30_000,
            barrier_ms: 60_000,
            handshake_ms: 5_000,
            heartbeat_ms: 500,
            silence_ms: 10_000,
            drain_ms: 3_000,
            rejoin_ms: 120_000,
            scheduler_ms: 60_000,
            move_ms: 60_000,
        }
    }
}

/// This process on the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct NodeSettings {
    /// Address to bind the data plane's bootstrap and data connections to.
    pub bind: String,
    /// Address that peers use to reach this process, where it differs from `bind`.
    pub advertise: Option<String>,
    /// Port of the bootstrap listener (servers); 0 lets the system choose.
    pub port: u16,
    /// Address and port of the HTTP endpoints; an empty string turns them off.
    pub http: String,
    /// The rank this process would like; 4294967295: the highest that is free.
    pub rank: Option<u32>,
    /// The tcp driver uses unix sockets with peers of the same host (network namespace) and user, where both
    /// sides have this on; false keeps it on TCP.
    pub unix_sockets: bool,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            bind: "127.0.0.1".into(),
            advertise: None,
            port: 0,
            http: "127.0.0.1:0".into(),
            rank: None,
            unix_sockets: true,
        }
    }
}

/// Memory and queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct MemorySettings {
    /// Slots of a server's inbox, per lane, shared by all workers.
    pub inbox_slots: u32,
    /// Slots of a worker's inbox for results, per lane and server.
    pub result_slots: u32,
    /// Slots that a server has, per lane, for each server whose chunks it has copies of.
    pub replica_slots: u32,
    /// Bytes a server may use, per lane, to keep contributions that came before their turn or that it reads out of
    /// workers' memory; half of it at most for key buffers that workers write into. Taken as it is used; an RDMA device
    /// pins it.
    pub spill_bytes: u64,
    /// Bytes of calls that a server keeps, per lane: bodies of requests until they are answered, and long replies until the
    /// worker has them. No body is larger. Taken as it is used.
    pub call_bytes: u64,
    /// Bytes of rows of sparse tables that a server keeps, per lane, with what finds them. Beyond that a table with a limit of
    /// its own gives its oldest rows up for new ones; others make none, and pushes to rows that are not there are errors. 0:
    /// half of the machine's memory (or of the control group's), divided among the lanes. Taken as it is used.
    pub table_bytes: u64,
    /// Bytes of a worker's pool of registered memory for buffers.
    pub pool_bytes: u64,
    /// Bytes that may be registered with an RDMA device: a hard budget for this process.
    pub registered_bytes: u64,
    /// Operations a worker may have in flight on one lane; more wait in the caller.
    pub operations: u32,
    /// Microseconds a data thread spins before it sleeps.
    pub spin_us: u64,
    /// A worker's pool is of huge pages, where so many are free. Peers on this host do not map those, so it needs
    /// `transport.shm = "off"`.
    pub huge_pages: bool,
    /// Buffers of a trainer's own that its worker remembers, to send them from where they lie from their second
    /// push on; 0 copies always.
    pub registration_cache: u32,
    /// Bytes of those that stay registered; what is larger by itself is copied always.
    pub registration_cache_bytes: u64,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self {
            inbox_slots: 16,
            result_slots: 4,
            replica_slots: 8,
            spill_bytes: 256 << 20,
            call_bytes: 1 << 30,
            table_bytes: 0,
            pool_bytes: 8 << 30,
            registered_bytes: 1 << 40,
            operations: 65_536,
            spin_us: 50,
            huge_pages: false,
            registration_cache: 1024,
            registration_cache_bytes: 8 << 30,
        }
    }
}

/// Logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct LogSettings {
    /// A tracing filter, such as `info` or `info,fabric=debug`.
    pub filter: String,
    /// One JSON object a line instead of text.
    pub json: bool,
    /// An operation (at workers) or a round of a chunk (at servers) that takes longer than so many milliseconds is logged, with what
    /// its time went for; 0: none is.
    pub slow_ms: u64,
    /// Events that each data thread keeps of what it did last, 64 bytes each, for `gradwire trace` and for crashes: 16384 is a good
    /// number. 0: none, because recording them costs the smallest operations some hundredths of their time.
    pub recorder_events: u32,
    /// A directory for what a process did last, where it panics, fails, or receives SIGUSR1; empty: none.
    pub dump_directory: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            filter: "info".into(),
            json: false,
            slow_ms: 1_000,
            recorder_events: 0,
            dump_directory: String::new(),
        }
    }
}

/// Why an address that others reach is refused, and what to do.
const BEYOND_LOOPBACK: &str = "beyond loopback both sides show certificates: make them with `gradwire certs init` and `gradwire \
    certs issue`, then set security.ca, security.certificate and security.key; or use a loopback address; or, where every \
    process that reaches this network is trusted, set security.mode = \"off\"";

fn wrong<T>(
    key: &'static str,
    value: impl std::fmt::Display,
    fix: impl Into<String>,
) -> Result<T, SettingError> {
    Err(SettingError { key, value: value.to_string(), fix: fix.into() })
}

fn within<T: PartialOrd + std::fmt::Display + Copy>(
    key: &'static str,
    value: T,
    min: T,
    max: T,
) -> Result<(), SettingError> {
    if value < min || value > max {
        return wrong(key, value, format!("use a value from {min} to {max}"));
    }
    Ok(())
}

impl Settings {
    /// Checks every bound, and the relations of what members use. Called once, after all sources are merged.
    pub fn validate(&self) -> Result<(), SettingError> {
        let cluster = &self.cluster;
        cluster.validate()?;
        self.checkpoint.validate()?;
        self.security.validate()?;
        let memory = &self.memory;
        let most = REPLICA_SLOTS_MAX as u32;
        within("memory.replica_slots", memory.replica_slots, REPLICA_SLOTS_MIN, most)?;
        within("memory.inbox_slots", memory.inbox_slots, INBOX_SLOTS_MIN, INBOX_SLOTS_MAX as u32)?;
        within("memory.result_slots", memory.result_slots, 1, 64)?;
        within("memory.registration_cache", memory.registration_cache, 0, 1 << 16)?;
        if memory.huge_pages && self.transport.of(Driver::Shm) != Policy::Off {
            let fix = "set transport.shm = \"off\" with it: peers on one host do not map huge pages";
            return wrong("memory.huge_pages", true, fix);
        }
        within("memory.operations", memory.operations, 1, 1 << 20)?;
        within("memory.spin_us", memory.spin_us, 0, 1_000_000)?;
        if memory.spill_bytes < cluster.chunk_bytes {
            return wrong("memory.spill_bytes", memory.spill_bytes, "it must hold at least one chunk");
        }
        if memory.table_bytes != 0 {
            within("memory.table_bytes", memory.table_bytes, 1 << 20, 1 << 50)?;
        }
        within("memory.call_bytes", memory.call_bytes, 1 << 20, 1 << 40)?;
        self.deadlines.validate()?;
        within("log.recorder_events", self.log.recorder_events, 0, 1 << 20)?;
        self.verbs.validate()?;
        if self.scheduler.host.is_empty() {
            return wrong("scheduler.host", "\"\"", "name the scheduler's host");
        }
        self.check_loopback("node.bind", &self.node.bind)?;
        if !self.node.http.is_empty() {
            let Some((host, _)) = self.node.http.rsplit_once(':') else {
                let fix = "use host:port, such as 127.0.0.1:0, or leave it empty for no HTTP";
                return wrong("node.http", &self.node.http, fix);
            };
            self.check_loopback("node.http", host)?;
        }
        let required = Driver::ALL.iter().filter(|driver| self.transport.of(**driver) == Policy::Require);
        if required.count() > 1 {
            return wrong("transport", "several drivers", "require one driver only; prefer the others");
        }
        Ok(())
    }

    /// The cluster's shape is the scheduler's to say, so it has to be whole. It binds `scheduler.bind` or `scheduler.host`: the
    /// same rule holds there.
    pub fn validate_scheduler(&self) -> Result<(), SettingError> {
        self.validate()?;
        self.cluster.validate_shape()?;
        match &self.scheduler.bind {
            Some(bind) => self.check_loopback("scheduler.bind", bind),
            None => self.check_loopback("scheduler.host", &self.scheduler.host),
        }
    }

    /// Members speak to the scheduler where `scheduler.host` says: the same rule holds there.
    pub fn validate_member(&self) -> Result<(), SettingError> {
        self.validate()?;
        self.check_loopback("scheduler.host", &self.scheduler.host)
    }

    fn check_loopback(&self, key: &'static str, host: &str) -> Result<(), SettingError> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let loopback = host == "localhost"
            || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        if loopback || self.security.is_tls() || self.security.mode == SecurityMode::Off {
            return Ok(());
        }
        wrong(key, host, BEYOND_LOOPBACK)
    }

    /// The shape that the scheduler gives to all members.
    #[must_use]
    pub fn shape(&self) -> ClusterShape {
        ClusterShape {
            workers: self.cluster.workers,
            servers: self.cluster.servers,
            chunk_bytes: self.cluster.chunk_bytes,
            lanes: self.cluster.lanes,
            deterministic: self.cluster.deterministic,
            mode: self.cluster.mode,
            backup_workers: self.cluster.backup_workers,
            heartbeat_ms: self.deadlines.heartbeat_ms,
            silence_ms: self.deadlines.silence_ms,
            replicas: self.cluster.replicas,
            server_places: self.cluster.server_places(),
            worker_loss: self.cluster.worker_loss,
            workers_min: self.cluster.workers_min,
            scheduler_ms: self.deadlines.scheduler_ms,
        }
    }
}

impl VerbsSettings {
    fn validate(&self) -> Result<(), SettingError> {
        within("verbs.port", self.port, 1, u8::MAX)?;
        // 0 would be for ever.
        within("verbs.timeout", self.timeout, 1, 31)?;
        // Some devices take 7 for "for ever".
        within("verbs.retries", self.retries, 1, 6)?;
        within("verbs.rnr_retries", self.rnr_retries, 0, 7)?;
        match self.mtu_bytes {
            None | Some(256 | 512 | 1024 | 2048 | 4096) => Ok(()),
            Some(bytes) => wrong("verbs.mtu_bytes", bytes, "use 256, 512, 1024, 2048 or 4096"),
        }
    }
}

impl DeadlineSettings {
    fn validate(&self) -> Result<(), SettingError> {
        const DAY_MS: u64 = 24 * 3600 * 1000;
        let all = [
            ("deadlines.connect_ms", self.connect_ms),
            ("deadlines.assemble_ms", self.assemble_ms),
            ("deadlines.operation_ms", self.operation_ms),
            ("deadlines.barrier_ms", self.barrier_ms),
            ("deadlines.handshake_ms", self.handshake_ms),
            ("deadlines.heartbeat_ms", self.heartbeat_ms),
            ("deadlines.silence_ms", self.silence_ms),
            ("deadlines.drain_ms", self.drain_ms),
            ("deadlines.rejoin_ms", self.rejoin_ms),
            ("deadlines.move_ms", self.move_ms),
        ];
        for (key, value) in all {
            within(key, value, 10, DAY_MS)?;
        }
        within("deadlines.scheduler_ms", self.scheduler_ms, 0, DAY_MS)?;
        if self.silence_ms < 3 * self.heartbeat_ms {
            return wrong(
                "deadlines.silence_ms",
                self.silence_ms,
                "use at least 3 times deadlines.heartbeat_ms",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{CHUNK_BYTES_MIN, WORKERS_MAX};
    use crate::mode::Mode;

    #[test]
    fn defaults_are_valid() {
        assert_eq!(Settings::default().validate_scheduler(), Ok(()));
    }

    #[test]
    fn each_bound_from_both_sides() {
        let check = |edit: fn(&mut Settings), key: Option<&str>| {
            let mut settings = Settings::default();
            edit(&mut settings);
            assert_eq!(settings.validate_scheduler().err().map(|e| e.key), key);
        };
        check(|s| s.cluster.workers = WORKERS_MAX, None);
        check(|s| s.cluster.workers = WORKERS_MAX + 1, Some("cluster.workers"));
        check(|s| s.cluster.workers = 0, Some("cluster.workers"));
        check(|s| s.cluster.chunk_bytes = CHUNK_BYTES_MIN, None);
        check(|s| s.cluster.chunk_bytes = CHUNK_BYTES_MIN - 1, Some("cluster.chunk_bytes"));
        check(|s| s.cluster.chunk_bytes = 5000, Some("cluster.chunk_bytes"));
        check(|s| s.memory.spill_bytes = s.cluster.chunk_bytes - 1, Some("memory.spill_bytes"));
        check(|s| s.memory.registration_cache = 0, None);
        check(|s| s.memory.registration_cache = 1 << 16, None);
        check(|s| s.memory.registration_cache = (1 << 16) + 1, Some("memory.registration_cache"));
        check(|s| s.deadlines.silence_ms = 1_499, Some("deadlines.silence_ms"));
        check(|s| s.deadlines.silence_ms = 1_500, None);
        check(|s| s.verbs.retries = 6, None);
        check(|s| s.verbs.retries = 7, Some("verbs.retries"));
        check(|s| s.verbs.timeout = 0, Some("verbs.timeout"));
        check(|s| s.verbs.mtu_bytes = Some(4096), None);
        check(|s| s.verbs.mtu_bytes = Some(1500), Some("verbs.mtu_bytes"));
    }

    #[test]
    fn backup_workers_need_rounds_that_may_end_in_any_order() {
        let check = |mode, backup, deterministic, wrong: Option<&str>| {
            let mut settings = Settings::default();
            settings.cluster.workers = 3;
            settings.cluster.mode = mode;
            (settings.cluster.backup_workers, settings.cluster.deterministic) = (backup, deterministic);
            let fault = settings.validate_scheduler().err().map(|error| error.to_string());
            assert_eq!(fault.is_some(), wrong.is_some(), "{fault:?}");
            assert!(fault.unwrap_or_default().contains(wrong.unwrap_or_default()));
        };
        check(Mode::Sync, 2, false, None);
        check(Mode::Sync, 3, false, Some("at most 2"));
        check(Mode::Sync, 1, true, Some("cluster.deterministic = false"));
        check(Mode::Async, 1, false, Some("cluster.mode = \"sync\""));
        check(Mode::Bounded(0), 0, true, None);
    }

    #[test]
    fn members_need_not_know_the_whole_shape() {
        let check = |edit: fn(&mut ClusterSettings), key| {
            let mut settings = Settings::default();
            edit(&mut settings.cluster);
            assert_eq!(
                settings.validate_member(),
                Ok(()),
                "{key}: the scheduler has the number of servers and workers"
            );
            assert_eq!(settings.validate_scheduler().err().map(|error| error.key), Some(key));
        };
        check(|cluster| cluster.replicas = 1, "cluster.replicas");
        check(|cluster| cluster.workers_min = 2, "cluster.workers_min");
        check(|cluster| cluster.backup_workers = 1, "cluster.backup_workers");
        let mut settings = Settings::default();
        settings.cluster.replicas = 2;
        assert_eq!(settings.validate().err().map(|error| error.key), Some("cluster.replicas"));
    }

    #[test]
    fn beyond_loopback_needs_an_explicit_word() {
        let mut settings = Settings::default();
        settings.node.bind = "0.0.0.0".into();
        assert_eq!(settings.validate().err().map(|e| e.key), Some("node.bind"));
        settings.security.mode = SecurityMode::Off;
        assert_eq!(settings.validate(), Ok(()));
        settings = Settings::default();
        settings.scheduler.host = "10.0.0.1".into();
        assert_eq!(settings.validate_member().err().map(|e| e.key), Some("scheduler.host"));
        let mut trusted = settings.clone();
        trusted.security.ca = Some("ca.pem".into());
        trusted.security.certificate = Some("certificate.pem".into());
        trusted.security.key = Some(Hidden("key.pem".into()));
        (trusted.node.bind, trusted.node.http) = ("0.0.0.0".into(), "0.0.0.0:9091".into());
        assert_eq!((trusted.validate_member(), trusted.validate_scheduler()), (Ok(()), Ok(())));
        assert_eq!(settings.validate_scheduler().err().map(|e| e.key), Some("scheduler.host"));
        settings.scheduler.bind = Some("127.0.0.1".into());
        assert_eq!(settings.validate_scheduler(), Ok(()), "what is bound counts, not what it is called");
        settings.scheduler.bind = Some("0.0.0.0".into());
        assert_eq!(settings.validate_scheduler().err().map(|e| e.key), Some("scheduler.bind"));
        settings.scheduler.bind = None;
        settings.scheduler.host = "::1".into();
        assert_eq!(settings.validate_scheduler(), Ok(()));
    }

    #[test]
    fn an_address_that_is_none_is_not_blamed_on_security() {
        for (http, wrong) in [("", false), ("127.0.0.1:0", false), ("nonsense", true)] {
            let mut settings = Settings::default();
            settings.node.http = http.into();
            let fix = settings.validate().err().map(|error| error.fix);
            assert_eq!(fix.is_some_and(|fix| fix.contains("host:port")), wrong, "{http:?}");
        }
    }

    #[test]
    fn huge_pages_need_shared_memory_off() {
        let mut settings = Settings::default();
        settings.memory.huge_pages = true;
        assert_eq!(settings.validate().err().map(|e| e.key), Some("memory.huge_pages"));
        settings.transport.shm = Policy::Off;
        assert_eq!(settings.validate(), Ok(()));
    }

    #[test]
    fn one_driver_at_most_is_required() {
        let mut settings = Settings::default();
        settings.transport.tcp = Policy::Require;
        assert_eq!(settings.validate(), Ok(()));
        settings.transport.shm = Policy::Require;
        assert_eq!(settings.validate().err().map(|e| e.key), Some("transport"));
    }
}
