//! Settings: every key with its default, bounds and meaning in one place. The `daemon` crate reads files, the environment
//! and command lines; this module receives typed values and validates them once.

mod checkpoint;
mod cluster;
mod error;
mod meaning;
mod security;

use crate::ids::JobId;
use crate::limits::{INBOX_SLOTS_MAX, INBOX_SLOTS_MIN};
use crate::transport::{Driver, Policies, Policy};
pub use checkpoint::CheckpointSettings;
pub use cluster::{ClusterSettings, ClusterShape, RARE_HEARTBEAT_MS_MAX, WorkerLoss};
pub use error::{SettingError, is_pem, shown};
use error::{within, wrong};
pub use meaning::meaning;
pub use security::{Hidden, SecurityMode, SecuritySettings};
use serde::{Deserialize, Serialize};

/// All settings, in the sections of `gradwire.toml`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Id of the job. The scheduler refuses processes of other jobs.
    #[cfg_attr(test, schemars(with = "u64"))]
    pub job: JobId,
    /// The scheduler's address.
    pub scheduler: SchedulerSettings,
    /// The cluster's shape. The scheduler's values apply to all members.
    pub cluster: ClusterSettings,
    /// Which transports may be used.
    pub transport: Policies,
    /// The RDMA device that the verbs transport uses.
    pub verbs: VerbsSettings,
    /// Timeouts.
    pub deadlines: DeadlineSettings,
    /// Addresses of this process.
    pub node: NodeSettings,
    /// Memory and queue sizes.
    pub memory: MemorySettings,
    /// Checkpoints: where and when to write them, and which one to restore.
    pub checkpoint: CheckpointSettings,
    /// Authentication and encryption.
    pub security: SecuritySettings,
    /// Logs.
    pub log: LogSettings,
}

/// The scheduler's address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerSettings {
    /// Host name or address that members connect to. The scheduler binds it unless `scheduler.bind` is set.
    pub host: String,
    /// Address that the scheduler binds. Set it if `host` is a name with several addresses, or an address that is not the
    /// scheduler machine's own (a load balancer, a Kubernetes service).
    pub bind: Option<String>,
    /// TCP port. 0: the operating system chooses a free port, and the scheduler logs it.
    pub port: u16,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Self { host: "127.0.0.1".into(), bind: None, port: 9092 }
    }
}

/// The RDMA device, for the verbs driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct VerbsSettings {
    /// Name of the RDMA device (`rdma link` lists them). Default: the first device.
    pub device: Option<String>,
    /// Port of the RDMA device.
    pub port: u8,
    /// GID index, which selects the source address. Default: a routable RoCEv2 address of a network interface.
    pub gid_index: Option<u8>,
    /// Retransmission timeout: the device retransmits an unacknowledged packet after 4.096 microseconds times 2 to this
    /// power, and the connection fails after six retransmissions. 16 is 0.27 s per attempt and 1.9 s in total (devices may
    /// take up to four times as long). This bounds how long an unreachable host goes undetected while data is in flight.
    /// The crash of a process is detected at once, through its control connection.
    pub timeout: u8,
    /// Traffic class of the packets (for RoCE: DSCP in the upper six bits, ECN in the lower two).
    pub traffic_class: u8,
    /// Signal arrivals by flag words in memory that data threads poll, instead of by immediate data. Used only if both peers
    /// have it on. Data threads then never sleep, and rely on in-order arrival, which devices keep but no specification
    /// guarantees.
    pub tail_flags: bool,
}

impl Default for VerbsSettings {
    fn default() -> Self {
        Self { device: None, port: 1, gid_index: None, timeout: 16, traffic_class: 0, tail_flags: false }
    }
}

/// Timeouts, in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct DeadlineSettings {
    /// Connecting to the scheduler, counted from the start of the process.
    pub connect_ms: u64,
    /// Waiting for all members of the job to register.
    pub assemble_ms: u64,
    /// How long servers may take for one push, pull or push_pull, and to allocate a declared tensor. An operation that waits for
    /// other workers, or a barrier, takes longer (see `busy_ms`); each time this has passed, a warning names them. A server that
    /// was asked to leave gives up after twice this time without progress.
    pub operation_ms: u64,
    /// How long an operation or a barrier waits for members that are alive but do not contribute or arrive, such as a worker
    /// that evaluates. Members that are silent or have failed are not waited for that long: see `silence_ms` and
    /// `cluster.worker_loss`.
    pub busy_ms: u64,
    /// The first message and the TLS handshake of a new connection. The connection is closed afterwards.
    pub handshake_ms: u64,
    /// Interval between heartbeats. A member that has told the same twenty times sends one every two seconds, or each fifth of `silence_ms` if that is less, until it has news.
    pub heartbeat_ms: u64,
    /// A member that has sent nothing for this long counts as failed. At least 3 times `heartbeat_ms`.
    pub silence_ms: u64,
    /// Finishing outstanding work after SIGTERM or at the end of the job.
    pub drain_ms: u64,
    /// With `cluster.worker_loss = "wait"`: how long the job waits for a failed worker to rejoin. With `"continue"`: how
    /// long servers may take to report the rounds from which a rejoining worker contributes; afterwards it is removed.
    pub rejoin_ms: u64,
    /// How long members continue without a scheduler while they try to reconnect at its address. 0: they exit at once.
    pub scheduler_ms: u64,
}

