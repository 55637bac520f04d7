//! TensorFlow's C interface as far as kernels of our own need it (`tensorflow/c/{kernels,ops,tf_tensor,tf_status}.h`). The functions come
//! from the `libtensorflow_framework` that the interpreter has loaded; nothing is linked. It must not know what the kernels do.

use crate::error::{Failure, Kind};
use crate::memory::copy;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

type Pointer = *mut c_void;

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, by their names without `TF_`.
        #[allow(non_snake_case)]
        struct Functions { $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        /// Their names in the library, in the order in which [`register`] takes their addresses.
        pub(super) const NAMES: &[&str] = &[$(concat!("TF_", stringify!($name)),)*];

        impl Functions {
            /// # Safety
            /// The addresses are those of the functions of [`NAMES`], in their order, and the library is never unloaded.
            unsafe fn at(addresses: &[usize]) -> Option<Self> {
                let mut addresses = addresses.iter().copied();
                // SAFETY: addresses of functions of these types, by the caller's promise. Needed because the interpreter has loaded
                // them, and this library is not linked with them.
                unsafe {
                    Some(Self { $($name: {
                        let address = addresses.next().filter(|address| *address != 0)?;
                        std::mem::transmute::<usize, unsafe extern "C" fn($($argument),*) $(-> $result)?>(address)
                    },)* })
                }
            }
        }
    };
}

type Create = unsafe extern "C" fn(Pointer) -> Pointer;
type Compute = unsafe extern "C" fn(Pointer, Pointer);
type Delete = unsafe extern "C" fn(Pointer);
type Infer = unsafe extern "C" fn(Pointer, Pointer);
type Deallocate = unsafe extern "C" fn(Pointer, usize, Pointer);

functions! {
    NewStatus: fn() -> Pointer;
    DeleteStatus: fn(Pointer);
    SetStatus: fn(Pointer, c_int, *const c_char);
    GetCode: fn(Pointer) -> c_int;
    Message: fn(Pointer) -> *const c_char;
    NewOpDefinitionBuilder: fn(*const c_char) -> Pointer;
    OpDefinitionBuilderAddAttr: fn(Pointer, *const c_char);
    OpDefinitionBuilderAddInput: fn(Pointer, *const c_char);
    OpDefinitionBuilderAddOutput: fn(Pointer, *const c_char);
    OpDefinitionBuilderSetIsStateful: fn(Pointer, bool);
    OpDefinitionBuilderSetShapeInferenceFunction: fn(Pointer, Infer);
    RegisterOpDefinition: fn(Pointer, Pointer);
    ShapeInferenceContextSetUnknownShape: fn(Pointer, Pointer);
    NewKernelBuilder: fn(*const c_char, *const c_char, Create, Compute, Delete) -> Pointer;
    RegisterKernelBuilder: fn(*const c_char, Pointer, Pointer);
    OpKernelConstruction_GetAttrSize: fn(Pointer, *const c_char, *mut i32, *mut i32, Pointer);
    OpKernelConstruction_GetAttrString: fn(Pointer, *const c_char, *mut c_char, usize, Pointer);
    OpKernelConstruction_Failure: fn(Pointer, Pointer);
    OpKernelContext_Failure: fn(Pointer, Pointer);
    NumInputs: fn(Pointer) -> c_int;
    GetInput: fn(Pointer, c_int, *mut Pointer, Pointer);
    SetOutput: fn(Pointer, c_int, Pointer, Pointer);
    ExpectedOutputDataType: fn(Pointer, c_int) -> c_int;
    NewTensor: fn(c_int, *const i64, c_int, Pointer, usize, Deallocate, Pointer) -> Pointer;
    AllocateTensor: fn(c_int, *const i64, c_int, usize) -> Pointer;
    DeleteTensor: fn(Pointer);
    TensorData: fn(Pointer) -> Pointer;
    TensorByteSize: fn(Pointer) -> usize;
    TensorType: fn(Pointer) -> c_int;
    NumDims: fn(Pointer) -> c_int;
    Dim: fn(Pointer, c_int) -> i64;
}

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// TensorFlow's number of 64-bit integers.
const INT64: c_int = 9;

/// Numbers of `TF_Code`.
pub(super) mod code {
    pub(crate) const CANCELLED: i32 = 1;
    pub(crate) const UNKNOWN: i32 = 2;
    pub(crate) const INVALID_ARGUMENT: i32 = 3;
    pub(crate) const DEADLINE_EXCEEDED: i32 = 4;
    pub(crate) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(crate) const FAILED_PRECONDITION: i32 = 9;
    pub(crate) const ABORTED: i32 = 10;
    pub(crate) const INTERNAL: i32 = 13;
    pub(crate) const UNAVAILABLE: i32 = 14;
}

