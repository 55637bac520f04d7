//! What a worker and a server exchange over TCP before the data plane is used: identities, driver, endpoints, inboxes
//! and first grants. Grants travel only here and in batches.

use crate::ids::{Epoch, Incarnation, JobId, Rank};
use crate::transport::{Choice, NoTransport, Offer};
use serde::{Deserialize, Serialize};

/// The first message of a worker, or of a server with shards whose replicas the receiver is to hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::limits::PROTOCOL_VERSION`] of the sender.
    pub protocol: u32,
    /// The job.
    pub job: JobId,
    /// The sender's rank.
    pub rank: Rank,
    /// The sender's incarnation, as in the roster.
    pub incarnation: Incarnation,
    /// The receiver's incarnation that the sender expects.
    pub server_incarnation: Incarnation,
    /// The sender's epoch of the membership.
    pub epoch: Epoch,
    /// The drivers that it offers.
    pub offer: Offer,
}

/// One lane's channel address, opaque to all code except the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneEndpoint {
    /// Driver bytes.
    pub blob: Vec<u8>,
}

/// The server's answer: the driver and the addresses of its channels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerOffer {
    /// The driver and the reason.
    pub choice: Choice,
    /// Driver bytes to connect to, valid for all lanes.
    pub endpoint: LaneEndpoint,
    /// How many lanes (channels) to connect.
    pub lanes: u16,
}

/// One side's inbox of one lane, as the other side needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboxGrant {
    /// Remote key of the inbox's region.
    pub region: u64,
    /// Bytes from the region's beginning to slot 0.
    pub offset: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// First credits: slot grants in wire form.
    pub grants: Vec<u32>,
}

/// All messages to a server's bootstrap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToServer {
    /// A worker's first message.
    Hello(Hello),
    /// A server's first message. The rest is as with workers; the inboxes are those for answers about replicas.
    Replica(Hello),
    /// Channels are connected. The worker's inboxes, one per lane.
    Inboxes(Vec<InboxGrant>),
    /// A server's first message, about the journals of its handlers: [`crate::message::ToKeeper`] follows.
    Journal(Hello),
}

/// All messages of a server's bootstrap to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromServer {
    /// Connect with this driver to these addresses.
    Offer(ServerOffer),
    /// No driver satisfies both sides.
    NoTransport(NoTransport),
    /// Refused for another reason.
    Refused {
        /// The reason, and what to do.
        reason: String,
    },
    /// Channels are connected. The server's inboxes, one per lane.
    Inboxes(Vec<InboxGrant>),
}
