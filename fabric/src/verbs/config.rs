//! What a RDMA device is opened with.

/// What a device is opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    /// Its name; the first one unless said.
    pub device: Option<String>,
    /// Its port, from 1.
    pub port: u8,
    /// The address to use, by its index; a routable RoCEv2 address of a network device unless said.
    pub gid_index: Option<u8>,
    /// A packet without answer is sent again after 4.096 µs · 2^timeout: 16 is 0.27 s. Devices may take up to four times
    /// as long. The connection fails after six times.
    pub timeout: u8,
    /// Of the packets' IP headers.
    pub traffic_class: u8,
    /// Notices by flag words that are polled, where the peer wants it too, instead of by immediates. Threads then never
    /// sleep, and the order that it relies on is what devices do but no promise.
    pub tail_flags: bool,
    /// Bytes that may be registered at most.
    pub registered_bytes_max: u64,
}

impl Default for VerbsConfig {
    /// A peer that does not answer is given up after 1.9 s with requests under way: seven tries of 0.27 s.
    fn default() -> Self {
        Self {
            device: None,
            port: 1,
            gid_index: None,
            timeout: 16,
            traffic_class: 0,
            tail_flags: false,
            registered_bytes_max: u64::MAX,
        }
    }
}
