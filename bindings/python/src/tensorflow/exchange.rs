//! A tensor that is declared at the servers, as kernels use it: its rooms in registered memory, and its operations in flight. A room
//! receives the tensor, is sent from, receives the result, and is then the memory of TensorFlow's output, without another copy.

use super::abi::{Fault, Tensor, Turn, code};
use crate::ends::when_ended;
use crate::error::{Failure, lock};
use gradwire_worker::{Client, Ended, Handle, SharedBuffer, Target};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Rooms that are kept for the next operations: one in flight, and one that TensorFlow still has.
const SPARE_MAX: usize = 2;
/// Operations whose results nobody has fetched. They remain if a step fails between start and wait.
const UNFETCHED_MAX: usize = 256;

/// Longer than any operation takes: the last round of a dynamic tensor ends by the deadline of its operation.
const LAST_ROUND: Duration = Duration::from_secs(24 * 3600);

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
    /// Of the process whose pool it is of. A forked child leaves it alone.
    pid: u32,
}

struct Operation {
    number: u32,
    /// The push before a pull. If it fails, the pull brings the round before.
    push: Option<Sent>,
    handle: Handle,
    room: Room,
}

/// A push in flight, and the memory that it is sent from.
type Sent = (Handle, Room);

#[derive(Default)]
struct Flying {
    next: u32,
    /// Until a pull waits for it.
    push: Option<Sent>,
    operations: VecDeque<Operation>,
}

/// Exchanges by their numbers, which operations in flight have.
static ALL: Mutex<BTreeMap<u32, Weak<Exchange>>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU32 = AtomicU32::new(1);

/// Gives pools what no operation needs now.
fn free_spare_rooms() {
    let all: Vec<_> = lock(&ALL).values().filter_map(Weak::upgrade).collect();
    for exchange in all {
        let spare = std::mem::take(&mut *lock(&exchange.spare));
        drop(spare);
    }
}

