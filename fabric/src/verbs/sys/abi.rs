//! The verbs library's interface as its header declares it: the types, constants and function types that the driver uses, under
//! the header's names. No code that calls anything. `abi_tests` compares sizes, offsets and constants with the header where
//! it is installed.
//!
//! Structures that the library fills in or reads are complete. Of structures that the library allocates only the beginning is
//! declared, up to the last field that the driver reads.

#![allow(non_camel_case_types, missing_docs, reason = "the header's names; the header documents them")]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the layouts in this file are those of 64-bit targets");

/// Types that are only pointed to.
macro_rules! opaque {
    ($($name:ident),*) => {
        $(
            #[repr(C)]
            #[derive(Debug)]
            pub(crate) struct $name {
                _opaque: [u8; 0],
            }
        )*
    };
}

opaque!(ibv_device, ibv_pd, ibv_srq);

pub(crate) type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
pub(crate) type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
pub(crate) type PostSrqRecv =
    unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
pub(crate) type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;

/// The provider's functions, which the header's inline functions call.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_context_ops {
    _before_poll_cq: [*const c_void; 11],
    pub(crate) poll_cq: Option<PollCq>,
    pub(crate) req_notify_cq: Option<ReqNotifyCq>,
    _before_post_srq_recv: [*const c_void; 7],
    pub(crate) post_srq_recv: Option<PostSrqRecv>,
    _before_post_send: [*const c_void; 4],
    pub(crate) post_send: Option<PostSend>,
    _after_post_send: [*const c_void; 6],
}

/// An open device. The library's is longer.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_context {
    pub(crate) device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
}

/// The library's is longer.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_cq {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
}

/// The library's is longer.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_device_attr {
    _before_max_qp_wr: [u64; 14],
    pub(crate) max_qp_wr: c_int,
    _device_cap_flags: u32,
    pub(crate) max_sge: c_int,
    _before_max_cqe: [c_int; 2],
    pub(crate) max_cqe: c_int,
    _before_max_qp_rd_atom: [c_int; 2],
    pub(crate) max_qp_rd_atom: c_int,
    _before_max_qp_init_rd_atom: [c_int; 2],
    pub(crate) max_qp_init_rd_atom: c_int,
    _before_max_srq_wr: [c_int; 14],
    pub(crate) max_srq_wr: c_int,
    _before_phys_port_cnt: [u8; 7],
    pub(crate) phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_port_attr {
    pub(crate) state: u32,
    _max_mtu: u32,
    pub(crate) active_mtu: u32,
    _before_max_msg_sz: [u32; 2],
    pub(crate) max_msg_sz: u32,
    _after_max_msg_sz: [u32; 7],
}

/// In the header a union with two 64-bit numbers: hence the alignment.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_gid {
    pub(crate) raw: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_gid_entry {
    pub(crate) gid: ibv_gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union ibv_async_event_element {
    pub(crate) cq: *mut ibv_cq,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) port_num: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_async_event {
    pub(crate) element: ibv_async_event_element,
    pub(crate) event_type: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_global_route {
    pub(crate) dgid: ibv_gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_ah_attr {
    pub(crate) grh: ibv_global_route,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_srq_attr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_srq_init_attr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: ibv_srq_attr,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_qp_cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_qp_init_attr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_qp_attr {
    pub(crate) qp_state: u32,
    pub(crate) cur_qp_state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) path_mig_state: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

impl ibv_send_wr {
    /// A request that does nothing yet: a write without bytes.
    pub(crate) fn new(wr_id: u64, num_sge: c_int) -> Self {
        Self {
            wr_id,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge,
            opcode: IBV_WR_RDMA_WRITE,
            send_flags: 0,
            imm_data: 0,
            rdma: ibv_send_wr_rdma::default(),
            _qp_type: 0,
            _bind_mw_or_tso: [0; 6],
        }
    }
}

/// The member `rdma` of the header's union `wr`, with the space of the longest member.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_send_wr_rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) _longer_members: [u64; 2],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_send_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: u32,
    pub(crate) send_flags: u32,
    /// In network byte order.
    pub(crate) imm_data: u32,
    pub(crate) rdma: ibv_send_wr_rdma,
    pub(crate) _qp_type: u32,
    pub(crate) _bind_mw_or_tso: [u64; 6],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_recv_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

/// Constants of an enumeration of the header.
macro_rules! constants {
    ($($name:ident = $value:expr;)*) => {
        $(pub(crate) const $name: u32 = $value;)*

        /// Name and value of all of them, to be compared.
        #[cfg(test)]
        pub(crate) const CONSTANTS: &[(&str, u32)] = &[$((stringify!($name), $name)),*];
    };
}

constants! {
    IBV_ACCESS_LOCAL_WRITE = 1;
    IBV_ACCESS_REMOTE_WRITE = 2;
    IBV_ACCESS_REMOTE_READ = 4;
    IBV_EVENT_CQ_ERR = 0;
    IBV_EVENT_QP_FATAL = 1;
    IBV_EVENT_QP_REQ_ERR = 2;
    IBV_EVENT_QP_ACCESS_ERR = 3;
    IBV_EVENT_DEVICE_FATAL = 8;
    IBV_EVENT_PORT_ACTIVE = 9;
    IBV_EVENT_PORT_ERR = 10;
    IBV_EVENT_SRQ_ERR = 14;
    IBV_PORT_ACTIVE = 4;
    IBV_QPS_INIT = 1;
    IBV_QPS_RTR = 2;
    IBV_QPS_RTS = 3;
    IBV_QPS_ERR = 6;
    IBV_QPT_RC = 2;
    IBV_QP_STATE = 1 << 0;
    IBV_QP_ACCESS_FLAGS = 1 << 3;
    IBV_QP_PKEY_INDEX = 1 << 4;
    IBV_QP_PORT = 1 << 5;
    IBV_QP_AV = 1 << 7;
    IBV_QP_PATH_MTU = 1 << 8;
    IBV_QP_TIMEOUT = 1 << 9;
    IBV_QP_RETRY_CNT = 1 << 10;
    IBV_QP_RNR_RETRY = 1 << 11;
    IBV_QP_RQ_PSN = 1 << 12;
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13;
    IBV_QP_MIN_RNR_TIMER = 1 << 15;
    IBV_QP_SQ_PSN = 1 << 16;
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17;
    IBV_QP_DEST_QPN = 1 << 20;
    IBV_SEND_SIGNALED = 2;
    IBV_SEND_INLINE = 8;
    IBV_WC_SUCCESS = 0;
    IBV_WC_LOC_LEN_ERR = 1;
    IBV_WC_LOC_QP_OP_ERR = 2;
    IBV_WC_LOC_PROT_ERR = 4;
    IBV_WC_WR_FLUSH_ERR = 5;
    IBV_WC_REM_INV_REQ_ERR = 9;
    IBV_WC_REM_ACCESS_ERR = 10;
    IBV_WC_REM_OP_ERR = 11;
    IBV_WC_RETRY_EXC_ERR = 12;
    IBV_WC_RNR_RETRY_EXC_ERR = 13;
    IBV_WC_RECV = 128;
    IBV_WC_RECV_RDMA_WITH_IMM = 129;
    IBV_WR_RDMA_WRITE = 0;
    IBV_WR_RDMA_WRITE_WITH_IMM = 1;
    IBV_WR_SEND = 2;
    IBV_WR_RDMA_READ = 4;
}
