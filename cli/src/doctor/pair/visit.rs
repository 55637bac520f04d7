//! The visiting side: reaches a listener, tries each driver that both have, and says of each whether it works, how fast,
//! and which of them a job would use. Believes the listener no more than it believes its visitors.

use super::channel::hint;
use super::listen::blocking;
use super::words::{FromListener, ToListener, Trial, tame};
use super::{Host, exchange::Figures};
use crate::doctor::dial::{DialError, Dialled, dial};
use daemon::control::{Connection, FrameError};
use daemon::devices::Lacking;
use daemon::settings::split_address;
use proto_common::error::ExitCode;
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::transport::{Choice, Driver, Offer, choose, obstacle};
use std::io;
use std::time::Duration;

/// What is to be started on the other host.
const LISTENER: &str = "gradwire doctor --listen";

/// What came of a trial.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::doctor) enum Outcome {
    /// It carries bytes, this fast.
    Works { round_trip_us: f64, megabytes_per_s: f64 },
    /// It should, and does not.
    Fails { why: String },
    /// It is not to be used between these two.
    Skipped { why: String },
}

/// One way between two hosts.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::doctor) struct Row {
    pub(in crate::doctor) trial: String,
    pub(in crate::doctor) driver: Driver,
    pub(in crate::doctor) outcome: Outcome,
}

/// What a visit came to.
#[derive(Clone, Debug)]
pub(in crate::doctor) struct Visit {
    pub(in crate::doctor) peer: String,
    /// What a worker here and a server there would use, or why nothing.
    pub(in crate::doctor) choice: Result<Choice, String>,
    pub(in crate::doctor) rows: Vec<Row>,
    /// Why there are fewer rows, or none: text, fix and code.
    pub(in crate::doctor) broken: Option<(String, String, ExitCode)>,
}

impl Visit {
    /// Nobody was asked, for want of a driver that is required.
    pub(in crate::doctor) fn untried(peer: &str, Lacking { driver, reason }: &Lacking) -> Self {
        let why = format!("not tried: transport.{driver} is required but unavailable here: {reason}");
        let fix = format!("fix the cause, or set transport.{driver} = \"prefer\"");
        let broken = Some((why.clone(), fix, ExitCode::Transport));
        Self { peer: peer.to_owned(), choice: Err(why), rows: Vec::new(), broken }
    }

    /// The code that this visit alone would end with.
    pub(in crate::doctor) fn code(&self) -> ExitCode {
        if let Some((_, _, code)) = &self.broken {
            return *code;
        }
        let works = |driver: Driver| {
            let mut ways = self.rows.iter().filter(|row| row.driver == driver);
            ways.any(|row| matches!(row.outcome, Outcome::Works { .. }))
        };
        match &self.choice {
            Ok(choice) if works(choice.driver) => ExitCode::Ok,
            _ => ExitCode::Transport,
        }
    }
}

/// Why a visit ends early.
struct Broken {
    text: String,
    fix: String,
    code: ExitCode,
}

impl Broken {
    fn link(error: &FrameError) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
        let code = match error {
            FrameError::Deadline { .. } => ExitCode::Deadline,
            // It took the connection and ends it: as good as closing it in good order.
            FrameError::Io(error)
                if [BrokenPipe, ConnectionAborted, ConnectionReset].contains(&error.kind()) =>
            {
                ExitCode::Refused
            }
            FrameError::Io(_) => ExitCode::Io,
            FrameError::TooLong { .. }
            | FrameError::HttpService
            | FrameError::HttpClient
            | FrameError::Cut { .. }
            | FrameError::Codec(_)
            | FrameError::Security(_) => ExitCode::Refused,
        };
        Self {
            text: error.to_string(),
            fix: format!("is it `{LISTENER}` of the same release that listens there?"),
            code,
        }
    }

    fn refused(text: &str) -> Self {
        let fix = format!("start `{LISTENER}` of the same release there");
        Self { text: tame(text), fix, code: ExitCode::Refused }
    }
}

/// Visits `HOST:PORT`.
pub(in crate::doctor) async fn visit(host: &Host, peer: &str) -> Visit {
    let mut visit = Visit {
        peer: peer.to_owned(),
        choice: Err("the peer was not reached".into()),
        rows: Vec::new(),
        broken: None,
    };
    if let Err(Broken { text, fix, code }) = try_all(host, peer, &mut visit).await {
        visit.broken = Some((text, fix, code));
    }
    visit
}

async fn try_all(host: &Host, peer: &str, visit: &mut Visit) -> Result<(), Broken> {
    let mut link = reach(host, peer).await?;
    let theirs = greet(host, &mut link).await?;
    visit.choice = choose(&host.offer, &theirs).map_err(|none| tame(&none.reasons)).map(|mut choice| {
        choice.why = tame(&choice.why);
        choice
    });
    for trial in Trial::all() {
        let outcome = match skipped(host, &theirs, trial) {
            Some(why) => Outcome::Skipped { why: tame(&why) },
            None => match attempt(host, &mut link, trial).await? {
                Ok(Figures { round_trip_us, megabytes_per_s }) => {
                    Outcome::Works { round_trip_us, megabytes_per_s }
                }
                Err(why) => Outcome::Fails { why: tame(&why) },
            },
        };
        visit.rows.push(Row { trial: trial.to_string(), driver: trial.driver, outcome });
    }
    Ok(())
}