impl Default for DeadlineSettings {
    fn default() -> Self {
        Self {
            connect_ms: 30_000,
            assemble_ms: 120_000,
            operation_ms: 30_000,
            busy_ms: 1_800_000,
            handshake_ms: 5_000,
            heartbeat_ms: 500,
            silence_ms: 10_000,
            drain_ms: 3_000,
            rejoin_ms: 120_000,
            scheduler_ms: 60_000,
        }
    }
}

/// Addresses of this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct NodeSettings {
    /// Address that this process binds for data connections of its peers.
    pub bind: String,
    /// Address that peers use to reach this process. Default: `bind`.
    pub advertise: Option<String>,
    /// TCP port for data connections (servers). 0: the operating system chooses a free port.
    pub port: u16,
    /// HOST:PORT of the HTTP endpoints (`/metrics`, `/status`, …). An empty string turns them off.
    pub http: String,
    /// Requested rank. Default: the scheduler assigns the lowest free rank. 4294967295 requests the highest free rank.
    pub rank: Option<u32>,
    /// The tcp transport uses Unix sockets between peers of the same host (network namespace) and user, if both have this
    /// on. false: it always uses TCP.
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

/// Memory and queue sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct MemorySettings {
    /// Receive slots of a server per lane, shared by all workers.
    pub inbox_slots: u32,
    /// Bytes per lane in which a server buffers contributions that arrive before their turn or that it reads from workers'
    /// memory. At most half of it is used for key buffers that workers write into. Allocated on demand; an RDMA device pins it.
    pub spill_bytes: u64,
    /// Bytes per lane in which a server buffers calls: request bodies until they are answered, and long replies until the
    /// worker has received them. Also the size limit of one body. Allocated on demand.
    pub call_bytes: u64,
    /// Bytes per lane for rows of sparse tables and their index at a server. When they are used up, a table with a row limit
    /// evicts its oldest rows; other tables create no new rows, and pushes to missing rows fail. 0: half of the memory of the
    /// machine or control group, divided by the number of lanes. Allocated on demand.
    pub table_bytes: u64,
    /// Bytes of a worker's pool of registered buffers. While it is full, calls wait; it must hold the largest call with its
    /// reply. A ps-lite program's arrays may take as much again.
    pub pool_bytes: u64,
    /// Upper limit of the bytes that this process registers with an RDMA device.
    pub registered_bytes: u64,
    /// Microseconds that an idle data thread spins before it sleeps.
    pub spin_us: u64,
    /// Allocate a worker's pool from huge pages if enough are free. Peers on the same host cannot map huge pages, so this
    /// requires `transport.shm = "off"`.
    pub huge_pages: bool,
    /// How many bytes of the program's own buffers a worker keeps registered. From their second push on, they are sent
    /// without a copy. A buffer larger than this is always copied. 0: always copy.
    pub registration_cache_bytes: u64,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self {
            inbox_slots: 16,
            spill_bytes: 256 << 20,
            call_bytes: 1 << 30,
            table_bytes: 0,
            pool_bytes: 8 << 30,
            registered_bytes: 1 << 40,
            spin_us: 50,
            huge_pages: false,
            registration_cache_bytes: 8 << 30,
        }
    }
}

/// Logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct LogSettings {
    /// Log filter: a level, or levels per module, such as `info` or `info,fabric=debug`.
    pub filter: String,
    /// Log one JSON object per line instead of text.
    pub json: bool,
    /// Log operations (at workers) and rounds of a chunk (at servers) that take longer than this many milliseconds, with
    /// where the time was spent. 0: off.
    pub slow_ms: u64,
    /// Size of each data thread's flight recorder in events of 64 bytes, for `gradwire trace` and crash dumps; 16384 is a good
    /// value. 0: off. Recording slows the smallest operations by a few percent.
    pub recorder_events: u32,
    /// Directory to which a process dumps its flight recorder when it panics, fails or receives SIGUSR1. Empty: no dumps.
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

