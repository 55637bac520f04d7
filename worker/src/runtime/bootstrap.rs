//! Connects the data plane to one server: hello, choice of driver, channels, inboxes and first credits,
//! and a probe write each way before the server counts as ready. Design, section 5.

use super::link::ServerInbox;
use super::seat::LaneHandle;
use super::thread::LaneMessage;
use crate::error::ClientError;
use daemon::control::{Connection, connect_with_retry};
use daemon::settings::split_address;
use fabric::{ChannelSetup, CqHandle, Devices};
use proto_common::batch::SlotGrant;
use proto_common::error::ExitCode;
use proto_common::ids::{Epoch, Incarnation, JobId, Rank};
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::{FromServer, Hello, InboxGrant, Member, ServerOffer, ToServer};
use proto_common::transport::{Choice, Driver, Offer};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// What to look at where probes fail; `gradwire doctor` tries the same.
const BLOCKED: &str = "the data path is blocked: a firewall (RDMA over Ethernet is UDP port 4791)?";
/// A RDMA device gets this part of the time, so that another driver has some left.
const VERBS_PART: u32 = 3;

/// What connecting to any server needs.
pub(crate) struct Connector {
    pub(crate) job: JobId,
    pub(crate) rank: Rank,
    pub(crate) incarnation: Incarnation,
    pub(crate) offer: Offer,
    pub(crate) lanes: Vec<(LaneHandle, CqHandle)>,
    pub(crate) devices: Devices,
    pub(crate) within: Duration,
}

/// Why a server is not connected, and the driver that was being tried, once one had been chosen.
struct Failed {
    error: ClientError,
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
    let mut offer = connector.offer.clone();
    match attempt(connector, (server, number), epoch, &offer) {
        Err(Failed { over: Some((Driver::Verbs, reason)), .. }) => {
            tracing::warn!(server = server.id.rank.0, reason, "no way to this server over the RDMA device");
            offer.missing.push((Driver::Verbs, format!("between this worker and this server: {reason}")));
            attempt(connector, (server, number), epoch, &offer)
        }
        attempted => attempted,
    }
    .map_err(|failed| failed.error)
}

/// One try, with this offer.
fn attempt(
    connector: &Connector,
    (server, number): (&Member, u64),
    epoch: Epoch,
    offer: &Offer,
) -> Result<Choice, Failed> {
    let address = server.data_address.clone().unwrap_or_default();
    let failed = |reason: String, code: ExitCode| Failed {
        error: ClientError::Server { server: server.id.rank, address: address.clone(), reason, code },
        over: None,
    };
    let io = |error: &dyn std::fmt::Display| failed(error.to_string(), ExitCode::Io);
    let (host, port) = split_address("data_address", &address)
        .map_err(|_| failed("its address is not host:port".into(), ExitCode::Refused))?;
    let runtime = daemon::process::control_runtime().map_err(|error| io(&error))?;
    let limit = connector.within;
    let within_ms = limit.as_millis() as u64;
    let fix = "check that the server runs, and that node.advertise names an address that workers reach";
    let stream = runtime.block_on(connect_with_retry(host, port, within_ms, fix)).map_err(|e| io(&e))?;
    let mut link = runtime.block_on(async { Connection::new(stream) }).map_err(|e| io(&e))?;
    let hello = ToServer::Hello(hello(connector, server, epoch, offer));
    runtime.block_on(link.send_within(&hello, limit)).map_err(|error| io(&error))?;
    let offer = match runtime.block_on(link.receive_within::<FromServer>(limit)).map_err(|e| io(&e))? {
        Some(FromServer::Offer(offer)) => offer,
        Some(FromServer::NoTransport(refused)) => {
            return Err(failed(refused.to_string(), ExitCode::Transport));
        }
        Some(FromServer::Refused { reason }) => return Err(failed(reason, ExitCode::Refused)),
        Some(FromServer::Inboxes(_)) => {
            return Err(failed("it answered out of order".into(), ExitCode::Refused));
        }
        None => return Err(failed("it closed the connection".into(), ExitCode::Io)),
    };
    let driver = offer.choice.driver;
    open(connector, (server, number), (&runtime, &mut link), offer).map_err(|(reason, code)| {
        let over = Some((driver, reason.clone()));
        Failed { over, ..failed(reason, code) }
    })
}

