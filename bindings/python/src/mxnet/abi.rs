//! MXNet's C interface as far as operations in its dependency engine need it: pushing one, ending one, and where an
//! array's numbers lie. The functions come from the `libmxnet` that the interpreter has loaded; nothing is linked. It must
//! not know what the operations do.

use crate::error::lock;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Arc, Mutex};

type Handle = *mut c_void;
type Begin = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *mut c_void);
/// The same in version 1.
type BeginPlainly = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void);
type PushAsync = unsafe extern "C" fn(
    Begin,
    *mut c_void,
    Option<unsafe extern "C" fn(*mut c_void)>,
    *const c_void,
    *const Handle,
    c_int,
    *const Handle,
    c_int,
    *const c_void,
    c_int,
    *const c_char,
    bool,
) -> c_int;

type ShallowCopy = unsafe extern "C" fn(Handle, *mut Handle) -> c_int;
type Free = unsafe extern "C" fn(Handle) -> c_int;
type ToDlpack = unsafe extern "C" fn(Handle, *mut *mut Managed) -> c_int;
type EndDlpack = unsafe extern "C" fn(*mut Managed) -> c_int;
type LastError = unsafe extern "C" fn() -> *const c_char;
type NewRuntimeError = unsafe extern "C" fn(*mut c_void, *const c_char);

/// The library.
pub(crate) struct Library {
    push_async: PushAsync,
    shallow_copy: ShallowCopy,
    free: Free,
    to_dlpack: ToDlpack,
    end_dlpack: EndDlpack,
    last_error: LastError,
    /// The C++ library's constructor of a runtime error from a C string.
    runtime_error: NewRuntimeError,
    /// Operations are told that they start by a callback of their own, as from version 2 on.
    has_on_start: bool,
}

/// The start of DLPack's managed tensor.
#[repr(C)]
struct Managed {
    data: *mut u8,
    device: c_int,
    device_id: c_int,
    ndim: c_int,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// DLPack's numbers of memory that a processor reads: its own, and pinned for a GPU.
const CPU: [c_int; 2] = [1, 3];
/// The engine's `FnProperty::kCPUPrioritized`: on threads of its own, beside those that compute.
const BESIDE: c_int = 3;
/// The engine's `FnProperty::kAsync`: at once on the pushing thread, where nothing is waited for.
const AT_ONCE: c_int = 4;

/// Where an operation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    /// Threads of the engine for what is not computing.
    Beside,
    /// The thread that pushes it, if nothing is waited for.
    Pusher,
}

/// What an operation of the engine does. It begins once, or never where an operation that it waits for failed; then
/// it is dropped.
pub(crate) trait Work: Send {
    /// Its turn has come: arrays it reads are written, and nobody else has those it writes. Ends `ending`, now or later.
    fn begin(self, ending: Ending);
}

impl Library {
    /// # Safety
    /// The addresses are those of the functions with the fields' names in MXNet's C interface (1.9.1, 2.0.0b1), in their
    /// order; the library is never unloaded.
    pub(crate) unsafe fn at(addresses: [usize; 7], has_on_start: bool) -> Option<Self> {
        if addresses.contains(&0) {
            return None;
        }
        let [push_async, shallow_copy, free, to_dlpack, end_dlpack, last_error, runtime_error] = addresses;
        // SAFETY: addresses of functions of these types, by the caller's promise; none is null. Needed because the
        // interpreter has loaded them, and this library is not linked with them.
        unsafe {
            Some(Self {
                push_async: std::mem::transmute::<usize, PushAsync>(push_async),
                shallow_copy: std::mem::transmute::<usize, ShallowCopy>(shallow_copy),
                free: std::mem::transmute::<usize, Free>(free),
                to_dlpack: std::mem::transmute::<usize, ToDlpack>(to_dlpack),
                end_dlpack: std::mem::transmute::<usize, EndDlpack>(end_dlpack),
                last_error: std::mem::transmute::<usize, LastError>(last_error),
                runtime_error: std::mem::transmute::<usize, NewRuntimeError>(runtime_error),
                has_on_start,
            })
        }
    }

    fn told(&self, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: it returns a string of this thread, or null; it is copied at once.
        let text = unsafe {
            let text = (self.last_error)();
            if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
        };
        Err(text.unwrap_or_else(|| "MXNet reports no reason".into()))
    }

