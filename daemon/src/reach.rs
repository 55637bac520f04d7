//! The dialling side of a data path, as workers and servers have it in common: the control connection to a server, its offer,
//! the channels of all lanes, the inboxes told. What hellos say, and what lanes make of channels, is the role's.

use crate::Later;
use crate::control::{Connection, FrameError, connect_with_retry};
use crate::devices;
use crate::security::Security;
use crate::settings::split_address;
use fabric::{ChannelSetup, CqHandle, Devices};
use proto_common::error::ExitCode;
use proto_common::ids::{JobId, Role};
use proto_common::message::{FromServer, InboxGrant, ServerOffer, ToServer};
use proto_common::transport::{Driver, Offer};
use std::fmt;
use std::net::{ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

/// What to look at where probes fail; `gradwire doctor` tries the same.
pub const BLOCKED: &str =
    "the data path is blocked: check for a firewall (RDMA over Ethernet uses UDP port 4791)";
/// A device gets this part of the time, so that another driver has some left.
const DEVICE_PART: u32 = 3;

/// Why a server was not reached, with the exit code of a process that ends because of it.
#[derive(Debug)]
pub struct Unreached {
    /// Why, and what to do.
    pub reason: String,
    /// The code.
    pub code: ExitCode,
}

impl Unreached {
    /// Something failed on the way.
    #[must_use]
    pub fn io(error: impl fmt::Display) -> Self {
        Self { reason: error.to_string(), code: ExitCode::Io }
    }

    /// A control connection failed.
    #[must_use]
    pub fn link(error: FrameError) -> Self {
        let code = if matches!(error, FrameError::Security(_)) { ExitCode::Refused } else { ExitCode::Io };
        Self { reason: error.to_string(), code }
    }

    /// It did not want us, or we not it.
    #[must_use]
    pub fn refused(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), code: ExitCode::Refused }
    }
}

/// Connects to the address of a server of this job within `connect`, and says hello within `limit`.
pub fn greet<'a>(
    (security, job): (&'a Security, JobId),
    address: &'a str,
    hello: &'a ToServer,
    (connect, limit): (Duration, Duration),
    fix: &'a str,
) -> Later<'a, Result<Connection, Unreached>> {
    Box::pin(async move {
        let (host, port) = split_address("data_address", address)
            .map_err(|_| Unreached::refused("its address is not HOST:PORT"))?;
        let within_ms = connect.as_millis() as u64;
        let stream = connect_with_retry(host, port, within_ms, fix).await.map_err(Unreached::io)?;
        let whom = Some((job, Role::Server));
        let mut link = security.dial(stream, whom, limit).await.map_err(Unreached::link)?;
        link.send_within(hello, limit).await.map_err(Unreached::link)?;
        Ok(link)
    })
}

/// As [`greet`], and takes the server's offer within `limit`.
pub fn ask<'a>(
    us: (&'a Security, JobId),
    address: &'a str,
    hello: &'a ToServer,
    (connect, limit): (Duration, Duration),
    fix: &'a str,
) -> Later<'a, Result<(Connection, ServerOffer), Unreached>> {
    Box::pin(async move {
        let mut link = greet(us, address, hello, (connect, limit), fix).await?;
        match link.receive_within::<FromServer>(limit).await.map_err(Unreached::link)? {
            Some(FromServer::Offer(offer)) => {
                link.admit();
                Ok((link, offer))
            }
            Some(FromServer::NoTransport(refused)) => {
                Err(Unreached { reason: refused.to_string(), code: ExitCode::Transport })
            }
            Some(FromServer::Refused { reason }) => Err(Unreached::refused(reason)),
            Some(FromServer::Inboxes(_)) => Err(Unreached::refused("it answered out of order")),
            None => Err(Unreached::io("it closed the connection")),
        }
    })
}

/// Connects one channel a lane, of the driver that both sides have chosen. Blocks.
pub fn connect(
    devices: &Devices,
    queues: &[CqHandle],
    offer: &ServerOffer,
    deadline: Instant,
) -> Result<Vec<ChannelSetup>, String> {
    if usize::from(offer.lanes) != queues.len() {
        return Err(format!("it has {} lanes, the cluster has {}", offer.lanes, queues.len()));
    }
    let device = devices::of(devices, offer.choice.driver)?;
    let connect = |(index, queue): (u16, &CqHandle)| {
        device.connect(&offer.endpoint.blob, index, queue, deadline).map_err(|error| error.to_string())
    };
    (0..).zip(queues).map(connect).collect()
}

/// Tells our inboxes, and takes those of the server, one a lane.
pub async fn exchange(
    link: &mut Connection,
    ours: Vec<InboxGrant>,
    lanes: usize,
    limit: Duration,
) -> Result<Vec<InboxGrant>, Unreached> {
    link.send_within(&ToServer::Inboxes(ours), limit).await.map_err(Unreached::io)?;
    match link.receive_within::<FromServer>(limit).await.map_err(Unreached::io)? {
        Some(FromServer::Inboxes(inboxes)) if inboxes.len() == lanes => Ok(inboxes),
        Some(FromServer::Inboxes(_)) => Err(Unreached::io("it sent the wrong number of inboxes")),
        Some(FromServer::Refused { reason }) => Err(Unreached::refused(reason)),
        _ => Err(Unreached::refused("it did not send its inboxes")),
    }
}

