//! Queue pairs: their life from made to connected to ended, and posting.

use super::abi as ffi;
use super::chain::{Chain, INLINE_BYTES};
use super::completions::Completions;
use super::context::Domain;
use super::keep::keep_unless_done;
use super::memory::Receives;
use super::{done, made};
use crate::error::FabricError;
use crate::verbs::words::Remote;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// What a queue pair is told of its path and its patience.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Path {
    pub(in crate::verbs) port: u8,
    pub(in crate::verbs) gid_index: u8,
    pub(in crate::verbs) mtu: u32,
    pub(in crate::verbs) timeout: u8,
    pub(in crate::verbs) traffic_class: u8,
    /// Reads of ours that may be under way, and of the peer's that are answered at once.
    pub(in crate::verbs) reads: u8,
    pub(in crate::verbs) reads_answered: u8,
}

/// Retransmissions before a connection fails. Some devices interpret 7, the largest value, as "without limit".
const RETRIES: u8 = 6;
const RNR_TIMER: u8 = 12;
/// Without limit: a receiver without posted receives is slow, not dead.
const RNR_RETRIES: u8 = 7;

/// A reliable connection.
#[derive(Debug)]
pub(in crate::verbs) struct QueuePair {
    /// Until it is destroyed.
    pointer: Option<NonNull<ffi::ibv_qp>>,
    pub(in crate::verbs) number: u32,
    /// Bytes that a request carries inside itself.
    pub(in crate::verbs) inline_bytes: u32,
    completions: Arc<Completions>,
    receives: Arc<Receives>,
    domain: Arc<Domain>,
}

