//! Registered memory: regions, spans of them, and the pool of buffers cut from one region.

mod blocks;
mod borrowed;
mod elements;
mod floats;
mod lent;
mod pool;
mod region;
mod user;
mod view;

pub use blocks::Blocks;
pub use borrowed::Borrowed;
pub(crate) use borrowed::PeerPages;
pub use elements::{Number, Numbers};
pub use floats::{Floats, HUGE_PAGE_BYTES};
pub use lent::{Fenced, PeerWritable, SpanReader};
pub use pool::{Ahead, Exclusive, Pool, PoolError};
pub(crate) use region::Mapping;
pub(crate) use region::next_id;
pub use region::{Access, OutOfBounds, Pages, Region, Span};
pub use user::{BufferId, Handles, UserBuffer};
pub use view::View;