/// The tensor.
pub(super) struct Exchange {
    /// What operations in flight have, to find it again.
    pub(super) number: u32,
    client: Client,
    tensor: gradwire_worker::Tensor,
    /// TensorFlow's number of its type.
    kind: i32,
    /// Tensors of more bytes than this, and at most of the tensor's, have their place here.
    floor_bytes: usize,
    spare: Mutex<Vec<Room>>,
    flying: Mutex<Flying>,
    /// The error of a push that nobody waited for, until the next operation returns it.
    failure: Mutex<Option<Failure>>,
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
    /// A new one.
    pub(super) fn add(
        client: Client,
        tensor: gradwire_worker::Tensor,
        (kind, floor_bytes): (i32, usize),
    ) -> Arc<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (spare, flying, failure, counts) = Default::default();
        let new = Self { number, client, tensor, kind, floor_bytes, spare, flying, failure, counts };
        let new = Arc::new(new);
        lock(&ALL).insert(number, Arc::downgrade(&new));
        new
    }

    /// The one of an operation in flight, unless its client was closed.
    pub(super) fn find(number: u32) -> Option<Arc<Self>> {
        lock(&ALL).get(&number).and_then(Weak::upgrade)
    }

    /// No operation is to find it any more.
    pub(super) fn remove(&self) {
        lock(&ALL).remove(&self.number);
    }

    /// Whether a tensor of so many bytes has its place here.
    pub(super) fn fits(&self, kind: i32, bytes: usize) -> bool {
        self.kind == kind && self.floor_bytes < bytes && bytes as u64 <= self.tensor.bytes()
    }

    fn room(&self) -> Result<Room, Failure> {
        if let Some(room) = lock(&self.spare).pop() {
            return Ok(room);
        }
        let allocate = || self.client.allocate(self.tensor.bytes());
        // Spare rooms of other tensors may have all that is left.
        let mut buffer = allocate().or_else(|_| {
            free_spare_rooms();
            allocate()
        })?;
        let address = buffer.as_mut_ptr() as usize;
        Ok(Room {
            address,
            shared: buffer.share(),
            dims: Vec::new(),
            bytes: 0,
            home: None,
            pid: std::process::id(),
        })
    }

    fn take_back(&self, room: Room) {
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE_MAX {
            spare.push(room);
        }
    }

    /// Starts an operation with a tensor that fits, and returns its number. It waits only for the round of a dynamic tensor that was started
    /// before on all workers, which therefore ends without this one.
    pub(super) fn start(
        self: &Arc<Self>,
        what: What,
        tensor: &Tensor,
        priority: i32,
    ) -> Result<u32, Failure> {
        // No operation of another thread may come between a push and its pull.
        let mut flying = lock(&self.flying);
        if let Some(push) = flying.push.take_if(|(handle, _)| what != What::Pull && handle.is_done()) {
            self.end_unseen(push);
        }
        if let Some(failure) = lock(&self.failure).take() {
            return Err(failure);
        }
        self.counts.operations.fetch_add(1, Ordering::Relaxed);
        // A round of a tensor of any length is pushed, and then pulled: its length is known when it is complete. The next one is not begun
        // before, because a pull that is repeated after a broken channel would bring that one.
        let is_two = what == What::PushPull && self.tensor.spec().dynamic;
        if let (true, Some(last)) = (is_two, flying.operations.back()) {
            let _ = last.handle.is_done_by(Instant::now() + LAST_ROUND);
        }
        // Before the push, which cannot be taken back.
        let room = if what == What::Push { None } else { Some(self.room_for(tensor)?) };
        if what == What::Push || is_two {
            let push = self.push(tensor, priority)?;
            if let Some((handle, room)) = flying.push.replace(push) {
                let this = self.clone();
                when_ended(handle, room, move |handle, room| this.end_unseen((handle, room)));
            }
        }
        let Some(room) = room else { return Ok(0) };
        let into = Target::Shared(room.shared.clone());
        let handle = if what == What::Pull || is_two {
            self.client.pull_at(&self.tensor, into, priority)?
        } else {
            self.client.push_pull(&self.tensor, self.copied(tensor, &room)?, into, priority)?
        };
        let push = flying.push.take();
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

    /// A push that no pull waits for has ended.
    fn end_unseen(&self, (handle, room): Sent) {
        match handle.wait() {
            Ok(_) => self.take_back(room),
            Err(error) => {
                lock(&self.failure).get_or_insert(error.into());
            }
        }
    }

    fn room_for(&self, tensor: &Tensor) -> Result<Room, Failure> {
        let mut room = self.room()?;
        room.bytes = tensor.bytes();
        tensor.dims(&mut room.dims);
        Ok(room)
    }

    /// The part of a room that now has the tensor's numbers.
    fn copied(&self, tensor: &Tensor, room: &Room) -> Result<SharedBuffer, Failure> {
        let part = room.shared.slice(0, room.bytes as u64);
        let part = part.map_err(|error| Failure::internal(error.to_string()))?;
        // SAFETY: the part has exactly so many bytes, and is this operation's alone. Needed because TensorFlow's tensors are no Rust types.
        unsafe { tensor.copy_to(room.address as *mut u8) };
        // Coded tensors are copied once more before they are encoded.
        let is_coded = self.tensor.sent_bytes() != self.tensor.bytes();
        self.counts.copies_in.fetch_add(1 + u64::from(is_coded), Ordering::Relaxed);
        Ok(part)
    }

    fn push(&self, tensor: &Tensor, priority: i32) -> Result<Sent, Failure> {
        let room = self.room_for(tensor)?;
        Ok((self.client.push_at(&self.tensor, self.copied(tensor, &room)?, priority)?, room))
    }

    fn taken(&self, number: u32) -> Option<Operation> {
        let mut flying = lock(&self.flying);
        let at = flying.operations.iter().position(|operation| operation.number == number)?;
        flying.operations.remove(at)
    }

    /// Nobody will wait for an operation.
    pub(super) fn abandon(&self, number: u32) {
        drop(self.taken(number));
    }

    /// Waits for an operation, and makes its result an output.
    pub(super) fn end(self: &Arc<Self>, number: u32, to: (&Turn, i32)) -> Result<(), Fault> {
        let Some(Operation { push, handle, room, .. }) = self.taken(number) else {
            let text = format!(
                "an operation on {} has no result: it was waited for before, or more than {UNFETCHED_MAX} operations of its name were \
                 started after it; use more names",
                self.label()
            );
            return Err(Fault::new(code::ABORTED, &text));
        };
        let failed = |error| Fault::from(Failure::from(error));
        if let Some((handle, room)) = push {
            handle.wait().map_err(failed)?;
            self.take_back(room);
        }
        let ended = handle.wait().map_err(failed)?;
        self.give(to, room, &ended)
    }

    /// Makes the room the memory of the output.
    fn give(self: &Arc<Self>, to: (&Turn, i32), mut room: Room, ended: &Ended) -> Result<(), Fault> {
        if ended.landed_bytes != room.bytes as u64 {
            let text = format!(
                "{} has {} bytes in this round, and {} bytes on this worker: pass the same shape on all workers, and to pull that of push",
                self.label(),
                ended.landed_bytes,
                room.bytes
            );
            return Err(Fault::new(code::INVALID_ARGUMENT, &text));
        }
        let (place, dims) = ((room.address, room.bytes), std::mem::take(&mut room.dims));
        room.home = Some(self.clone());
        let owner = Box::into_raw(Box::new(room)).cast::<c_void>();
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

/// TensorFlow has freed the output.
unsafe extern "C" fn release(_data: *mut c_void, _bytes: usize, room: *mut c_void) {
    // SAFETY: it was made by `Box::into_raw` of this type, and is given back once.
    let mut room = unsafe { *Box::from_raw(room.cast::<Room>()) };
    if room.pid != std::process::id() {
        // The pool and its locks are the parent's.
        return std::mem::forget(room);
    }
    if let Some(home) = room.home.take() {
        home.take_back(room);
    }
}
