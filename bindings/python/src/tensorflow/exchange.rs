//! A tensor that is declared at the servers, as kernels use it: its rooms in registered memory, and its operations in flight. A room
//! receives the tensor, is sent from, receives the result, and is then the memory of TensorFlow's output, without another copy.

use super::abi::{Fault, Tensor, Turn};
use super::fault_of;
use crate::ends::when_ended;
use crate::error::{Failure, lock};
use gradwire_worker::{Client, Ended, Handle, SharedBuffer, Target};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Rooms that are kept for the next operations: one in flight, and one that TensorFlow still has.
const SPARE_MAX: usize = 2;
/// Operations whose results nobody has fetched. They remain if a step fails between start and wait.
const UNFETCHED_MAX: usize = 256;

/// What is asked for a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    PushPull,
    Push,
    Pull,
}

/// Registered memory for one operation, and afterwards for its result.
struct Room {
    address: usize,
    shared: SharedBuffer,
    /// The lengths of the tensor that is in it.
    dims: Vec<i64>,
    bytes: usize,
    /// While TensorFlow has it.
    home: Option<Arc<Exchange>>,
}

struct Operation {
    number: u32,
    /// The push before the pull, where they are two. If it fails, the pull brings the round before.
    push: Option<Handle>,
    handle: Handle,
    room: Box<Room>,
}

#[derive(Default)]
struct Flying {
    next: u32,
    operations: VecDeque<Operation>,
}

/// The tensor.
pub(super) struct Exchange {
    client: Client,
    tensor: gradwire_worker::Tensor,
    /// TensorFlow's number of its type.
    kind: i32,
    /// Tensors of more bytes than this, and at most of the tensor's, have their place here.
    floor_bytes: usize,
    spare: Mutex<Vec<Box<Room>>>,
    flying: Mutex<Flying>,
    /// What became of a push, for which nobody waits.
    failure: Arc<Mutex<Option<Failure>>>,
    pub(super) counts: Counts,
}

/// For reports.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) operations: AtomicU64,
    pub(super) copies_in: AtomicU64,
    pub(super) copies_out: AtomicU64,
}

impl Exchange {
    pub(super) fn new(
        client: Client,
        tensor: gradwire_worker::Tensor,
        kind: i32,
        floor_bytes: usize,
    ) -> Self {
        let (spare, flying, failure, counts) = Default::default();
        Self { client, tensor, kind, floor_bytes, spare, flying, failure, counts }
    }

    /// Whether a tensor of so many bytes has its place here.
    pub(super) fn fits(&self, kind: i32, bytes: usize) -> bool {
        self.kind == kind && self.floor_bytes < bytes && bytes as u64 <= self.tensor.bytes()
    }

    fn room(&self) -> Result<Box<Room>, Failure> {
        if let Some(room) = lock(&self.spare).pop() {
            return Ok(room);
        }
        let mut buffer = self.client.allocate(self.tensor.bytes())?;
        let address = buffer.as_mut_ptr() as usize;
        Ok(Box::new(Room { address, shared: buffer.share(), dims: Vec::new(), bytes: 0, home: None }))
    }

    fn take_back(&self, room: Box<Room>) {
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE_MAX {
            spare.push(room);
        }
    }

    /// Starts an operation with a tensor, and returns its number. Never waits for another worker.
    pub(super) fn start(&self, what: What, tensor: &Tensor, priority: i32) -> Result<u32, Failure> {
        if let Some(failure) = lock(&self.failure).clone() {
            return Err(failure);
        }
        self.counts.operations.fetch_add(1, Ordering::Relaxed);
        if what == What::Push {
            let (handle, room) = self.push(tensor, priority)?;
            let failure = self.failure.clone();
            when_ended(handle, room, move |handle, room| {
                // Nobody waits for it: the next operation tells what became of it.
                if let Err(error) = handle.wait() {
                    lock(&failure).get_or_insert(error.into());
                }
                drop(room);
            });
            return Ok(0);
        }
        // A round of a tensor of any length is pushed, and then pulled: its length is known when it is complete.
        let is_two = what == What::PushPull && self.tensor.spec().dynamic;
        let push = if is_two { Some(self.push(tensor, priority)?.0) } else { None };
        let room = self.room_for(tensor)?;
        let into = Target::Shared(room.shared.clone());
        let handle = if what == What::Pull || is_two {
            self.client.pull_at(&self.tensor, into, priority)?
        } else {
            self.client.push_pull(&self.tensor, self.copied(tensor, &room)?, into, priority)?
        };
        let mut flying = lock(&self.flying);
        // 0 is no operation's.
        flying.next = flying.next.checked_add(1).unwrap_or(1);
        let number = flying.next;
        flying.operations.push_back(Operation { number, push, handle, room });
        let dropped =
            if flying.operations.len() > UNFETCHED_MAX { flying.operations.pop_front() } else { None };
        drop(flying);
        drop(dropped);
        Ok(number)
    }