/// An error as TensorFlow has it: a number of `TF_Code`, and a text.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) code: c_int,
    pub(super) text: String,
}

impl From<Failure> for Fault {
    /// With the code of the class that `gradwire.tensorflow._errors` has for it.
    fn from(failure: Failure) -> Self {
        let code = match failure.kind() {
            Kind::Input | Kind::Declare | Kind::Setting => code::INVALID_ARGUMENT,
            Kind::Died | Kind::Connect => code::UNAVAILABLE,
            Kind::Deadline | Kind::WaitTimeout => code::DEADLINE_EXCEEDED,
            Kind::Memory => code::RESOURCE_EXHAUSTED,
            Kind::Closed | Kind::Fork => code::FAILED_PRECONDITION,
            Kind::Operation => code::ABORTED,
            Kind::Internal => code::UNKNOWN,
        };
        Self::new(code, &failure.to_string())
    }
}

impl Fault {
    pub(super) fn new(code: c_int, text: &str) -> Self {
        Self { code, text: text.to_owned() }
    }

    pub(super) fn internal(text: &str) -> Self {
        Self::new(code::INTERNAL, text)
    }
}

/// A status of TensorFlow's, freed when it is dropped.
struct Status(Pointer, &'static Functions);

impl Status {
    fn new(functions: &'static Functions) -> Self {
        // SAFETY: it only allocates.
        Self(unsafe { (functions.NewStatus)() }, functions)
    }

    fn of(functions: &'static Functions, fault: &Fault) -> Self {
        let status = Self::new(functions);
        let text = CString::new(fault.text.replace('\0', " ")).unwrap_or_default();
        // SAFETY: a status of our own; the text is copied.
        unsafe { (functions.SetStatus)(status.0, fault.code, text.as_ptr()) };
        status
    }

    fn ok(&self) -> Result<(), Fault> {
        // SAFETY: a status of our own; its text is copied at once.
        unsafe {
            match (self.1.GetCode)(self.0) {
                0 => Ok(()),
                code => {
                    let text = CStr::from_ptr((self.1.Message)(self.0)).to_string_lossy().into_owned();
                    Err(Fault { code, text })
                }
            }
        }
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        // SAFETY: our own, freed once.
        unsafe { (self.1.DeleteStatus)(self.0) };
    }
}

/// What a kernel does. One is made for each node of a graph, and for each kind of eager operation.
pub(super) trait Kernel: Send + Sync + Sized + 'static {
    /// Whether its operation has an attribute `request`.
    const HAS_REQUEST: bool;

    /// From the value of its attribute `request`, or from an empty string.
    fn create(request: String) -> Self;

    /// Computes: reads inputs, sets outputs.
    fn compute(&self, turn: &Turn) -> Result<(), Fault>;
}

/// An operation and its kernel, as they are registered.
pub(super) struct Definition<'a> {
    pub(super) name: &'a CStr,
    pub(super) attributes: &'a [&'a CStr],
    pub(super) inputs: &'a [&'a CStr],
    pub(super) outputs: &'a [&'a CStr],
}

/// Sets the functions.
///
/// # Safety
/// As [`Functions::at`].
pub(super) unsafe fn found(addresses: &[usize]) -> bool {
    // SAFETY: the caller's promise.
    let Some(functions) = (unsafe { Functions::at(addresses) }) else { return false };
    FUNCTIONS.get_or_init(|| functions);
    true
}

