//! How calls to a handler are handled, as its lanes need to know it.

/// What becomes of calls to a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handling {
    /// There is no handler: they wait.
    Nobody,
    /// It gets copies of bodies.
    Copied,
    /// It reads long pieces of bodies where workers have them.
    InPlace,
}