    fn room_for(&self, tensor: &Tensor) -> Result<Box<Room>, Failure> {
        let mut room = self.room()?;
        room.bytes = tensor.bytes();
        tensor.dims(&mut room.dims);
        Ok(room)
    }

    /// The part of a room that now has the tensor's numbers.
    fn copied(&self, tensor: &Tensor, room: &Room) -> Result<SharedBuffer, Failure> {
        // SAFETY: the room has at least so many bytes (`fits`), and is this operation's alone. Needed because TensorFlow's tensors are no
        // Rust types.
        unsafe { tensor.copy_to(room.address as *mut u8) };
        self.counts.copies_in.fetch_add(1, Ordering::Relaxed);
        let part = room.shared.slice(0, room.bytes as u64);
        part.map_err(|error| Failure::internal(error.to_string()))
    }

    fn push(&self, tensor: &Tensor, priority: i32) -> Result<(Handle, Box<Room>), Failure> {
        let room = self.room_for(tensor)?;
        Ok((self.client.push_at(&self.tensor, self.copied(tensor, &room)?, priority)?, room))
    }

    /// Waits for an operation, and makes its result an output.
    pub(super) fn end(self: &Arc<Self>, number: u32, (turn, output): (&Turn, i32)) -> Result<(), Fault> {
        let operation = {
            let mut flying = lock(&self.flying);
            let at = flying.operations.iter().position(|operation| operation.number == number);
            at.and_then(|at| flying.operations.remove(at))
        };
        let Some(Operation { push, handle, room, .. }) = operation else {
            let text = format!(
                "an operation on {} has no result: more than {UNFETCHED_MAX} operations of its name were started after it and not \
                 waited for; use more names",
                self.tensor.spec().label()
            );
            return Err(Fault { code: 10, text });
        };
        let contributed = push.map(Handle::wait).transpose();
        let ended =
            contributed.and_then(|_| handle.wait()).map_err(|error| fault_of(&Failure::from(error)))?;
        self.give((turn, output), room, &ended)
    }

    /// Makes the room the memory of the output.
    fn give(self: &Arc<Self>, to: (&Turn, i32), mut room: Box<Room>, ended: &Ended) -> Result<(), Fault> {
        if ended.landed_bytes != room.bytes as u64 {
            let text = format!(
                "{} has {} bytes in this round, and {} bytes on this worker: all workers must pass the same shape",
                self.tensor.spec().label(),
                ended.landed_bytes,
                room.bytes
            );
            return Err(Fault { code: 3, text });
        }
        let (place, dims) = ((room.address, room.bytes), std::mem::take(&mut room.dims));
        room.home = Some(self.clone());
        let owner = Box::into_raw(room).cast::<c_void>();
        // SAFETY: the room keeps its memory until `release` has it. Needed because TensorFlow's tensors are no Rust types.
        let (tensor, is_copied) = unsafe { Tensor::over(to, &dims, place, (release, owner))? };
        self.counts.copies_out.fetch_add(u64::from(is_copied), Ordering::Relaxed);
        to.0.output(to.1, &tensor)
    }

    /// How contributions travel now.
    pub(super) fn placement(&self) -> String {
        self.tensor.placement().to_string()
    }

    /// As messages name it.
    pub(super) fn label(&self) -> String {
        self.tensor.spec().label()
    }
}

/// Nobody has the output any more.
unsafe extern "C" fn release(_data: *mut c_void, _bytes: usize, room: *mut c_void) {
    // SAFETY: it was made by `Box::into_raw` of this type, and is given back once.
    let mut room = unsafe { Box::from_raw(room.cast::<Room>()) };
    if let Some(home) = room.home.take() {
        home.take_back(room);
    }
}
