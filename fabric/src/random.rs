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
