//! What a build without the feature `verbs` has in the driver's place: a device that cannot be opened, and says why. The
//! types have no values, so nothing here can run.

use super::VerbsConfig;
use super::counters::PortCounters;
use super::info::DeviceInfo;
use crate::device::{Caps, ChannelSetup, CompletionQueue, CqHandle, Device, PendingOffer};
use crate::error::{FabricError, PostError};
use crate::memory::{Access, Region, Span};
use crate::work::{ChannelId, Completion, Read, RemoteKey, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Bytes that each lane's queue registers for itself.
pub const VERBS_QUEUE_BYTES: u64 = 0;

/// A RDMA device.
#[derive(Clone, Debug)]
pub enum VerbsDevice {}

/// Channels over a RDMA device of one lane.
#[derive(Debug)]
pub enum VerbsQueue {}

#[derive(Clone, Debug)]
pub(crate) enum VerbsHandle {}

#[derive(Debug)]
pub(crate) enum VerbsSetup {}

fn absent<T>() -> Result<T, FabricError> {
    Err(FabricError::Misuse("built without verbs".into()))
}

/// A registered stretch of a dmabuf.
#[derive(Clone, Debug)]
pub enum Dmabuf {}

impl VerbsDevice {
    /// The names of the devices here.
    pub fn names() -> Result<Vec<String>, FabricError> {
        absent()
    }

    /// The devices here, as they look now.
    pub fn describe() -> Result<Vec<DeviceInfo>, FabricError> {
        absent()
    }

    /// Opens a device: not in this build.
    pub fn open(_: &VerbsConfig, _: IpAddr, _: String) -> Result<Self, FabricError> {
        absent()
    }

    /// A completion queue on this device.
    pub fn queue(&self, _: usize) -> Result<VerbsQueue, FabricError> {
        match *self {}
    }

    /// Registers a stretch now.
    pub fn prepare(&self, _: &Span) -> Result<(), FabricError> {
        match *self {}
    }

    /// Registers memory of another device.
    pub fn register_dmabuf(
        &self,
        _: BorrowedFd<'_>,
        _: u64,
        _: u64,
        _: Access,
    ) -> Result<Dmabuf, FabricError> {
        match *self {}
    }

    /// Gives back the registrations of regions that nobody else owns any more.
    pub fn release_unused(&self) {
        match *self {}
    }

    /// Objects that devices did not give back: none.
    #[must_use]
    pub fn kept_objects() -> u64 {
        0
    }

    /// Its name and port.
    #[must_use]
    pub fn port(&self) -> (&str, u8) {
        match *self {}
    }

    /// What its port has counted since it was opened.
    #[must_use]
    pub fn counted(&self) -> PortCounters {
        match *self {}
    }

    /// Bytes registered with the device.
    #[must_use]
    pub fn registered_bytes(&self) -> u64 {
        match *self {}
    }
}

impl Device for VerbsDevice {
    fn offer(&self, _: &[CqHandle]) -> Result<(Vec<u8>, Box<dyn PendingOffer>), FabricError> {
        match *self {}
    }

    fn connect(&self, _: &[u8], _: u16, _: &CqHandle, _: Instant) -> Result<ChannelSetup, FabricError> {
        match *self {}
    }
}

impl VerbsQueue {
    /// Lets the channel's peer address a dmabuf.
    pub fn expose_dmabuf(&mut self, _: ChannelId, _: &Dmabuf) -> Result<RemoteKey, PostError> {
        match *self {}
    }

    pub(crate) fn verbs_handle(&self) -> VerbsHandle {
        match *self {}
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }

    pub(crate) fn has_channels(&self) -> bool {
        match *self {}
    }

    pub(crate) fn arm(&mut self) -> bool {
        match *self {}
    }

    pub(crate) fn settle(&mut self) {
        match *self {}
    }
}

impl CompletionQueue for VerbsQueue {
    fn attach(&mut self, _: ChannelSetup) -> Result<ChannelId, FabricError> {
        match *self {}
    }

    fn expose(&mut self, _: ChannelId, _: &Region) -> Result<RemoteKey, PostError> {
        match *self {}
    }

    fn post_write(&mut self, _: ChannelId, _: &Write<'_>) -> Result<(), PostError> {
        match *self {}
    }

    fn post_read(&mut self, _: ChannelId, _: &Read<'_>) -> Result<(), PostError> {
        match *self {}
    }

    fn flush(&mut self) {
        match *self {}
    }

    fn poll(&mut self, _: &mut Vec<Completion>) {
        match *self {}
    }

    fn close(&mut self, _: ChannelId) {
        match *self {}
    }

    fn caps(&self) -> Caps {
        match *self {}
    }
}