// SAFETY: as for `Context`.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Of so many requests, with so many places each.
    pub(in crate::verbs) fn new(
        domain: &Arc<Domain>,
        completions: &Arc<Completions>,
        receives: &Arc<Receives>,
        (requests, gather_max): (usize, usize),
    ) -> Result<Self, FabricError> {
        let what = format!("making a queue pair of {requests} requests");
        let make = |inline_bytes: u32| {
            let mut init = ffi::ibv_qp_init_attr {
                qp_context: null_mut(),
                send_cq: completions.pointer.as_ptr(),
                recv_cq: completions.pointer.as_ptr(),
                srq: receives.pointer.as_ptr(),
                cap: ffi::ibv_qp_cap {
                    max_send_wr: requests as u32,
                    max_recv_wr: 0,
                    max_send_sge: gather_max as u32,
                    max_recv_sge: 0,
                    max_inline_data: inline_bytes,
                },
                qp_type: ffi::IBV_QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: everything named is ours and kept alive below.
            made(unsafe { (domain.context.library.ibv_create_qp)(domain.pointer.as_ptr(), &mut init) }, &what)
        };
        // Devices do not say beforehand how much they carry inside a request.
        let [most, least] = INLINE_BYTES;
        let (pointer, inline_bytes) = match make(most) {
            Ok(pointer) => (pointer, most),
            Err(_) => (make(least)?, least),
        };
        // SAFETY: just made.
        let number = unsafe { pointer.as_ref().qp_num };
        let (completions, receives) = (Arc::clone(completions), Arc::clone(receives));
        let domain = Arc::clone(domain);
        Ok(Self { pointer: Some(pointer), number, inline_bytes, completions, receives, domain })
    }

    fn pointer(&self) -> Result<NonNull<ffi::ibv_qp>, FabricError> {
        self.pointer.ok_or_else(|| FabricError::Internal("a queue pair was used after its end".into()))
    }

    fn modify(&self, mut attributes: ffi::ibv_qp_attr, mask: u32, what: &str) -> Result<(), FabricError> {
        let pointer = self.pointer()?;
        let modify = self.domain.context.library.ibv_modify_qp;
        // SAFETY: a queue pair of ours and the attributes that the mask names.
        done(unsafe { modify(pointer.as_ptr(), &mut attributes, mask as i32) }, what)
    }

    /// To "ready to send", towards the peer.
    pub(in crate::verbs) fn connect(
        &self,
        path: &Path,
        remote: &Remote,
        first_packet: u32,
    ) -> Result<(), FabricError> {
        let access = ffi::IBV_ACCESS_REMOTE_WRITE | ffi::IBV_ACCESS_REMOTE_READ;
        let init = ffi::ibv_qp_attr {
            qp_state: ffi::IBV_QPS_INIT,
            port_num: path.port,
            qp_access_flags: access,
            ..Default::default()
        };
        let mask = ffi::IBV_QP_STATE | ffi::IBV_QP_PKEY_INDEX | ffi::IBV_QP_PORT | ffi::IBV_QP_ACCESS_FLAGS;
        self.modify(init, mask, "preparing a queue pair")?;
        let grh = ffi::ibv_global_route {
            dgid: ffi::ibv_gid { raw: remote.gid },
            sgid_index: path.gid_index,
            hop_limit: 64,
            traffic_class: path.traffic_class,
            ..Default::default()
        };
        let receive = ffi::ibv_qp_attr {
            qp_state: ffi::IBV_QPS_RTR,
            path_mtu: path.mtu,
            dest_qp_num: remote.queue_pair,
            rq_psn: remote.first_packet,
            max_dest_rd_atomic: path.reads_answered,
            min_rnr_timer: RNR_TIMER,
            ah_attr: ffi::ibv_ah_attr { grh, is_global: 1, port_num: path.port, ..Default::default() },
            ..Default::default()
        };
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_AV
            | ffi::IBV_QP_PATH_MTU
            | ffi::IBV_QP_DEST_QPN
            | ffi::IBV_QP_RQ_PSN
            | ffi::IBV_QP_MAX_DEST_RD_ATOMIC
            | ffi::IBV_QP_MIN_RNR_TIMER;
        self.modify(receive, mask, "connecting a queue pair")?;
        let send = ffi::ibv_qp_attr {
            qp_state: ffi::IBV_QPS_RTS,
            sq_psn: first_packet,
            timeout: path.timeout,
            retry_cnt: RETRIES,
            rnr_retry: RNR_RETRIES,
            max_rd_atomic: path.reads,
            ..Default::default()
        };
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_SQ_PSN
            | ffi::IBV_QP_TIMEOUT
            | ffi::IBV_QP_RETRY_CNT
            | ffi::IBV_QP_RNR_RETRY
            | ffi::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(send, mask, "starting a queue pair")
    }

    /// Ends all that is under way, in both directions.
    pub(in crate::verbs) fn fail(&self) -> Result<(), FabricError> {
        let attributes = ffi::ibv_qp_attr { qp_state: ffi::IBV_QPS_ERR, ..Default::default() };
        self.modify(attributes, ffi::IBV_QP_STATE, "ending a queue pair")
    }

    /// Whether the queue pair has not been destroyed yet.
    pub(in crate::verbs) fn exists(&self) -> bool {
        self.pointer.is_some()
    }

    /// From here on the device neither reads nor writes memory for it. False if the device refuses: what the queue pair may reach is
    /// kept for good.
    pub(in crate::verbs) fn destroy(&mut self, reaches: impl Sized) -> bool {
        let Some(pointer) = self.pointer.take() else { return true };
        // SAFETY: ours, and taken here so that it happens once.
        let code = unsafe { (self.domain.context.library.ibv_destroy_qp)(pointer.as_ptr()) };
        let made_of = (Arc::clone(&self.completions), Arc::clone(&self.receives), Arc::clone(&self.domain));
        keep_unless_done(code, "destroying a queue pair", (made_of, reaches))
    }

    /// Posts what was put together, in order, as one chain; empties it.
    pub(in crate::verbs) fn post(&self, chain: &mut Chain) -> Result<(), FabricError> {
        if chain.requests.is_empty() {
            return Ok(());
        }
        let pointer = self.pointer()?;
        let first = chain.link();
        let mut bad = null_mut();
        // SAFETY: the chain's requests point into its own vectors, which do not change during the call; what they
        // name is registered and, by the caller's promise to `Chain`, left alone until it completes.
        let code = unsafe {
            let ops = &(*self.domain.context.pointer.as_ptr()).ops;
            ops.post_send.map_or(libc::ENOSYS, |post| post(pointer.as_ptr(), first, &mut bad))
        };
        chain.clear();
        done(code, "posting requests")
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy(());
    }
}
