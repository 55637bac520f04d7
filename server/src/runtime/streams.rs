//! Connects the streams to a server that has copies: hello, choice of driver, one channel a lane. When to dial, and whom, is the
//! member's to decide.

use super::bootstrap::{Reception, blocking, granted};
use super::message::LaneMessage;
use daemon::reach::{self, Unreached};
use fabric::{ChannelSetup, CqHandle, oneshot};
use proto_common::ids::{Epoch, Incarnation, Rank};
use proto_common::message::{InboxGrant, ServerOffer, ToServer};
use proto_common::transport::{Choice, Offer};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Whom to reach.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// Of the dial.
    pub(super) number: u64,
    pub(super) to: Rank,
    pub(super) incarnation: Incarnation,
    pub(super) address: String,
    /// The map that wants it.
    pub(super) epoch: Epoch,
    /// Not before.
    pub(super) after: Duration,
}

/// Connects all lanes to it, within the deadlines of each step. A device whose way to this server is closed is ruled out for
/// this pair, with the reason, and both choose again.
pub(super) async fn dial(reception: Arc<Reception>, target: Target) -> Result<Choice, String> {
    if !target.after.is_zero() {
        // Sleep: what keeps the other side from answering tells nobody when it is over.
        tokio::time::sleep(target.after).await;
    }
    let offer = reception.offer.clone();
    let (reason, left) = match attempt(&reception, &target, &offer).await {
        Ok(choice) => return Ok(choice),
        Err((failed, None)) => return Err(failed.reason),
        Err((failed, Some(choice))) => {
            let left = reach::without(&offer, choice.driver, "these two", &failed.reason);
            (failed.reason, left)
        }
    };
    let Some(left) = left else { return Err(reason) };
    tracing::warn!(
        server = target.to.0,
        reason,
        "cannot reach this server over the RDMA device; using another transport"
    );
    attempt(&reception, &target, &left).await.map_err(|(failed, _)| failed.reason)
}

/// One try, with this offer. An error also says what had been chosen, once something had.
async fn attempt(
    reception: &Arc<Reception>,
    target: &Target,
    offer: &Offer,
) -> Result<Choice, (Unreached, Option<Choice>)> {
    let hello = ToServer::Replica(reception.hello(target.incarnation, target.epoch, offer));
    let fix = "check that the server runs, and that its node.advertise names an address that servers reach";
    // A server that does not listen is asked again by and by, and not waited for. The other side may wait for the
    // scheduler's word about us as long as a handshake takes.
    let limits = (reception.handshake, 2 * reception.handshake);
    let us = (&reception.security, reception.job);
    let (mut link, offer) =
        reach::ask(us, &target.address, &hello, limits, fix).await.map_err(|failed| (failed, None))?;
    let choice = offer.choice.clone();
    let failed = |failed| (failed, Some(choice.clone()));
    let limit = reach::time_for(offer.choice.driver, reception.connect);
    let lanes = reception.lanes.len();
    let (setups, mut chosen) =
        channels(reception, offer, limit).await.map_err(|reason| failed(Unreached::io(reason)))?;
    let inboxes = reach::exchange(&mut link, Vec::new(), lanes, limit).await.map_err(failed)?;
    chosen.why.push_str(&format!("; over {}", ChannelSetup::carriers(&setups)));
    let attached = match attach(reception, target, setups, inboxes) {
        Ok(answers) => blocking(move || granted(answers, limit)).await,
        Err(reason) => Err(reason),
    };
    attached.map_err(|reason| failed(Unreached::io(format!("{reason}; {}", reach::BLOCKED))))?;
    Ok(chosen)
}

async fn channels(
    reception: &Arc<Reception>,
    offer: ServerOffer,
    limit: Duration,
) -> Result<(Vec<ChannelSetup>, Choice), String> {
    let (deadline, reception) = (Instant::now() + limit, reception.clone());
    blocking(move || {
        let queues: Vec<CqHandle> = reception.lanes.iter().map(|(_, queue)| queue.clone()).collect();
        let setups = reach::connect(&reception.devices, &queues, &offer, deadline)?;
        Ok((setups, offer.choice))
    })
    .await
}

/// Gives each lane its channel; it answers when the other side has answered over it.
fn attach(
    reception: &Reception,
    target: &Target,
    setups: Vec<ChannelSetup>,
    inboxes: Vec<InboxGrant>,
) -> Result<Vec<oneshot::Receiver<Result<(), String>>>, String> {
    let Target { number, to, incarnation, .. } = *target;
    // Held until all lanes have the message, so that no channel comes after the end of its server.
    let peers = reception.peers.borrow();
    if peers.as_ref().and_then(|peers| peers.servers.get(&to)) != Some(&incarnation) {
        return Err("it is no longer in the roster".into());
    }
    let mut answers = Vec::with_capacity(setups.len());
    for ((setup, inbox), (lane, _)) in setups.into_iter().zip(inboxes).zip(&reception.lanes) {
        let (reply, answer) = oneshot::channel();
        lane.send(LaneMessage::AttachStream { to, incarnation, number, setup, inbox, reply });
        answers.push(answer);
    }
    Ok(answers)
}
