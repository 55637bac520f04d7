//! The gRPC baseline's settings, in one place. They are committed so that the comparison can be checked.

use serde::{Deserialize, Serialize};

/// Every setting of the baseline that was tuned; the default is what the suite compares with.
///
/// Found with `gradwire-bench tune-grpc`, which changes one setting at a time and measures all of them in
/// interleaved runs (its figures are in `benches/README.md`). What it showed, at 400 kB and 1 MiB on 2 cores:
///
/// - windows of 512 KiB to 1 MiB cost up to a third less CPU per byte than 4 MiB and more, since what is in
///   flight stays in the cache; 64 KiB, HTTP/2's default, is the slowest of all;
/// - frames of HTTP/2's default 16 KiB are about half as fast; from 256 KiB up there is little between them;
/// - one message for each 512 KiB is among the best; smaller ones cost a little more;
/// - glibc keeping freed memory saves a fifth to a third of the CPU time (page faults);
/// - how many encoded messages are collected before they are sent makes no difference beyond the noise;
/// - single-threaded runtimes cost the least CPU. Two workers at 1 MiB gain up to a tenth from a second server
///   thread; everything else loses by it.
///
/// Not tuned, since there is nothing to choose: no compression, no limit on message size, `TCP_NODELAY` on, no
/// adaptive window, plain text on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tuning {
    /// Payload bytes of one message: a tensor travels as so many of them.
    pub(crate) chunk_bytes: u32,
    /// HTTP/2 flow-control window of a stream, both ways.
    pub(crate) stream_window_bytes: u32,
    /// HTTP/2 flow-control window of a connection, both ways.
    pub(crate) connection_window_bytes: u32,
    /// The largest HTTP/2 data frame either side accepts.
    pub(crate) max_frame_bytes: u32,
    /// Encoded messages are collected up to this many bytes before they are handed to HTTP/2.
    pub(crate) yield_bytes: u32,
    /// Freed memory that glibc keeps instead of handing it back to the kernel; 0 is its own choice. Without it
    /// every large message is paid in page faults.
    pub(crate) keep_bytes: u32,
    /// tokio threads of a server; 0 is the single-threaded runtime, which hands over nothing between cores.
    pub(crate) server_threads: u32,
    /// tokio threads of a worker; 0 as above.
    pub(crate) worker_threads: u32,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            chunk_bytes: 512 << 10,
            stream_window_bytes: 512 << 10,
            connection_window_bytes: 1 << 20,
            max_frame_bytes: (16 << 20) - 1,
            yield_bytes: 64 << 10,
            keep_bytes: 256 << 20,
            server_threads: 0,
            worker_threads: 0,
        }
    }
}

/// The environment variable through which glibc's allocator is told what to keep.
const GLIBC_TUNABLES: &str = "GLIBC_TUNABLES";

impl Tuning {
    /// The environment of the baseline's processes.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        if self.keep_bytes == 0 {
            return Vec::new();
        }
        let keep = self.keep_bytes;
        let tunables = format!("glibc.malloc.mmap_threshold={keep}:glibc.malloc.trim_threshold={keep}");
        vec![(GLIBC_TUNABLES.to_owned(), tunables)]
    }
}

/// The tokio runtime that these many threads stand for.
///
/// # Errors
/// The system refuses threads or an event queue.
pub(crate) fn runtime(threads: u32) -> std::io::Result<tokio::runtime::Runtime> {
    if threads == 0 {
        tokio::runtime::Builder::new_current_thread().enable_all().build()
    } else {
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads as usize).enable_all().build()
    }
}