/// Why an address that other hosts can reach is rejected, and what to do.
const BEYOND_LOOPBACK: &str = "addresses other than loopback require certificates: create them with `gradwire certs init` and \
    `gradwire certs issue`, then set security.ca, security.certificate and security.key; or use a loopback address; or, if \
    every process on this network is trusted, set security.mode = \"off\"";

impl Settings {
    /// Checks every bound, and relations between settings that members use. Called once, after all sources are merged.
    pub fn validate(&self) -> Result<(), SettingError> {
        let cluster = &self.cluster;
        cluster.validate()?;
        self.checkpoint.validate()?;
        self.security.validate()?;
        let memory = &self.memory;
        within("memory.inbox_slots", memory.inbox_slots, INBOX_SLOTS_MIN, INBOX_SLOTS_MAX as u32)?;
        let is_used = |driver: &Driver| driver.shares_memory() && self.transport.of(*driver) != Policy::Off;
        if memory.huge_pages
            && let Some(driver) = Driver::ALL.into_iter().find(is_used)
        {
            let why = "because peers on the same host cannot map huge pages";
            let fix = format!("it requires {} = \"off\", {why}", driver.setting());
            return wrong("memory.huge_pages", true, fix);
        }
        within("memory.spin_us", memory.spin_us, 0, 1_000_000)?;
        if memory.spill_bytes < cluster.chunk_bytes {
            return wrong(
                "memory.spill_bytes",
                memory.spill_bytes,
                "it must be at least cluster.chunk_bytes",
            );
        }
        if memory.table_bytes != 0 {
            within("memory.table_bytes", memory.table_bytes, 1 << 20, 1 << 50)?;
        }
        within("memory.call_bytes", memory.call_bytes, 1 << 20, 1 << 40)?;
        self.deadlines.validate()?;
        within("log.recorder_events", self.log.recorder_events, 0, 1 << 20)?;
        self.verbs.validate()?;
        if self.scheduler.host.is_empty() {
            return wrong("scheduler.host", "\"\"", "set it to the scheduler's host name or address");
        }
        self.check_loopback("node.bind", &self.node.bind)?;
        if !self.node.http.is_empty() {
            let Some((host, _)) = self.node.http.rsplit_once(':') else {
                let fix = "use HOST:PORT, such as 127.0.0.1:0, or an empty string for no HTTP";
                return wrong("node.http", &self.node.http, fix);
            };
            self.check_loopback("node.http", host)?;
        }
        let required = Driver::ALL.iter().filter(|driver| self.transport.of(**driver) == Policy::Require);
        if required.count() > 1 {
            return wrong(
                "transport",
                "several transports",
                format!("set at most one of {} to require", Driver::list(Driver::setting, "and")),
            );
        }
        Ok(())
    }

    /// Checks the settings of a scheduler: the whole cluster shape, and the address that it binds (`scheduler.bind` or
    /// `scheduler.host`).
    pub fn validate_scheduler(&self) -> Result<(), SettingError> {
        self.validate()?;
        self.cluster.validate_shape()?;
        match &self.scheduler.bind {
            Some(bind) => self.check_loopback("scheduler.bind", bind),
            None => self.check_loopback("scheduler.host", &self.scheduler.host),
        }
    }

    /// Checks the settings of a member: it connects to `scheduler.host`, which needs certificates beyond loopback.
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

    /// The shape that the scheduler sends to all members.
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
        // 0 would mean without limit.
        within("verbs.timeout", self.timeout, 1, 31)
    }
}

impl DeadlineSettings {
    fn validate(&self) -> Result<(), SettingError> {
        const DAY_MS: u64 = 24 * 3600 * 1000;
        let all = [
            ("deadlines.connect_ms", self.connect_ms),
            ("deadlines.assemble_ms", self.assemble_ms),
            ("deadlines.operation_ms", self.operation_ms),
            ("deadlines.busy_ms", self.busy_ms),
            ("deadlines.handshake_ms", self.handshake_ms),
            ("deadlines.heartbeat_ms", self.heartbeat_ms),
            ("deadlines.silence_ms", self.silence_ms),
            ("deadlines.drain_ms", self.drain_ms),
            ("deadlines.rejoin_ms", self.rejoin_ms),
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
        check(|s| s.deadlines.silence_ms = 1_499, Some("deadlines.silence_ms"));
        check(|s| s.deadlines.silence_ms = 1_500, None);
        check(|s| s.verbs.timeout = 0, Some("verbs.timeout"));
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
            assert_eq!(fix.is_some_and(|fix| fix.contains("HOST:PORT")), wrong, "{http:?}");
        }
    }

    #[test]
    fn huge_pages_need_shared_memory_off() {
        let mut settings = Settings::default();
        settings.memory.huge_pages = true;
        assert_eq!(settings.validate().err().map(|e| e.key), Some("memory.huge_pages"));
        settings.transport = Policies::only(Driver::Tcp);
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