/// Is this a member's address on another host? Only addresses of this host can be bound. One that cannot be resolved is nobody's.
#[must_use]
pub fn is_elsewhere(address: &str) -> bool {
    let Ok(mut addresses) = address.to_socket_addrs() else { return false };
    addresses.all(|address| UdpSocket::bind((address.ip(), 0)).is_err())
}

/// The time that a driver has, of what there is for connecting: another one is to have some, too.
#[must_use]
pub fn time_for(driver: Driver, within: Duration) -> Duration {
    within / if driver.is_device() { DEVICE_PART } else { 1 }
}

/// The offer without a device whose way to this peer is closed: addresses of two kinds, a firewall. Both sides then choose
/// again; the reason says whom it is `between`. `None` where it was another driver: there is no other way then.
#[must_use]
pub fn without(offer: &Offer, driver: Driver, between: &str, reason: &str) -> Option<Offer> {
    if !driver.is_device() {
        return None;
    }
    let mut left = offer.clone();
    left.missing.push((driver, format!("between {between}: {reason}")));
    Some(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::ids::{Epoch, Incarnation, Rank};
    use proto_common::limits::PROTOCOL_VERSION;
    use proto_common::message::{Hello, LaneEndpoint};
    use proto_common::transport::Choice;
    use tokio::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(5);
    static PLAIN: Security = Security::off();

    fn hello() -> ToServer {
        let settings = proto_common::config::Settings::default();
        ToServer::Replica(Hello {
            protocol: PROTOCOL_VERSION,
            job: JobId(1),
            rank: Rank(0),
            incarnation: Incarnation(1),
            server_incarnation: Incarnation(2),
            epoch: Epoch::default(),
            offer: crate::host::offer(settings.transport, Vec::new()).unwrap(),
        })
    }

    #[test]
    fn addresses_of_this_host_are_not_elsewhere() {
        for (address, elsewhere) in
            [("127.0.0.1:80", false), ("[::1]:80", false), ("198.51.100.7:80", true), ("nothing", false)]
        {
            assert_eq!(is_elsewhere(address), elsewhere, "{address}");
        }
    }

    async fn answered(answer: Option<FromServer>) -> Result<ServerOffer, Unreached> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let peer = async {
            let mut link = Connection::new(listener.accept().await.unwrap().0).unwrap();
            assert!(matches!(link.receive_within(LIMIT).await.unwrap(), Some(ToServer::Replica(_))));
            if let Some(answer) = answer {
                link.send_within(&answer, LIMIT).await.unwrap();
            }
        };
        let hello = hello();
        let (asked, ()) =
            tokio::join!(ask((&PLAIN, JobId(1)), &address, &hello, (LIMIT, LIMIT), "start it"), peer);
        asked.map(|(_, offer)| offer)
    }

    #[tokio::test]
    async fn an_offer_is_taken_and_every_other_answer_is_an_error_with_its_code() {
        let choice = Choice { driver: Driver::Tcp, why: "it is there".into() };
        let offer = ServerOffer { choice, endpoint: LaneEndpoint { blob: vec![1] }, lanes: 2 };
        assert_eq!(answered(Some(FromServer::Offer(offer.clone()))).await.unwrap(), offer);
        let refused = answered(Some(FromServer::Refused { reason: "a stranger".into() })).await.unwrap_err();
        assert_eq!((refused.reason.as_str(), refused.code), ("a stranger", ExitCode::Refused));
        let early = answered(Some(FromServer::Inboxes(Vec::new()))).await.unwrap_err();
        assert_eq!(early.code, ExitCode::Refused);
        assert_eq!(answered(None).await.unwrap_err().code, ExitCode::Io);
        let nowhere = ask((&PLAIN, JobId(1)), "nowhere", &hello(), (LIMIT, LIMIT), "").await.unwrap_err();
        assert!(nowhere.reason.contains("HOST:PORT"), "{}", nowhere.reason);
    }

    #[tokio::test]
    async fn a_server_with_other_lanes_is_not_connected() {
        let settings = proto_common::config::Settings::default();
        let (devices, _) = devices::open(&settings).unwrap();
        let choice = Choice { driver: Driver::Tcp, why: String::new() };
        let offer = ServerOffer { choice, endpoint: LaneEndpoint { blob: Vec::new() }, lanes: 3 };
        let queues = [devices.lane(16).unwrap().handle()];
        let error = connect(&devices, &queues, &offer, Instant::now() + LIMIT).unwrap_err();
        assert!(error.contains("3 lanes, the cluster has 1"), "{error}");
    }

    #[test]
    fn only_a_device_can_be_ruled_out() {
        let offer = crate::host::offer(Default::default(), Vec::new()).unwrap();
        assert!(without(&offer, Driver::Tcp, "these two", "no way").is_none());
        let left = without(&offer, Driver::Verbs, "these two", "no way").unwrap();
        assert_eq!(left.missing.len(), offer.missing.len() + 1);
        assert_eq!(time_for(Driver::Verbs, 3 * LIMIT), LIMIT);
        assert_eq!(time_for(Driver::Shm, LIMIT), LIMIT);
    }
}