    /// Pushes work that reads some arrays and writes others; none is in both, or twice.
    pub(crate) fn push<W: Work + 'static>(
        self: &Arc<Self>,
        work: W,
        (reads, writes): (&[usize], &[usize]),
        (on, priority): (On, i32),
    ) -> Result<(), String> {
        let begin: Begin = if self.has_on_start {
            begin_with_start::<W>
        } else {
            // SAFETY: a library of version 1 calls it with the three arguments that it has. Needed because the versions
            // have the same function with other types.
            unsafe { std::mem::transmute::<BeginPlainly, Begin>(begin_plainly::<W>) }
        };
        let parcel = Parcel { work: Mutex::new(Some(work)), library: self.clone() };
        let parcel = Box::into_raw(Box::new(parcel));
        let property = if on == On::Pusher { AT_ONCE } else { BESIDE };
        let count = |list: &[usize]| c_int::try_from(list.len()).unwrap_or(c_int::MAX);
        let context: [i32; 2] = [1, 0];
        // SAFETY: the arrays are handles of live arrays, by the promise of `Array::of`; context and property are copied
        // before it returns; the name is static; the parcel is given back by `drop_parcel`, once. Needed because the
        // engine is C++.
        let code = unsafe {
            (self.push_async)(
                begin,
                parcel.cast(),
                Some(drop_parcel::<W>),
                context.as_ptr().cast(),
                reads.as_ptr().cast(),
                count(reads),
                writes.as_ptr().cast(),
                count(writes),
                (&raw const property).cast(),
                priority,
                c"gradwire".as_ptr(),
                false,
            )
        };
        self.told(code)
    }
}

/// Work on its way through the engine, which drops it as soon as it is told of the end: even while it begins. So it
/// is taken out first.
struct Parcel<W> {
    work: Mutex<Option<W>>,
    library: Arc<Library>,
}

/// # Safety
/// As the engine calls it: `parcel` is what was pushed, `on_complete` its callback.
unsafe fn begin<W: Work>(on_complete: *mut c_void, parcel: *mut c_void) {
    // SAFETY: the parcel lives until the engine is told of the end, which is after it was taken out of here; nobody has it
    // exclusively. The callback is three words in all versions, and may be copied.
    let (work, library, callback) = unsafe {
        let Parcel { work, library } = &*parcel.cast::<Parcel<W>>();
        let work = lock(work).take();
        (work, library.clone(), on_complete.cast::<Callback>().read())
    };
    let ending = Ending { callback: Some(callback), library };
    if let Some(work) = work {
        work.begin(ending);
    }
}

/// Version 1: the context, the end's callback, the parcel.
unsafe extern "C" fn begin_plainly<W: Work>(
    _context: *mut c_void,
    on_complete: *mut c_void,
    parcel: *mut c_void,
) {
    // SAFETY: the engine's own.
    unsafe { begin::<W>(on_complete, parcel) }
}

/// Version 2: the context, the start's callback, the end's, the parcel.
unsafe extern "C" fn begin_with_start<W: Work>(
    _context: *mut c_void,
    on_start: *mut c_void,
    on_complete: *mut c_void,
    parcel: *mut c_void,
) {
    // SAFETY: the engine's own; the start's callback is three words like the end's, and may be empty.
    unsafe {
        let Callback { function, engine, operation } = on_start.cast::<Callback>().read();
        if let Some(function) = function {
            function(engine, operation, null());
        }
        begin::<W>(on_complete, parcel);
    }
}

unsafe extern "C" fn drop_parcel<W>(parcel: *mut c_void) {
    // SAFETY: it was made by `Box::into_raw` of this type, and the engine gives it back once.
    drop(unsafe { Box::from_raw(parcel.cast::<Parcel<W>>()) });
}

/// The engine's callback object.
#[repr(C)]
#[derive(Clone, Copy)]
struct Callback {
    function: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_void)>,
    engine: *mut c_void,
    operation: *mut c_void,
}

/// The duty to tell the engine that an operation has ended; one that is dropped tells so, too.
pub(crate) struct Ending {
    callback: Option<Callback>,
    library: Arc<Library>,
}

// SAFETY: the engine takes the end of an operation from any thread. Needed because the callback is made of pointers.
unsafe impl Send for Ending {}

