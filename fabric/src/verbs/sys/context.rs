//! Devices: listing, opening, asking what they can do; and protection domains.

use super::keep::keep_unless_done;
use super::{done, made};
use crate::error::FabricError;
use crate::verbs::info::Gid;
use ibverbs_sys as ffi;
use std::ffi::CStr;
use std::io;
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
    pub(in crate::verbs) name: String,
}

// SAFETY: the verbs library is thread-safe on all of its objects. Needed because they are raw pointers.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The names of all devices; none without a kernel that knows RDMA.
pub(in crate::verbs) fn device_names() -> Result<Vec<String>, FabricError> {
    with_devices(|devices| Ok(devices.iter().map(|device| name_of(*device)).collect()))
}

fn name_of(device: *mut ffi::ibv_device) -> String {
    // SAFETY: a device of a list that was not freed yet; its name is a C string within it.
    let name = unsafe { CStr::from_ptr(ffi::ibv_get_device_name(device)) };
    name.to_string_lossy().into_owned()
}

fn with_devices<T>(
    look: impl FnOnce(&[*mut ffi::ibv_device]) -> Result<T, FabricError>,
) -> Result<T, FabricError> {
    let mut count = 0;
    // SAFETY: fills in the count and returns an array of that length, or null.
    let list = unsafe { ffi::ibv_get_device_list(&mut count) };
    if list.is_null() {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ENOSYS) => look(&[]),
            _ => Err(FabricError::os("listing RDMA devices", error)),
        };
    }
    // SAFETY: the array just returned.
    let devices = unsafe { std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) };
    let looked = look(devices);
    // SAFETY: returned above, freed once; open devices outlive the list.
    unsafe { ffi::ibv_free_device_list(list) };
    looked
}

const GID_TYPE_ROCE_V2: u32 = 2;
const GID_ENTRIES_MAX: usize = 256;

impl Context {
    pub(in crate::verbs) fn open(wanted: Option<&str>) -> Result<Arc<Self>, FabricError> {
        with_devices(|devices| {
            let chosen = devices.iter().find(|device| wanted.is_none_or(|name| name_of(**device) == name));
            let Some(device) = chosen else {
                let found: Vec<_> = devices.iter().map(|device| name_of(*device)).collect();
                return Err(FabricError::Misuse(match wanted {
                    Some(name) => format!("no RDMA device {name:?} here; there are {found:?}"),
                    None => "no RDMA device here (`rdma link` lists those that the kernel knows)".into(),
                }));
            };
            let name = name_of(*device);
            // SAFETY: a device of the list.
            let pointer =
                made(unsafe { ffi::ibv_open_device(*device) }, &format!("opening RDMA device {name}"))?;
            let this = Self { pointer, name };
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
        let mut attributes = ffi::ibv_device_attr::default();
        // SAFETY: an open device and a structure to fill in.
        let code = unsafe { ffi::ibv_query_device(self.pointer.as_ptr(), &mut attributes) };
        done(code, "asking for a device's limits")?;
        Ok(attributes)
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
        let code = unsafe {
            ffi::ibv_query_port(self.pointer.as_ptr(), port, std::ptr::from_mut(&mut attributes).cast())
        };
        done(code, "asking for a port's state")?;
        Ok((attributes.state == ffi::ibv_port_state::IBV_PORT_ACTIVE, attributes))
    }

    pub(in crate::verbs) fn gids(&self) -> Result<Vec<Gid>, FabricError> {
        let mut entries = vec![ffi::ibv_gid_entry::default(); GID_ENTRIES_MAX];
        // SAFETY: an open device and room for as many entries as are said.
        let count = unsafe {
            ffi::_ibv_query_gid_table(
                self.pointer.as_ptr(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size_of::<ffi::ibv_gid_entry>(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            return Err(FabricError::os(
                "asking for a device's addresses",
                io::Error::from_raw_os_error(-count as i32),
            ));
        };
        let entry = |entry: &ffi::ibv_gid_entry| Gid {
            // SAFETY: every form of the union is 16 plain bytes.
            gid: unsafe { entry.gid.raw },
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
        let code = unsafe { ffi::ibv_close_device(self.pointer.as_ptr()) };
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
        let pointer = unsafe { ffi::ibv_alloc_pd(context.pointer.as_ptr()) };
        let pointer = made(pointer, "allocating a protection domain")?;
        Ok(Arc::new(Self { pointer, context }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: ours; everything made from it held it and is gone.
        let code = unsafe { ffi::ibv_dealloc_pd(self.pointer.as_ptr()) };
        keep_unless_done(code, "giving back a protection domain", Arc::clone(&self.context));
    }
}
