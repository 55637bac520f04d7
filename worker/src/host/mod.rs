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
//! So nobody here waits for long, and who is late is found where it always is: at the servers. A follower goes as merged only once the
//! head has sent the sum, or will without waiting for anybody. Otherwise a head that leaves would take contributions with it.
//!
//! If the servers add in rank order (`cluster.deterministic`), only workers with the first ranks do this. The sum then has the same
//! bits as without: the server adds what comes after it.
//!
//! | file | owns |
//! | --- | --- |
//! | `letter` | what head and followers tell each other, as bytes |
//! | `head`, `follower` | what each decides, without I/O |
//! | `meet` | how the workers of a host find each other and agree |
//! | `thread` | the thread that executes decisions |

mod follower;
mod head;
mod letter;
mod meet;
mod thread;

pub(crate) use meet::{Listening, Met, Own};
pub(crate) use thread::{Coming, Host, Passing};

use letter::Letter;
use proto_common::ids::Rank;

/// An operation waits this long at its gate for the others' contributions.
const GATE_MS: u64 = 1_000;
/// Operations of one follower that its head knows and that have not ended. More wait at their gate.
const OFFERED_MAX: usize = 100;

/// A contribution, as all workers know it: its key and round.
type Part = (u64, u64);

/// What is to be done, in this order. An operation is named by its number at this worker.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Command {
    /// Tell another worker.
    Send { to: Rank, letter: Letter },
    /// The operation goes as it would without this module.
    OpenAlone { op: u64 },
    /// The head has its contribution: the operation goes without a payload.
    OpenMerged { op: u64 },
    /// The sum of its contribution and of those at these places, in this order, goes instead of its own.
    OpenSum { op: u64, from: Vec<(Rank, u64)> },
    /// Copy what the servers returned, from this place in the head's memory.
    Land { op: u64, from: Rank, offset: u64 },
    /// Nothing more is to be done here for the operation.
    End { op: u64 },
    /// The head cannot return what the operation is for.
    Fail { op: u64 },
}

/// What an operation is, at its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    op: u64,
    part: Part,
    /// Bytes of the gradient, and of what returns.
    bytes: u64,
    /// Where the gradient is in the worker's memory, if others can read it there.
    offset: u64,
    /// Where the weights return to, if it returns some.
    weights: u64,
    /// Does it?
    lands: bool,
}
