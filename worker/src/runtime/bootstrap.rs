//! Connects the data plane to one server: hello, choice of driver, channels, inboxes and first credits,
//! and a probe write each way before the server counts as ready. Design, section 5.

use super::link::ServerInbox;
use super::message::LaneMessage;
use super::seat::LaneHandle;
use crate::error::ClientError;
use daemon::control::Connection;
use daemon::reach::{self, BLOCKED, Unreached};
use daemon::security::Security;
use fabric::{ChannelSetup, CqHandle, Devices};
use proto_common::batch::SlotGrant;
use proto_common::ids::{Epoch, Incarnation, JobId, Rank};
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::{Hello, InboxGrant, Member, ServerOffer, ToServer};
use proto_common::transport::{Choice, Driver, Offer};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// What connecting to any server needs.
pub(crate) struct Connector {
    pub(crate) job: JobId,
    pub(crate) rank: Rank,
    pub(crate) incarnation: Incarnation,
    pub(crate) security: Security,
    pub(crate) offer: Offer,
    pub(crate) lanes: Vec<(LaneHandle, CqHandle)>,
    pub(crate) devices: Devices,
    pub(crate) within: Duration,
}

/// Why a server is not connected, and the driver that was being tried, once one had been chosen.
struct Failed {
    error: Box<ClientError>,
    over: Option<(Driver, String)>,
}

/// Connects all lanes to one server. Blocks; runs on a thread of its own. A device that both sides have and whose way
/// to this server is closed (addresses of two kinds, a firewall) is ruled out for this pair, with the reason, and both
/// choose again: that is another driver, or the error that one of them requires this one.
pub(crate) fn connect_server(
    connector: &Connector,
    server: &Member,
    number: u64,
    epoch: Epoch,
) -> Result<Choice, ClientError> {
    let attempted = attempt(connector, (server, number), epoch, &connector.offer);
    let Err(Failed { error, over: Some((driver, reason)) }) = attempted else {
        return attempted.map_err(|failed| *failed.error);
    };
    let between = "this worker and this server";
    let Some(offer) = reach::without(&connector.offer, driver, between, &reason) else { return Err(*error) };
    tracing::warn!(
        server = server.id.rank.0,
        reason,
        "cannot reach this server over the RDMA device; using another transport"
    );
    attempt(connector, (server, number), epoch, &offer).map_err(|failed| *failed.error)
}

/// One try, with this offer.
fn attempt(
    connector: &Connector,
    (server, number): (&Member, u64),
    epoch: Epoch,
    offer: &Offer,
) -> Result<Choice, Failed> {
    let address = server.data_address.clone().unwrap_or_default();
    let failed = |Unreached { reason, code }| Failed {
        error: Box::new(ClientError::Server {
            server: server.id.rank,
            address: address.clone(),
            reason,
            code,
        }),
        over: None,
    };
    let runtime = daemon::process::control_runtime().map_err(|error| failed(Unreached::io(error)))?;
    let fix = "check that the server runs, and that node.advertise names an address that workers reach";
    let hello = ToServer::Hello(hello(connector, server, epoch, offer));
    let us = (&connector.security, connector.job);
    let asked = reach::ask(us, &address, &hello, (connector.within, connector.within), fix);
    let (mut link, offer) = runtime.block_on(asked).map_err(failed)?;
    let driver = offer.choice.driver;
    open(connector, (server, number), (&runtime, &mut link), offer).map_err(|unreached| {
        let over = Some((driver, unreached.reason.clone()));
        Failed { over, ..failed(unreached) }
    })
}

/// Brings the channels of a driver up that both sides have chosen: the probe write each way is answered.
fn open(
    connector: &Connector,
    (server, number): (&Member, u64),
    (runtime, link): (&Runtime, &mut Connection),
    mut offer: ServerOffer,
) -> Result<Choice, Unreached> {
    let limit = reach::time_for(offer.choice.driver, connector.within);
    let deadline = Instant::now() + limit;
    let (ours, carriers) =
        attach_lanes(connector, (server, number), &offer, deadline).map_err(Unreached::io)?;
    if offer.choice.driver.uses_sockets() {
        // Which kind of socket it is shows only now; the status tells it with the reason.
        offer.choice.why.push_str(&format!("; over {carriers}"));
    }
    let theirs = runtime.block_on(reach::exchange(link, ours, connector.lanes.len(), limit))?;
    let sums = connector.offer.policies.sums_over(offer.choice.driver);
    if sums {
        offer.choice.why.push_str(", payload checksums");
    }
    activate_lanes(connector, (server, number), &theirs, sums, deadline).map_err(Unreached::io)?;
    Ok(offer.choice)
}

fn hello(connector: &Connector, server: &Member, epoch: Epoch, offer: &Offer) -> Hello {
    Hello {
        protocol: PROTOCOL_VERSION,
        job: connector.job,
        rank: connector.rank,
        incarnation: connector.incarnation,
        server_incarnation: server.incarnation,
        epoch,
        offer: offer.clone(),
    }
}

fn attach_lanes(
    connector: &Connector,
    (server, number): (&Member, u64),
    offer: &ServerOffer,
    deadline: Instant,
) -> Result<(Vec<InboxGrant>, String), String> {
    let queues: Vec<CqHandle> = connector.lanes.iter().map(|(_, queue)| queue.clone()).collect();
    let setups = reach::connect(&connector.devices, &queues, offer, deadline)?;
    let carriers = ChannelSetup::carriers(&setups);
    let mut inboxes = Vec::with_capacity(connector.lanes.len());
    for (index, ((lane, _), setup)) in connector.lanes.iter().zip(setups).enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let attach = |reply| LaneMessage::Attach { server: server.id.rank, number, setup, reply };
        inboxes.push(
            lane.ask(left, attach)
                .ok_or_else(|| format!("lane {index} of this process does not respond"))??,
        );
    }
    Ok((inboxes, carriers))
}

fn activate_lanes(
    connector: &Connector,
    (server, number): (&Member, u64),
    theirs: &[InboxGrant],
    sum_payloads: bool,
    deadline: Instant,
) -> Result<(), String> {
    for (index, ((lane, _), inbox)) in connector.lanes.iter().zip(theirs).enumerate() {
        let grants = inbox.grants.iter().map(|wire| SlotGrant::from_wire(*wire)).collect::<Option<Vec<_>>>();
        let inbox = ServerInbox {
            region: inbox.region,
            offset: inbox.offset,
            slot_bytes: inbox.slot_bytes,
            grants: grants.ok_or("its first credit grants are malformed")?,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let (server, incarnation) = (server.id.rank, server.incarnation);
        let activate =
            |reply| LaneMessage::Activate { server, number, incarnation, inbox, sum_payloads, reply };
        let probed = lane.ask(left, activate);
        let probed =
            probed.ok_or_else(|| format!("the probe write on lane {index} was not answered; {BLOCKED}"))?;
        probed.map_err(|reason| format!("the probe write on lane {index} failed ({reason}); {BLOCKED}"))?;
    }
    Ok(())
}
