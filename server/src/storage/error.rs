//! Why storage cannot do what it is asked for. It must not know how anything is stored.

use crate::own::OwnRuleError;
use fabric::{FabricError, OutOfBounds, PoolError};
use proto_common::element::Dtype;
use thiserror::Error;

/// Version of the form of images.
pub(super) const FORM: u16 = 1;

/// Storage that cannot serve.
#[derive(Debug, Error)]
pub enum StorageError {
    /// The system gives no memory.
    #[error("{0}")]
    Fabric(#[from] FabricError),
    /// The weights' address space is used up.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A contribution does not lie where the engine says: a bug.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
    /// An index without a chunk: a bug.
    #[error("internal error: no chunk {0} in storage")]
    NoChunk(u32),
    /// A contribution in a worker's memory that was not mapped: a bug.
    #[error("internal error: a contribution in a worker's memory is not mapped")]
    NotMapped,
    /// Bytes that are no image of a chunk.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A sum that is to be sent, and lies where it cannot be: a bug.
    #[error("internal error: the sum of chunk {0} is not lent")]
    NotLent(u32),
    /// Changes of a rule wait for rounds that do not come.
    #[error("{0} changes of this tensor's optimizer are already pending; contribute to their rounds first")]
    TooManyChanges(usize),
    /// A buffer that is not a whole number of elements: a bug.
    #[error("internal error: chunk bytes are not whole elements")]
    Elements,
    /// A rule that the program does not have, or that failed.
    #[error(transparent)]
    OwnRule(#[from] OwnRuleError),
}

/// Bytes that are no image of this chunk.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ImageError {
    /// Not an image, or of another form.
    #[error("not a chunk's image of form {FORM}; upgrade the older member")]
    Form,
    /// Cut short, or longer than it says.
    #[error("the image of a chunk has {got} bytes, but its header states {want}")]
    Length { got: usize, want: usize },
    /// Its head cannot be read.
    #[error("a chunk's image has a malformed head: {0}")]
    Head(String),
    /// An image of another chunk.
    #[error(
        "the image is of {got} with {got_bytes} bytes, but the chunk is of {want} with {want_bytes} bytes"
    )]
    Shape { got: Dtype, got_bytes: u64, want: Dtype, want_bytes: u64 },
    /// A rule that the chunk cannot have.
    #[error("the image of a chunk has an optimizer that this tensor cannot have")]
    Rule,
}