/// Room for a C++ runtime error: its table of functions, and its string.
#[repr(C, align(16))]
struct RuntimeError([usize; 2]);

impl Ending {
    /// It has ended, and what it writes is written.
    pub(crate) fn well(mut self) {
        self.tell(None);
    }

    /// It has failed: whoever waits for what it writes is told so.
    pub(crate) fn badly(mut self, reason: &str) {
        self.tell(Some(reason));
    }

    fn tell(&mut self, reason: Option<&str>) {
        let Some(Callback { function: Some(function), engine, operation }) = self.callback.take() else {
            return;
        };
        let Some(reason) = reason else {
            // SAFETY: the engine's callback with its own words, called once.
            return unsafe { function(engine, operation, null()) };
        };
        let text = CString::new(format!("gradwire: {}", reason.replace('\0', " "))).unwrap_or_default();
        let mut error = RuntimeError([0; 2]);
        // SAFETY: the constructor fills two words and copies the text; the engine copies the error before it returns. Its
        // destructor is not called, which leaves a string behind: failures end a training, so they are few. Needed because
        // the engine takes errors as C++ objects only.
        unsafe {
            (self.library.runtime_error)((&raw mut error).cast(), text.as_ptr());
            function(engine, operation, (&raw const error).cast());
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.tell(Some("the operation was abandoned"));
    }
}

/// An array of MXNet's, kept for as long as an operation needs it.
pub(crate) struct Array {
    handle: NonNull<c_void>,
    library: Arc<Library>,
}

// SAFETY: a handle is a counted reference, which any thread may use and free. Needed because it is a pointer.
unsafe impl Send for Array {}
// SAFETY: as above; what is done with it through a shared reference only looks at it.
unsafe impl Sync for Array {}

impl Array {
    /// Another reference to an array.
    ///
    /// # Safety
    /// `handle` is the handle of a live array.
    pub(crate) unsafe fn of(library: &Arc<Library>, handle: usize) -> Result<Self, String> {
        let mut copy: Handle = null_mut();
        // SAFETY: a live handle, by the caller's promise, and a place for the new one.
        library.told(unsafe { (library.shallow_copy)(handle as Handle, &raw mut copy) })?;
        let handle = NonNull::new(copy).ok_or("MXNet returned no reference to an array")?;
        Ok(Self { handle, library: library.clone() })
    }

    pub(crate) fn handle(&self) -> usize {
        self.handle.as_ptr() as usize
    }

    /// Where its numbers lie, `bytes` in all. To be asked when the engine's turn is ours.
    pub(crate) fn numbers(&self, bytes: u64) -> Result<*mut u8, String> {
        let mut managed: *mut Managed = null_mut();
        // SAFETY: our own reference. It fails for an array in a layout of the compute library's own, whose bytes would
        // mean nothing to others.
        let told =
            self.library.told(unsafe { (self.library.to_dlpack)(self.handle.as_ptr(), &raw mut managed) });
        told.map_err(|error| {
            format!(
                "cannot copy an array in a oneDNN layout ({error}): set MXNET_GRADWIRE_STAGED=1, so that MXNet \
                 converts it"
            )
        })?;
        // SAFETY: it has just been made; data, types and shape are read before it is given back, and the array keeps the
        // numbers where they are. Needed because this is the only way to learn where they lie without waiting.
        let (data, device, size) = unsafe {
            let Managed { data, device, ndim, bits, lanes, shape, byte_offset, .. } = managed.read();
            let lengths = std::slice::from_raw_parts(
                if ndim == 0 { NonNull::dangling().as_ptr() } else { shape },
                ndim as usize,
            );
            let elements = lengths.iter().product::<i64>() as u64;
            let size = elements * u64::from(bits) / 8 * u64::from(lanes);
            let data = data.add(byte_offset as usize);
            (self.library.end_dlpack)(managed);
            (data, device, size)
        };
        if !CPU.contains(&device) {
            return Err(format!(
                "an array is on device type {device}, which the CPU cannot read: copy it to mx.cpu() first"
            ));
        }
        if size != bytes || data.is_null() {
            return Err(format!("an array has {size} bytes, but its tensor has {bytes} bytes"));
        }
        Ok(data)
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: our own reference, freed once. Where that fails there is nobody to tell.
        unsafe { (self.library.free)(self.handle.as_ptr()) };
    }
}
