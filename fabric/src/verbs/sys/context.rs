//! Devices: listing, opening, asking what they can do; and protection domains.

use super::abi as ffi;
use super::keep::keep_unless_done;
use super::library::{Library, library};
use super::{done, made};
use crate::error::FabricError;
use crate::verbs::info::Gid;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// What one queue or queue pair of a device may have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct Limits {
    pub(in crate::verbs) requests: usize,
    /// Of a shared receive queue.
    pub(in crate::verbs) receives: usize,
    /// Places of a request.
    pub(in crate::verbs) gather: usize,
    /// Reads under way, and those that it answers at once.
    pub(in crate::verbs) reads: usize,
    pub(in crate::verbs) reads_answered: usize,
    /// Completions of a queue.
    pub(in crate::verbs) entries: usize,
}

/// An open device.
#[derive(Debug)]
pub(in crate::verbs) struct Context {
    pub(super) pointer: NonNull<ffi::ibv_context>,
    pub(super) library: &'static Library,
    pub(in crate::verbs) name: String,
}

// SAFETY: the verbs library is thread-safe on all of its objects. Needed because they are raw pointers.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Devices that the kernel has, by name; none where it has no RDMA. The verbs library is not needed for this.
const KERNEL_DEVICES: &str = "/sys/class/infiniband";

/// A device of the library's list, which lives until the list is freed.
#[derive(Clone, Copy)]
struct Listed {
    pointer: *mut ffi::ibv_device,
    library: &'static Library,
}

impl Listed {
    fn name(self) -> String {
        // SAFETY: a device of a list that is not freed yet; its name is a C string within it.
        let name = unsafe { CStr::from_ptr((self.library.ibv_get_device_name)(self.pointer)) };
        name.to_string_lossy().into_owned()
    }
}

/// The names of all devices; none without a kernel that knows RDMA.
pub(in crate::verbs) fn device_names() -> Result<Vec<String>, FabricError> {
    with_devices(|devices| Ok(devices.iter().map(|device| device.name()).collect()))
}

/// Loads the library only where the kernel has a device.
fn with_devices<T>(look: impl FnOnce(&[Listed]) -> Result<T, FabricError>) -> Result<T, FabricError> {
    if std::fs::read_dir(KERNEL_DEVICES).map_or(true, |mut devices| devices.next().is_none()) {
        return look(&[]);
    }
    let library = library()?;
    let mut count = 0;
    // SAFETY: fills in the count and returns an array of that length, or null.
    let list = unsafe { (library.ibv_get_device_list)(&mut count) };
    if list.is_null() {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ENOSYS) => look(&[]),
            _ => Err(FabricError::os("listing RDMA devices", error)),
        };
    }
    // SAFETY: the array just returned.
    let devices = unsafe { std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) };
    let devices: Vec<_> = devices.iter().map(|pointer| Listed { pointer: *pointer, library }).collect();
    let looked = look(&devices);
    // SAFETY: returned above, freed once; open devices outlive the list.
    unsafe { (library.ibv_free_device_list)(list) };
    looked
}

const GID_TYPE_ROCE_V2: u32 = 2;
const GID_ENTRIES_MAX: usize = 256;

impl Context {
    pub(in crate::verbs) fn open(wanted: Option<&str>) -> Result<Arc<Self>, FabricError> {
        with_devices(|devices| {
            let chosen = devices.iter().find(|device| wanted.is_none_or(|name| device.name() == name));
            let Some(device) = chosen else {
                let found: Vec<_> = devices.iter().map(|device| device.name()).collect();
                return Err(FabricError::Misuse(match wanted {
                    Some(name) if found.is_empty() => {
                        format!(
                            "no RDMA device {name:?} found, and no other (`rdma link` lists the kernel's devices)"
                        )
                    }
                    Some(name) => format!("no RDMA device {name:?} found; this host has {found:?}"),
                    None => "no RDMA device found (`rdma link` lists the kernel's devices)".into(),
                }));
            };
            let Listed { pointer, library } = *device;
            let name = device.name();
            // SAFETY: a device of the list.
            let pointer =
                made(unsafe { (library.ibv_open_device)(pointer) }, &format!("opening RDMA device {name}"))?;
            let this = Self { pointer, library, name };
            rustix::io::ioctl_fionbio(this.events_fd(), true)
                .map_err(|e| FabricError::os("setting up a device's events", e))?;
            Ok(Arc::new(this))
        })
    }

