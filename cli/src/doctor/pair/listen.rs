//! The listening side: takes visitors, a few at once, and plays its part in what they try. Believes none of them: what
//! they send is bounded, and each wait ends.

use super::Host;
use super::channel::hint;
use super::words::{FromListener, ToListener, Trial, tame};
use anyhow::Context as _;
use daemon::control::Connection;
use daemon::exit::{Failure, WithCode as _};
use daemon::shutdown::Shutdown;
use proto_common::error::ExitCode;
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::Build;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

/// Visitors at once. More wait to be taken.
const VISITORS_MAX: usize = 8;

/// Serves visitors at `address` until it is told to stop; with `once`, until the first visit is over.
pub(in crate::doctor) async fn listen(
    host: Host,
    address: SocketAddr,
    once: bool,
    mut shutdown: Shutdown,
) -> Result<(), anyhow::Error> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}; give --listen a free address of this host"))
        .code(ExitCode::Io)?;
    let at = listener.local_addr().code(ExitCode::Io)?;
    say(&format!("listening on {at}; on the other host: gradwire doctor --peer {}", reachable(at)))?;
    let seats = Arc::new(Semaphore::new(VISITORS_MAX));
    let (ended, mut ends) = mpsc::channel(VISITORS_MAX);
    loop {
        let visitor = async {
            // Never closed.
            let seat = Arc::clone(&seats).acquire_owned().await;
            (seat, listener.accept().await)
        };
        tokio::select! {
            _ = shutdown.wait() => return Ok(()),
            Some((peer, visit)) = ends.recv() => {
                let is_visit = tell(peer, &visit)?;
                if once && is_visit {
                    return Ok(());
                }
            }
            (seat, accepted) = visitor => {
                // Whatever befell a connection before it was taken is its own affair.
                let Ok((stream, peer)) = accepted else { continue };
                let (host, ended) = (host.clone(), ended.clone());
                tokio::spawn(async move {
                    let visit = receive(&host, stream).await;
                    drop(seat);
                    // Fails only where nobody listens any more.
                    let _ = ended.send((peer, visit)).await;
                });
            }
        }
    }
}

/// What a visit came to, by trial; or why it was none.
type Visit = Result<Vec<(Trial, Result<(), String>)>, String>;

fn tell(peer: SocketAddr, visit: &Visit) -> Result<bool, Failure> {
    match visit {
        Ok(trials) => {
            let each = trials.iter().map(|(trial, result)| match result {
                Ok(()) => format!("{trial} works"),
                Err(why) => format!("{trial} does not work: {}", tame(why)),
            });
            say(&format!("visit of {peer}: {}", each.collect::<Vec<_>>().join("; ")))?;
            Ok(true)
        }
        Err(why) => say(&format!("dropped {peer}: {}", tame(why))).map(|()| false),
    }
}

fn say(line: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).code(ExitCode::Io)
}

/// An address that peers can use, as far as it can be told from here.
fn reachable(at: SocketAddr) -> String {
    if at.ip().is_unspecified() { format!("HOST:{}", at.port()) } else { at.to_string() }
}

/// Plays the listener's part in one visit.
pub(super) async fn receive(host: &Host, stream: TcpStream) -> Visit {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let mut link = host.security.accept(stream, host.step).await.map_err(|error| said(&error))?;
    match link.receive_within(host.step).await.map_err(|error| said(&error))? {
        Some(ToListener::Hello { protocol: PROTOCOL_VERSION, .. }) => link.admit(),
        Some(ToListener::Hello { protocol, .. }) => {
            let why = format!(
                "protocol version {protocol} is not that of this doctor, {}; run the same release everywhere",
                Build::own()
            );
            let _ = link.send_within(&FromListener::Refused(why.clone()), host.step).await;
            return Err(why);
        }
        Some(_) => return Err("it did not say hello first".into()),
        None => return Err("it said nothing".into()),
    }
    let hello = FromListener::Hello { protocol: PROTOCOL_VERSION, offer: (*host.offer).clone() };
    link.send_within(&hello, host.step).await.map_err(|error| said(&error))?;
    let mut trials = Vec::new();
    // Each is tried once, and may be repeated.
    while trials.len() < 2 * Trial::all().count() {
        match link.receive_within(host.step).await {
            Ok(Some(ToListener::Try(trial))) => {
                let result = attempt(host, &mut link, trial).await?;
                trials.push((trial, result));
            }
            Ok(None) => break,
            Ok(Some(_)) => return Err("it spoke out of order".into()),
            Err(error) => return Err(said(&error)),
        }
    }
    Ok(trials)
}

/// One trial. The error ends the visit, the result is the trial's.
async fn attempt(host: &Host, link: &mut Connection, trial: Trial) -> Result<Result<(), String>, String> {
    let inviting = host.clone();
    let invited = blocking(move || inviting.invite(trial)).await;
    let (offer, invitation) = match invited {
        Ok((offer, invitation)) => (offer, invitation),
        Err(why) => {
            send(link, &FromListener::Offer(Err(why.clone())), host.step).await?;
            return Ok(Err(why));
        }
    };
    send(link, &FromListener::Offer(Ok(offer)), host.step).await?;
    let welcoming = host.clone();
    let ours = blocking(move || welcoming.welcome(trial, invitation)).await;
    // It may take as long to connect as we to wait for it.
    let theirs = match link.receive_within(2 * host.step).await {
        Ok(Some(ToListener::End(theirs))) => theirs,
        Ok(_) => return Err("it spoke out of order".into()),
        Err(error) => return Err(error.to_string()),
    };
    let key = ours.as_ref().map(super::exchange::End::key).map_err(Clone::clone);
    send(link, &FromListener::End(key), host.step).await?;
    let (mut end, theirs) = match (ours, theirs) {
        (Ok(end), Ok(theirs)) => (end, theirs),
        (Err(why), _) | (_, Err(why)) => return Ok(Err(why)),
    };
    let patience = host.while_used();
    // The end is kept until the visitor knows: closing it may overtake the last notice.
    let (result, _end) = blocking(move || {
        let result = end.answer(theirs, patience);
        Ok((result.map_err(|why| format!("{why}{}", hint(trial))), end))
    })
    .await?;
    send(link, &FromListener::Done(result.clone()), host.step).await?;
    Ok(result)
}

async fn send(link: &mut Connection, message: &FromListener, within: Duration) -> Result<(), String> {
    link.send_within(message, within).await.map_err(|error| error.to_string())
}

/// Runs blocking work beside the runtime.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}
