//! Names and secrets of offers: drawn from the system, never from anything that can be guessed.

use crate::error::FabricError;

/// Draws one.
pub(crate) fn random() -> Result<[u8; 16], FabricError> {
    let mut bytes = [0; 16];
    let drawn = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
        .map_err(|e| FabricError::os("drawing an offer's secret", e))?;
    if drawn != bytes.len() {
        return Err(FabricError::Internal("the system gave fewer random bytes than asked for".into()));
    }
    Ok(bytes)
}

/// Good for the channels of one offer only.
#[derive(Clone, Copy, Eq)]
pub(crate) struct Secret(pub(crate) [u8; 16]);

impl Secret {
    /// Draws one.
    pub(crate) fn random() -> Result<Self, FabricError> {
        random().map(Self)
    }
}

impl PartialEq for Secret {
    /// Compares without telling by its time how many bytes fit.
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
    }
}

impl std::fmt::Debug for Secret {
    /// Secrets stay out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}
