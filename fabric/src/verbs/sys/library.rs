//! The verbs library, loaded when it is first needed: programs do not link it, so one build runs on hosts with and without
//! it. Looks up the functions that the header does not define inline. The library stays loaded until the process ends,
//! because its providers start threads and register exit handlers.

use super::abi::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid_entry,
    ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq, ibv_srq_init_attr,
};
use crate::error::FabricError;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// The file that distributions install with the run-time package; its number is the version of the interface.
const FILE: &CStr = c"libibverbs.so.1";
const INSTALL: &str = "install libibverbs with its providers (Debian, Ubuntu: apt-get install libibverbs1 ibverbs-providers; \
                       Fedora, RHEL: dnf install libibverbs)";
const UPDATE: &str = "update libibverbs to rdma-core 31 or later";

static LIBRARY: OnceLock<Result<Library, Missing>> = OnceLock::new();

/// Why the library cannot be used, and what to do.
type Missing = (String, &'static str);

/// The functions that the library must have, and a table of their addresses. The signatures are the header's.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The library's functions.
        #[derive(Debug)]
        #[allow(non_snake_case, reason = "the header's names")]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// `None` before rdma-core 34.
            pub(super) ibv_reg_dmabuf_mr: Option<RegisterDmabuf>,
        }

        impl Library {
            fn look_up(handle: NonNull<c_void>) -> Result<Self, Missing> {
                Ok(Self {
                    $($name: {
                        let address = address(handle, concat!(stringify!($name), "\0"))?;
                        // SAFETY: the library's function of this name has this signature, by its header. Needed because
                        // the dynamic linker returns addresses without types.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                                address.as_ptr(),
                            )
                        }
                    },)*
                    ibv_reg_dmabuf_mr: address(handle, "ibv_reg_dmabuf_mr\0").ok().map(|address| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, RegisterDmabuf>(address.as_ptr()) }
                    }),
                })
            }
        }
    };
}

type RegisterDmabuf = unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device);
    ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device: fn(*mut ibv_context) -> c_int;
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    _ibv_query_gid_table: fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event: fn(*mut ibv_async_event);
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_resize_cq: fn(*mut ibv_cq, c_int) -> c_int;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
    ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
}

/// The library, loaded by the first call. The first answer is kept: after an installation the process has to be restarted.
pub(super) fn library() -> Result<&'static Library, FabricError> {
    LIBRARY.get_or_init(|| load(FILE)).as_ref().map_err(|missing| error_of(missing.clone()))
}

fn error_of((why, fix): Missing) -> FabricError {
    FabricError::Library { why, fix }
}

/// The file that the library was loaded from.
pub(in crate::verbs) fn library_path() -> Result<PathBuf, FabricError> {
    let library = library()?;
    let mut about = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address, and room for what is known of it.
    let found = unsafe { libc::dladdr(library.ibv_open_device as *const c_void, about.as_mut_ptr()) };
    // SAFETY: zeroed, then filled in where it was found; all of it is plain data.
    let file = unsafe { about.assume_init() }.dli_fname;
    if found == 0 || file.is_null() {
        return Ok(PathBuf::from(OsStr::from_bytes(FILE.to_bytes())));
    }
    // SAFETY: the dynamic linker's name of a loaded file, which stays loaded.
    let file = unsafe { CStr::from_ptr(file) };
    Ok(PathBuf::from(OsStr::from_bytes(file.to_bytes())))
}

fn load(file: &CStr) -> Result<Library, Missing> {
    // SAFETY: the name ends with a zero. Loading runs the initializers of an installed system library, which expect no more
    // than a running process. Needed because a program that links the library does not start without it.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let handle = NonNull::new(handle).ok_or_else(|| (last_error(file), INSTALL))?;
    Library::look_up(handle)
}

/// The dynamic linker's last error in this thread, which mostly begins with the name of the file.
fn last_error(file: &CStr) -> String {
    // SAFETY: returns null or a string that is valid until this thread calls the dynamic linker again.
    let error = unsafe { libc::dlerror() };
    if error.is_null() {
        return format!("{}: unknown error", file.to_string_lossy());
    }
    // SAFETY: as above; it is copied at once.
    unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned()
}

/// The address of a function. The name ends with a zero.
fn address(handle: NonNull<c_void>, name: &'static str) -> Result<NonNull<c_void>, Missing> {
    let plain = name.trim_end_matches('\0');
    let missing = || (format!("it has no function {plain}"), UPDATE);
    let name = CStr::from_bytes_with_nul(name.as_bytes()).map_err(|_| missing())?;
    // SAFETY: a loaded library and a name that ends with a zero. Of several versions it returns the default one, which the
    // linker would have taken.
    NonNull::new(unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) }).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(file: &CStr) -> String {
        error_of(load(file).unwrap_err()).to_string()
    }

    #[test]
    fn a_missing_library_is_named_with_the_packages_to_install() {
        let error = refused(c"libgradwire-no-such.so.1");
        for words in ["cannot load libibverbs", "libgradwire-no-such.so.1", "No such file", "libibverbs1"] {
            assert!(error.contains(words), "{words:?} is missing in {error}");
        }
    }

    #[test]
    fn a_library_without_a_function_is_named_with_the_version_to_install() {
        // Present on every host that runs this test, and not the verbs library.
        let error = refused(c"libc.so.6");
        for words in ["no function ibv_get_device_list", "rdma-core 31"] {
            assert!(error.contains(words), "{words:?} is missing in {error}");
        }
    }

    #[test]
    fn an_installed_library_has_all_functions_and_a_path() {
        match library_path() {
            Ok(path) => assert!(path.to_string_lossy().contains("libibverbs"), "{path:?}"),
            Err(error) => assert!(error.to_string().contains("cannot load libibverbs"), "{error}"),
        }
    }
}
