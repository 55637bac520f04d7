//! What a function of this crate returns that other crates await.

use std::pin::Pin;

/// A future in a box. The body of an `async fn` is compiled where it is awaited: without the box each of the four programs would
/// compile connections, TLS and the link to the scheduler again.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