/// Brings the channels of a driver up that both sides have chosen: the probe write each way is answered.
fn open(
    connector: &Connector,
    (server, number): (&Member, u64),
    (runtime, link): (&Runtime, &mut Connection),
    mut offer: ServerOffer,
) -> Result<Choice, (String, ExitCode)> {
    let io = |error: &dyn std::fmt::Display| (error.to_string(), ExitCode::Io);
    // Another driver is to have its time, too.
    let tries = if offer.choice.driver == Driver::Verbs { VERBS_PART } else { 1 };
    let limit = connector.within / tries;
    let deadline = Instant::now() + limit;
    let (ours, carriers) = attach_lanes(connector, (server, number), &offer, deadline)
        .map_err(|reason| (reason, ExitCode::Io))?;
    if offer.choice.driver == Driver::Tcp {
        // Which kind of socket it is shows only now; the status tells it with the reason.
        offer.choice.why.push_str(&format!("; over {carriers}"));
    }
    let inboxes = ToServer::Inboxes(ours);
    runtime.block_on(link.send_within(&inboxes, limit)).map_err(|e| io(&e))?;
    let theirs = match runtime.block_on(link.receive_within::<FromServer>(limit)).map_err(|e| io(&e))? {
        Some(FromServer::Inboxes(inboxes)) => inboxes,
        Some(FromServer::Refused { reason }) => return Err((reason, ExitCode::Refused)),
        _ => return Err(("it did not tell its inboxes".into(), ExitCode::Refused)),
    };
    // Between processes that share memory nothing is on the way.
    let sums = connector.offer.policies.payload_checksum && offer.choice.driver != Driver::Shm;
    if sums {
        offer.choice.why.push_str(", payload checksums");
    }
    activate_lanes(connector, (server, number), &theirs, sums, deadline)
        .map_err(|reason| (reason, ExitCode::Io))?;
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
    if usize::from(offer.lanes) != connector.lanes.len() {
        return Err(format!("it has {} lanes, the cluster {}", offer.lanes, connector.lanes.len()));
    }
    let device = daemon::devices::of(&connector.devices, offer.choice.driver)?;
    let connect = |(index, (_, queue)): (usize, &(LaneHandle, CqHandle))| {
        device.connect(&offer.endpoint.blob, index as u16, queue, deadline).map_err(|e| e.to_string())
    };
    let setups = connector.lanes.iter().enumerate().map(connect).collect::<Result<Vec<_>, _>>()?;
    let carriers = ChannelSetup::carriers(&setups);
    let mut inboxes = Vec::with_capacity(connector.lanes.len());
    for (index, ((lane, _), setup)) in connector.lanes.iter().zip(setups).enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let attach = |reply| LaneMessage::Attach { server: server.id.rank, number, setup, reply };
        inboxes.push(
            lane.ask(left, attach)
                .ok_or_else(|| format!("lane {index} of this process does not answer"))??,
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
    if theirs.len() != connector.lanes.len() {
        return Err("it told the wrong number of inboxes".into());
    }
    for (index, ((lane, _), inbox)) in connector.lanes.iter().zip(theirs).enumerate() {
        let grants = inbox.grants.iter().map(|wire| SlotGrant::from_wire(*wire)).collect::<Option<Vec<_>>>();
        let inbox = ServerInbox {
            region: inbox.region,
            offset: inbox.offset,
            slot_bytes: inbox.slot_bytes,
            grants: grants.ok_or("its first grants are malformed")?,
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