/// Registers an operation with its kernel for the CPU; its name must be new to the process. [`found`] comes before.
pub(super) fn register<K: Kernel>(definition: &Definition<'_>) -> Result<(), Fault> {
    let Some(functions) = FUNCTIONS.get() else {
        return Err(Fault::internal("the functions of TensorFlow were not found"));
    };
    let status = Status::new(functions);
    let Definition { name, attributes, inputs, outputs } = definition;
    // SAFETY: strings live until the calls return, which copy them; the builders are given away by the calls that register. Functions of
    // this library stay, because the interpreter does not unload it. Needed because TensorFlow's interface is C.
    unsafe {
        let builder = (functions.NewOpDefinitionBuilder)(name.as_ptr());
        attributes.iter().for_each(|spec| (functions.OpDefinitionBuilderAddAttr)(builder, spec.as_ptr()));
        inputs.iter().for_each(|spec| (functions.OpDefinitionBuilderAddInput)(builder, spec.as_ptr()));
        outputs.iter().for_each(|spec| (functions.OpDefinitionBuilderAddOutput)(builder, spec.as_ptr()));
        (functions.OpDefinitionBuilderSetIsStateful)(builder, true);
        (functions.OpDefinitionBuilderSetShapeInferenceFunction)(builder, infer);
        (functions.RegisterOpDefinition)(builder, status.0);
        status.ok()?;
        let (create, compute, delete): (Create, Compute, Delete) = (create::<K>, compute::<K>, delete::<K>);
        let builder = (functions.NewKernelBuilder)(name.as_ptr(), c"CPU".as_ptr(), create, compute, delete);
        (functions.RegisterKernelBuilder)(name.as_ptr(), builder, status.0);
    }
    status.ok()
}

/// Shapes are set in Python, where the graph is made.
unsafe extern "C" fn infer(context: Pointer, status: Pointer) {
    if let Some(functions) = FUNCTIONS.get() {
        // SAFETY: TensorFlow's own.
        unsafe { (functions.ShapeInferenceContextSetUnknownShape)(context, status) };
    }
}

unsafe extern "C" fn create<K: Kernel>(construction: Pointer) -> Pointer {
    let Some(functions) = FUNCTIONS.get() else { return std::ptr::null_mut() };
    if !K::HAS_REQUEST {
        return Box::into_raw(Box::new(K::create(String::new()))).cast();
    }
    let status = Status::new(functions);
    let (mut count, mut bytes) = (0, 0);
    let name = c"request".as_ptr();
    // SAFETY: TensorFlow's context, and places of our own; so many bytes are written as there is room.
    let read = unsafe {
        (functions.OpKernelConstruction_GetAttrSize)(
            construction,
            name,
            &raw mut count,
            &raw mut bytes,
            status.0,
        );
        status.ok().and_then(|()| {
            let mut text = vec![0u8; usize::try_from(bytes).unwrap_or_default()];
            let place = text.as_mut_ptr().cast();
            (functions.OpKernelConstruction_GetAttrString)(construction, name, place, text.len(), status.0);
            status.ok().map(|()| String::from_utf8_lossy(&text).into_owned())
        })
    };
    match read {
        Ok(text) => Box::into_raw(Box::new(K::create(text))).cast(),
        Err(fault) => {
            let status = Status::of(functions, &fault);
            // SAFETY: TensorFlow's context; the status is copied.
            unsafe { (functions.OpKernelConstruction_Failure)(construction, status.0) };
            std::ptr::null_mut()
        }
    }
}

unsafe extern "C" fn delete<K: Kernel>(kernel: Pointer) {
    if !kernel.is_null() {
        // SAFETY: it was made by `Box::into_raw` of this type, and TensorFlow gives it back once, when it is used no more.
        drop(unsafe { Box::from_raw(kernel.cast::<K>()) });
    }
}

unsafe extern "C" fn compute<K: Kernel>(kernel: Pointer, context: Pointer) {
    let Some(functions) = FUNCTIONS.get() else { return };
    let turn = Turn { context, functions };
    let done = if kernel.is_null() {
        Err(Fault::internal("the kernel could not be created"))
    } else {
        // SAFETY: it was made by `create`, and several threads may use it at once.
        unsafe { (*kernel.cast::<K>()).compute(&turn) }
    };
    if let Err(fault) = done {
        let status = Status::of(functions, &fault);
        // SAFETY: TensorFlow's context; the status is copied.
        unsafe { (functions.OpKernelContext_Failure)(context, status.0) };
    }
}

/// A kernel's turn: its inputs and outputs. It ends when the kernel returns: the interface has asynchronous kernels, too, but the callback
/// that ends one is on the caller's stack (2.21), and is gone when the kernel returns.
pub(super) struct Turn {
    context: Pointer,
    functions: &'static Functions,
}

impl Turn {
    /// An input.
    pub(super) fn input(&self, number: c_int) -> Result<Tensor, Fault> {
        let (status, mut tensor) = (Status::new(self.functions), std::ptr::null_mut());
        // SAFETY: TensorFlow's context, and a place for a new reference.
        unsafe { (self.functions.GetInput)(self.context, number, &raw mut tensor, status.0) };
        status.ok()?;
        Ok(Tensor(tensor, self.functions))
    }

