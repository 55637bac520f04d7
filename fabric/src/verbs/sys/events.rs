//! What a device tells of itself beside completions: its own end, a port's, a queue pair's.

use super::abi as ffi;
use super::context::Context;
use std::mem::MaybeUninit;

/// An event, with whatever it is about named by what lanes know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum Event {
    /// A queue pair and the completion queue that it is on.
    QueuePair {
        number: u32,
        completions: usize,
        fault: Fault,
    },
    /// A lane's queue is lost.
    Completions {
        completions: usize,
    },
    Receives {
        receives: usize,
    },
    Port {
        port: u8,
        is_up: bool,
    },
    /// The device is gone.
    Device,
    /// Nothing that anybody here waits for.
    Other,
}

/// What befell a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum Fault {
    /// What the peer sent.
    Request,
    Access,
    /// The device itself.
    Fatal,
}

impl Context {
    /// The next event, if one has come. It is acknowledged: queue pairs that wait for that can go.
    pub(in crate::verbs) fn next_event(&self) -> Option<Event> {
        let mut event = MaybeUninit::<ffi::ibv_async_event>::zeroed();
        // SAFETY: the descriptor does not block: the library fills the event in or fails.
        if unsafe { (self.library.ibv_get_async_event)(self.pointer.as_ptr(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: zeroed, then filled in; all of it is plain data.
        let mut event = unsafe { event.assume_init() };
        // SAFETY: the type says which part of the union counts, and what that points to is not destroyed before the event
        // is acknowledged.
        let told = unsafe { translate(&event) };
        // SAFETY: taken above, acknowledged once.
        unsafe { (self.library.ibv_ack_async_event)(&mut event) };
        Some(told)
    }
}

/// # Safety
/// The event was given by the library and not acknowledged yet.
unsafe fn translate(event: &ffi::ibv_async_event) -> Event {
    let queue_pair = |fault| {
        // SAFETY: events of these types are of a queue pair, which lives until they are acknowledged.
        let queue_pair = unsafe { &*event.element.qp };
        let completions = queue_pair.send_cq as usize;
        Event::QueuePair { number: queue_pair.qp_num, completions, fault }
    };
    match event.event_type {
        ffi::IBV_EVENT_QP_FATAL => queue_pair(Fault::Fatal),
        ffi::IBV_EVENT_QP_REQ_ERR => queue_pair(Fault::Request),
        ffi::IBV_EVENT_QP_ACCESS_ERR => queue_pair(Fault::Access),
        // SAFETY: of a completion queue; its address is only compared.
        ffi::IBV_EVENT_CQ_ERR => Event::Completions { completions: unsafe { event.element.cq } as usize },
        // SAFETY: of a shared receive queue; its address is only compared.
        ffi::IBV_EVENT_SRQ_ERR => Event::Receives { receives: unsafe { event.element.srq } as usize },
        ffi::IBV_EVENT_PORT_ACTIVE | ffi::IBV_EVENT_PORT_ERR => Event::Port {
            // SAFETY: of a port, by its number.
            port: unsafe { event.element.port_num } as u8,
            is_up: event.event_type == ffi::IBV_EVENT_PORT_ACTIVE,
        },
        ffi::IBV_EVENT_DEVICE_FATAL => Event::Device,
        _ => Event::Other,
    }
}
