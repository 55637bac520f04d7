//! What a worker and a server say to each other over TCP before the data plane carries anything:
//! who they are, which driver, endpoints, inboxes and first grants. Grants travel only here.

use crate::ids::{Epoch, Incarnation, JobId, Rank};
use crate::transport::{Choice, NoTransport, Offer};
use serde::{Deserialize, Serialize};

/// The first message of a server that has shards whose copies the other one is to hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaHello {
    /// [`crate::limits::PROTOCOL_VERSION`] of the sender.
    pub protocol: u32,
    /// The job.
    pub job: JobId,
    /// The sender's rank.
    pub rank: Rank,
    /// The sender's life, as it stands in the roster.
    pub incarnation: Incarnation,
    /// The life that the sender expects of the receiver.
    pub server_incarnation: Incarnation,
    /// The sender's view of the membership.
    pub epoch: Epoch,
    /// The drivers it can offer.
    pub offer: Offer,
}

/// The worker's first message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::limits::PROTOCOL_VERSION`] of the worker.
    pub protocol: u32,
    /// The job.
    pub job: JobId,
    /// The worker's rank.
    pub rank: Rank,
    /// The worker's life, as it stands in the roster.
    pub incarnation: Incarnation,
    /// The server's life that the worker expects.
    pub server_incarnation: Incarnation,
    /// Its view of the membership.
    pub epoch: Epoch,
    /// The drivers it can offer.
    pub offer: Offer,
}

/// One lane's channel address, opaque to everyone but the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneEndpoint {
    /// Driver bytes.
    pub blob: Vec<u8>,
}

/// The server's answer: the driver and where its channels are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerOffer {
    /// The driver and why.
    pub choice: Choice,
    /// Driver bytes to connect to, good for all lanes.
    pub endpoint: LaneEndpoint,
    /// How many lanes (channels) to connect.
    pub lanes: u16,
}

/// One side's inbox of one lane, as the other side needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboxGrant {
    /// Remote key of the inbox's region.
    pub region: u64,
    /// Bytes from the region's start to slot 0.
    pub offset: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// First credits: slot grants in wire form.
    pub grants: Vec<u32>,
}

/// Everything that is said to a server's bootstrap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToServer {
    /// A worker's first message.
    Hello(Hello),
    /// A server's first message. What follows is as with workers; the inboxes told are those that copies' answers need.
    Replica(ReplicaHello),
    /// Channels are connected; here are the worker's inboxes, one a lane.
    Inboxes(Vec<InboxGrant>),
}

/// Everything a server's bootstrap says to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromServer {
    /// Connect like this.
    Offer(ServerOffer),
    /// No driver satisfies both.
    NoTransport(NoTransport),
    /// Refused, for another reason.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// Channels are connected; here are the server's inboxes, one a lane.
    Inboxes(Vec<InboxGrant>),
}