async fn reach(host: &Host, peer: &str) -> Result<Connection, Broken> {
    let (name, port) = split_address("--peer", peer).map_err(|error| {
        let fix = format!("give the address that `{LISTENER}` said");
        Broken { text: error.to_string(), fix, code: ExitCode::Config }
    })?;
    let Dialled { stream, .. } = dial(name, port, host.step).await.map_err(|error| {
        let code = match error {
            DialError::Silent { .. } => ExitCode::Deadline,
            _ => ExitCode::Io,
        };
        Broken { text: error.to_string(), fix: error.fix(&format!("`{LISTENER}`")), code }
    })?;
    host.security.dial(stream, None, host.step).await.map_err(|error| Broken::link(&error))
}

async fn greet(host: &Host, link: &mut Connection) -> Result<Offer, Broken> {
    let hello = ToListener::Hello { protocol: PROTOCOL_VERSION, offer: (*host.offer).clone() };
    match ask(link, &hello, host.step).await? {
        FromListener::Hello { protocol: PROTOCOL_VERSION, offer } => {
            link.admit();
            Ok(offer)
        }
        FromListener::Hello { protocol, .. } => {
            Err(Broken::refused(&format!("its protocol version is {protocol}, ours {PROTOCOL_VERSION}")))
        }
        FromListener::Refused(why) => Err(Broken::refused(&format!("it refused: {why}"))),
        _ => Err(Broken::refused("it answered out of order")),
    }
}

/// Sends and takes the one answer.
async fn ask(link: &mut Connection, message: &ToListener, within: Duration) -> Result<FromListener, Broken> {
    link.send_within(message, within).await.map_err(|error| Broken::link(&error))?;
    match link.receive_within(within).await {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(Broken::refused("it closed the connection")),
        Err(error) => Err(Broken::link(&error)),
    }
}

/// Why a trial makes no sense between these two.
fn skipped(host: &Host, theirs: &Offer, trial: Trial) -> Option<String> {
    let ours = &host.offer;
    let by_driver = obstacle(trial.driver, ours, theirs);
    let by_trial = || match trial.is_unix {
        true if !host.unix_sockets => Some("off by node.unix_sockets"),
        true if ours.host != theirs.host => Some("different hosts"),
        true if ours.uid != theirs.uid => Some("different users"),
        _ => host.devices.device(trial.driver).is_none().then_some("it is not in use here"),
    };
    by_driver.or_else(|| by_trial().map(str::to_owned))
}

/// One trial, in step with the listener. The error ends the visit, the result is the trial's.
async fn attempt(
    host: &Host,
    link: &mut Connection,
    trial: Trial,
) -> Result<Result<Figures, String>, Broken> {
    let out_of_order = || Broken::refused("it answered out of order");
    let offer = match ask(link, &ToListener::Try(trial), host.step).await? {
        FromListener::Offer(Ok(offer)) => offer,
        FromListener::Offer(Err(why)) => return Ok(Err(format!("there: {why}"))),
        _ => return Err(out_of_order()),
    };
    let joining = host.clone();
    let ours = blocking(move || joining.join(trial, &offer)).await;
    let key = ours.as_ref().map(super::exchange::End::key).map_err(Clone::clone);
    // The listener answers when it has waited for the channel, as long as we for the connection.
    let theirs = match ask(link, &ToListener::End(key), 2 * host.step).await? {
        FromListener::End(theirs) => theirs,
        _ => return Err(out_of_order()),
    };
    let (mut end, theirs) = match (ours, theirs) {
        (Ok(end), Ok(theirs)) => (end, theirs),
        (Err(why), _) => return Ok(Err(why)),
        (Ok(_), Err(why)) => return Ok(Err(format!("there: {why}"))),
    };
    let patience = host.while_used();
    let visiting = blocking(move || {
        let figures = end.visit(theirs, patience);
        // Where it failed the listener learns so at once, by the end of the channel.
        Ok(figures.map(|figures| (figures, end)))
    });
    let result = visiting.await.unwrap_or_else(Err);
    let within = host.while_used().deadline.saturating_duration_since(std::time::Instant::now());
    let seen = match link.receive_within(within).await {
        Ok(Some(FromListener::Done(seen))) => seen,
        Ok(Some(_)) => return Err(out_of_order()),
        Ok(None) => return Err(Broken::refused("it closed the connection")),
        Err(error) => return Err(Broken::link(&error)),
    };
    Ok(match (result, seen) {
        (Ok((figures, _end)), Ok(())) => Ok(figures),
        (Ok(_), Err(why)) => Err(format!("there: {why}")),
        (Err(why), _) => Err(format!("{why}{}", hint(trial))),
    })
}