    /// Readable while there is an event (`next_event`).
    pub(in crate::verbs) fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the device's descriptor is open until drop.
        unsafe { BorrowedFd::borrow_raw(self.pointer.as_ref().async_fd) }
    }

    fn attributes(&self) -> Result<ffi::ibv_device_attr, FabricError> {
        let mut attributes = MaybeUninit::<ffi::ibv_device_attr>::zeroed();
        // SAFETY: an open device and a structure to fill in.
        let code = unsafe { (self.library.ibv_query_device)(self.pointer.as_ptr(), attributes.as_mut_ptr()) };
        done(code, "asking for a device's limits")?;
        // SAFETY: zeroed, then filled in; all of it is plain data.
        Ok(unsafe { attributes.assume_init() })
    }

    pub(in crate::verbs) fn limits(&self) -> Result<Limits, FabricError> {
        let attributes = self.attributes()?;
        let most = |value: i32| usize::try_from(value).unwrap_or(0);
        Ok(Limits {
            requests: most(attributes.max_qp_wr),
            receives: most(attributes.max_srq_wr),
            gather: most(attributes.max_sge),
            reads: most(attributes.max_qp_init_rd_atom),
            reads_answered: most(attributes.max_qp_rd_atom),
            entries: most(attributes.max_cqe),
        })
    }

    /// How many ports it has; they are counted from 1.
    pub(in crate::verbs) fn port_count(&self) -> Result<u8, FabricError> {
        Ok(self.attributes()?.phys_port_cnt)
    }

    /// The longest request of a port, at most 1 GiB, in whole pages.
    pub(in crate::verbs) fn message_bytes_max(&self, port: u8) -> Result<u64, FabricError> {
        let (_, attributes) = self.port_attributes(port)?;
        Ok(u64::from(attributes.max_msg_sz).clamp(4096, 1 << 30) & !4095)
    }

    /// Is the port up, and the largest packet it carries now (an `ibv_mtu`)?
    pub(in crate::verbs) fn port(&self, port: u8) -> Result<(bool, u32), FabricError> {
        let (up, attributes) = self.port_attributes(port)?;
        Ok((up, attributes.active_mtu))
    }

    fn port_attributes(&self, port: u8) -> Result<(bool, ffi::ibv_port_attr), FabricError> {
        let mut attributes = ffi::ibv_port_attr::default();
        // SAFETY: an open device; the library fills in the older, shorter form of the structure.
        let code = unsafe { (self.library.ibv_query_port)(self.pointer.as_ptr(), port, &mut attributes) };
        done(code, "asking for a port's state")?;
        Ok((attributes.state == ffi::IBV_PORT_ACTIVE, attributes))
    }

    pub(in crate::verbs) fn gids(&self) -> Result<Vec<Gid>, FabricError> {
        let mut entries = vec![ffi::ibv_gid_entry::default(); GID_ENTRIES_MAX];
        // SAFETY: an open device and room for as many entries as are said.
        let count = unsafe {
            (self.library._ibv_query_gid_table)(
                self.pointer.as_ptr(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size_of::<ffi::ibv_gid_entry>(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::from_raw_os_error(-count as i32);
            return Err(FabricError::os("asking for a device's addresses", error));
        };
        let entry = |entry: &ffi::ibv_gid_entry| Gid {
            gid: entry.gid.raw,
            index: entry.gid_index as u8,
            port: entry.port_num as u8,
            is_roce_v2: entry.gid_type == GID_TYPE_ROCE_V2,
            has_netdev: entry.ndev_ifindex != 0,
        };
        Ok(entries[..count].iter().map(entry).collect())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by us; everything made from it held it and is gone.
        let code = unsafe { (self.library.ibv_close_device)(self.pointer.as_ptr()) };
        // Unlike the others it only says whether.
        keep_unless_done(if code == 0 { 0 } else { libc::EIO }, "closing an RDMA device", ());
    }
}

/// A protection domain.
#[derive(Debug)]
pub(in crate::verbs) struct Domain {
    pub(super) pointer: NonNull<ffi::ibv_pd>,
    pub(in crate::verbs) context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(in crate::verbs) fn new(context: Arc<Context>) -> Result<Arc<Self>, FabricError> {
        // SAFETY: an open device.
        let pointer = unsafe { (context.library.ibv_alloc_pd)(context.pointer.as_ptr()) };
        let pointer = made(pointer, "allocating a protection domain")?;
        Ok(Arc::new(Self { pointer, context }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: ours; everything made from it held it and is gone.
        let code = unsafe { (self.context.library.ibv_dealloc_pd)(self.pointer.as_ptr()) };
        keep_unless_done(code, "giving back a protection domain", Arc::clone(&self.context));
    }
}
