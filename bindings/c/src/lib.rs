//! Gradwire for C: what `include/gradwire.h` declares, and what the headers in `include/ps` stand on.
//!
//! Each module owns one family of functions and the documentation that the header shows. `border` alone turns what C
//! passes into what Rust may use. Nothing here decides anything about the cluster: that is the role crates' business. No
//! function may panic, abort, or let an exception of its caller through.
#![deny(missing_docs)]

mod border;
pub mod buffer;
pub mod call;
pub mod client;
pub mod error;
pub mod handle;
pub mod message;
pub mod optimizer;
pub mod own;
pub mod piece;
pub mod scheduler;
pub mod server;
pub mod settings;
pub mod table;
pub mod tensor;
pub mod transfer;
