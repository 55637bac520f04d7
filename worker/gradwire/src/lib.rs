//! Gradwire is a parameter server: servers keep a model's weights, and workers send gradients and receive weights. This
//! crate is what a Rust program that trains needs of it. It owns no code of its own, and must not: it names the public parts of
//! the crates `gradwire-worker`, `gradwire-proto-common` and `gradwire-daemon` in one place.
//!
//! # Hello, world
//!
//! Every worker runs this program. Servers add up the workers' gradients and apply SGD with momentum.
//!
//! ```no_run
//! use gradwire::prelude::*;
//!
//! fn main() -> gradwire::Result<()> {
//!     let client = Client::from_env()?;
//!     let tensor = client.declare(&[TensorSpec::f32(1, 1_000, Optimizer::sgd(0.1, 0.9, 0.0))])?.remove(0);
//!     client.init(&tensor, &[0.0_f32; 1_000])?;
//!     let mut weights = [0.0_f32; 1_000];
//!     for step in 0..10 {
//!         let gradient = [step as f32; 1_000]; // your backward pass
//!         client.push_pull_slice(&tensor, &gradient, &mut weights)?;
//!     }
//!     println!("worker {} of {}: {}", client.rank(), client.workers(), weights[0]);
//!     client.close();
//!     Ok(())
//! }
//! ```
//!
//! `gradwire launch -n 2 -s 1 -- target/debug/hello` starts a scheduler, one server and two workers on this machine.
//!
//! # Without copies, with several operations in flight
//!
//! An operation returns a [`Handle`] at once. [`Handle::wait`] waits for its end and returns the buffers. Buffers of
//! [`Client::allocate`] lie in registered memory, so the transport sends them from where they are.
//!
//! ```no_run
//! # use gradwire::prelude::*;
//! # fn step(client: &Client, layers: &[Tensor]) -> gradwire::Result<()> {
//! let mut handles = Vec::new();
//! for (depth, layer) in layers.iter().enumerate().rev() {
//!     let mut gradient = client.allocate(layer.bytes())?;
//!     gradient.as_f32_mut().fill(0.5); // the backward pass of this layer
//!     let weights = client.allocate(layer.bytes())?;
//!     // The forward pass needs the first layers first.
//!     handles.push(client.push_pull(layer, gradient, weights, -(depth as i32))?);
//! }
//! for handle in handles {
//!     let ended = handle.wait()?;
//!     let weights = ended.target.expect("push_pull returns the buffer of the weights");
//!     println!("version {}: {:?}", ended.version, &weights.as_f32()[..2]);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # In async programs
//!
//! Handles are [`IntoFuture`], with any async runtime. No thread waits for an operation that is awaited.
//!
//! ```no_run
//! # use gradwire::prelude::*;
//! # async fn step(client: &Client, tensor: &Tensor, gradient: TensorBuffer) -> gradwire::Result<()> {
//! let weights = client.allocate(tensor.bytes())?;
//! let ended = client.push_pull(tensor, gradient, weights, 0)?.await?;
//! println!("version {}", ended.version);
//! # Ok(())
//! # }
//! ```
//!
//! # Embedding tables
//!
//! A [`Table`] has rows under 64-bit ids. A row exists from its first push on; until then, pulls return its initial values.
//!
//! ```no_run
//! # use gradwire::prelude::*;
//! # fn step(client: &Client) -> gradwire::Result<()> {
//! let table = client.declare_table(&TableSpec::new(1, 4, Optimizer::sgd(0.1, 0.0, 0.0), Initial::Constant(0.0)))?;
//! let ids = [7, 1 << 40];
//! let mut rows = [0.0_f32; 2 * 4];
//! client.pull_rows(&table, &ids, &mut rows)?;
//! client.push_rows(&table, &ids, &[0.25; 2 * 4])?.wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Settings in code
//!
//! ```no_run
//! # use gradwire::prelude::*;
//! # fn main() -> gradwire::Result<()> {
//! let mut settings = gradwire::settings_from_env()?;
//! settings.deadlines.operation_ms = 5_000;
//! let client = Client::connect(settings)?;
//! # client.close();
//! # Ok(())
//! # }
//! ```
//!
//! Log messages go to the `tracing` subscriber of your program. Every error implements [`std::error::Error`], names what
//! was waited for, and says what to do.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub use gradwire_worker::{
    CallFault, CallHandle, CallReply, CallRequest, Client, ClientError, Element, Ended, Handle, Numbers,
    OpError, OpFuture, Piece, RegistrationStats, ReplyBody, RowsHandle, SharedBuffer, Source, Table, Target,
    Tensor, TensorBuffer, UserBuffer, Weights,
};
pub use proto_common::codec::{Codec, Compression};
pub use proto_common::config::Settings;
pub use proto_common::element::Dtype;
pub use proto_common::ids::{Key, Rank, Version};
pub use proto_common::message::NodeGroup;
pub use proto_common::mode::Mode;
pub use proto_common::optimizer::{Decay, Form, Optimizer, Own, Rule, Schedule, rules};
pub use proto_common::table::{Initial, TableSpec};
pub use proto_common::tensor::TensorSpec;

/// What went wrong: the call's own fault, the cluster's state, or the environment.
pub type Error = ClientError;

/// A result with Gradwire's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Settings of a worker, as [`Client::from_env`] reads them: from `./gradwire.toml` or the file that `GRADWIRE_CONFIG` names,
/// and from variables, which override the file.
pub fn settings_from_env() -> Result<Settings> {
    let environment = daemon::process::environment();
    Ok(daemon::settings::load_settings(proto_common::ids::Role::Worker, &environment, None, &[])?.settings)
}

/// What most programs need: `use gradwire::prelude::*`.
pub mod prelude {
    pub use crate::{
        Client, Ended, Handle, Initial, Mode, Optimizer, Table, TableSpec, Target, Tensor, TensorBuffer,
        TensorSpec, UserBuffer, Weights,
    };
}
