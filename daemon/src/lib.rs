//! What every Gradwire process shares: settings from all sources, logs, exit codes, the connection to the scheduler,
//! control frames, HTTP endpoints, signals, notifications to the service manager, and the identity of this host.
//!
//! This crate does the I/O around a process. It must not know what a role does, hold global state (except the tracing
//! subscriber, which is global by nature), or read the environment: `main` passes it in.
//!
//! # How a daemon starts
//!
//! ```ignore
//! fn main() -> std::process::ExitCode {
//!     let args: Args = match daemon::manual::parse(&MANUAL) {    // #[command(flatten)] common: CommonArgs
//!         Ok(args) => args,
//!         Err(code) => return code,                              // --generate: its manual is written
//!     };
//!     daemon::exit::run_main("gradwire-server", || {
//!         let env = daemon::process::environment();                 // read once
//!         daemon::process::die_with_parent(&env)?;
//!         let loaded = args.common.load(Role::Server, &env)?;    // defaults < file < environment < flags
//!         let (identity, _) = daemon::logging::init(Role::Server, &loaded.settings.log)?;
//!         let flight = Flight::new(identity, &loaded.settings);      // what it does, for /trace and crashes
//!         flight.on_panic();
//!         loaded.log();                                          // sources and warnings
//!         daemon::process::run_to_end(async {
//!             let shutdown = daemon::shutdown::on_signals()?;      // SIGTERM and SIGINT
//!             let notify = Notify::from_env(&env);                 // the service manager, where there is one
//!             notify.follow(&shutdown);
//!             let http = daemon::http::bind(&loaded.settings.node.http).await?;
//!             run(listener, http, loaded.settings, shutdown, (notify, flight)).await
//!         })?
//!     })
//! }
//! ```
//!
//! # How a member talks to the scheduler
//!
//! [`control::SchedulerLink::connect`] reaches the scheduler within `deadlines.connect_ms`, registers and
//! returns the link with its [`proto_common::message::Welcome`]. From then on a task of the current
//! tokio runtime owns the socket. It sends heartbeats with what the report closure returns, and notices silence and loss of
//! the scheduler. Everything else arrives on `link.events` as [`control::LinkEvent`]. The
//! cloneable [`control::LinkSender`] sends. If the scheduler is lost, the link looks for the next one at its address and
//! reports to it what the member knows ([`control::LinkEvent::Away`], [`control::LinkEvent::Back`]).
//! [`control::SchedulerLink::finish`] sends the last message (`Goodbye` or `Failing`), flushes, and waits for the scheduler to close
//! the connection, within a bound.
#![forbid(unsafe_code)]

pub mod axis;
pub mod control;
pub mod devices;
pub mod embed;
pub mod exit;
pub mod flight;
pub mod host;
pub mod http;
pub mod lanes;
pub mod logging;
#[cfg(any(test, feature = "cli"))]
pub mod manual;
pub mod metrics;
pub mod notify;
pub mod passed;
pub mod port;
pub mod post;
pub mod process;
mod process_metrics;
pub mod reach;
pub mod reload;
pub mod security;
pub mod seldom;
pub mod settings;
pub mod shutdown;
pub mod small_file;
pub mod status;
pub mod targets;

/// A future in a box. The body of an `async fn` is compiled where it is awaited: without the box each of the four programs would
/// compile connections, TLS and the link to the scheduler again.
pub type Later<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