    /// Sets an output.
    pub(super) fn output(&self, number: c_int, tensor: &Tensor) -> Result<(), Fault> {
        let status = Status::new(self.functions);
        // SAFETY: TensorFlow's context; it takes a reference of its own.
        unsafe { (self.functions.SetOutput)(self.context, number, tensor.0, status.0) };
        status.ok()
    }

    /// The type of an output, as TensorFlow's number.
    fn output_type(&self, number: c_int) -> c_int {
        // SAFETY: TensorFlow's context.
        unsafe { (self.functions.ExpectedOutputDataType)(self.context, number) }
    }

    /// How many inputs it has.
    pub(super) fn inputs(&self) -> c_int {
        // SAFETY: TensorFlow's context.
        unsafe { (self.functions.NumInputs)(self.context) }
    }

    /// Sets a number as its first output.
    pub(super) fn output_number(&self, number: i64) -> Result<(), Fault> {
        // SAFETY: a tensor of eight bytes, of which nobody else knows yet.
        let tensor = unsafe {
            let tensor = (self.functions.AllocateTensor)(INT64, std::ptr::null(), 0, size_of::<i64>());
            (self.functions.TensorData)(tensor).cast::<i64>().write(number);
            Tensor(tensor, self.functions)
        };
        self.output(0, &tensor)
    }
}

/// A reference to a tensor of TensorFlow's.
pub(super) struct Tensor(Pointer, &'static Functions);

impl Tensor {
    /// As an output, over memory of the caller's, without a copy if its address is a multiple of 64. `release` is called once when nobody has the tensor
    /// any more, perhaps before this returns. Returns whether the memory was copied, too.
    ///
    /// # Safety
    /// `address` has `bytes` readable bytes until `release` is called with `owner`.
    pub(super) unsafe fn over(
        (turn, number): (&Turn, c_int),
        dims: &[i64],
        (address, bytes): (usize, usize),
        (release, owner): (Deallocate, Pointer),
    ) -> Result<(Self, bool), Fault> {
        let functions = turn.functions;
        let (kind, count) = (turn.output_type(number), c_int::try_from(dims.len()).unwrap_or_default());
        // SAFETY: the caller's promise; dims are copied.
        let tensor = unsafe {
            (functions.NewTensor)(kind, dims.as_ptr(), count, address as Pointer, bytes, release, owner)
        };
        if tensor.is_null() {
            let text = format!("TensorFlow made no tensor of shape {dims:?} of {bytes} bytes");
            return Err(Fault::internal(&text));
        }
        let tensor = Self(tensor, functions);
        let is_copied = tensor.address() as usize != address;
        Ok((tensor, is_copied))
    }

    fn address(&self) -> *mut u8 {
        // SAFETY: our own reference.
        unsafe { (self.1.TensorData)(self.0) }.cast()
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> usize {
        // SAFETY: our own reference.
        unsafe { (self.1.TensorByteSize)(self.0) }
    }

    /// Its type, as TensorFlow's number.
    pub(super) fn kind(&self) -> c_int {
        // SAFETY: our own reference.
        unsafe { (self.1.TensorType)(self.0) }
    }

    /// Writes its lengths to `into`.
    pub(super) fn dims(&self, into: &mut Vec<i64>) {
        into.clear();
        // SAFETY: our own reference, and numbers below the count.
        into.extend((0..unsafe { (self.1.NumDims)(self.0) }).map(|at| unsafe { (self.1.Dim)(self.0, at) }));
    }

    /// Copies all of it to memory of as many bytes.
    ///
    /// # Safety
    /// Nobody else reads or writes `into` meanwhile.
    pub(super) unsafe fn copy_to(&self, into: *mut u8) {
        let bytes = self.bytes();
        if bytes == 0 {
            return;
        }
        // SAFETY: so many bytes of a tensor that nobody writes while a kernel has it as its input, and the caller's promise.
        let (from, into) = unsafe {
            (std::slice::from_raw_parts(self.address(), bytes), std::slice::from_raw_parts_mut(into, bytes))
        };
        copy(into, from);
    }

    /// The number in a scalar of 64-bit integers.
    pub(super) fn number(&self) -> Option<i64> {
        let fits = self.kind() == INT64 && self.bytes() == size_of::<i64>();
        // SAFETY: so many bytes, aligned by TensorFlow for any type.
        fits.then(|| unsafe { self.address().cast::<i64>().read_unaligned() })
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: our own reference, given up once.
        unsafe { (self.1.DeleteTensor)(self.0) };
    }
}
