//! Workers of one host that add their contributions in shared memory: one of them, the *head*, sends one sum to the servers, and the
//! others, its *followers*, send only that they are part of it. What comes back is shared, too. Used where servers are on other hosts
//! (`transport.merge`); `docs/concepts.md` says for which tensors.
//!
//! ```text
//!  follower                                   head                                        server
//!     │ Offer: here is my gradient              │ its own gradient                           │
//!     ├───────────────────────────────────────▶ │ reads all of them, adds them in rank order │
//!     │ ◀─────────────────────────────── Taken  ├── push_pull of the sum ──────────────────▶ │
//!     ├── push, merged: no payload ────────────────────────────────────────────────────────▶ │
//!     │                                         │ ◀──────────────────────────────── weights  │
//!     │ ◀────────────────── Result: read there  │                                            │
//!     │ copies the weights                      │                                            │
//!     ├─ Copied ──────────────────────────────▶ │ its caller gets the weights                │
//! ```
//!
//! An operation waits at its worker's *gate* until it is known how it goes: as a sum, merged, or alone, as without all this. It goes
//! alone if the workers do not contribute to the round within a second, if they ask for different things, or if one of them has left.
//! So nobody here waits for long, and the servers detect a worker that is later than that, as they do without merging. A follower goes as
//! merged only once the head has the sum, and a head does not leave before the servers have answered its sums. Otherwise it would take
//! contributions of others with it.
//!
//! If the servers add in rank order (`cluster.deterministic`), only workers with the first ranks do this. The sum then has the same
//! bits as without: the server adds what comes after it.
//!
//! | file | owns |
//! | --- | --- |
//! | `letter` | what head and followers tell each other, as bytes |
//! | `command` | what is to be done, and with which operation |
//! | `head`, `follower` | what each decides, without I/O |
//! | `meet` | how the workers of a host find each other and agree |
//! | `thread` | the thread that executes decisions |

mod command;
mod follower;
mod head;
mod letter;
mod meet;
#[cfg(test)]
mod tests;
mod thread;

pub(crate) use meet::{Listening, Met, Own};
pub(crate) use thread::{Coming, Host, Passing};
