//! A chunk's whole state as bytes, and back: what goes to a copy, and into checkpoints. A head (the engine's part, the rule,
//! what follows), then weights, those before, what the rule keeps, and exact weights where published ones are rounded. What
//! is read here comes from outside: it is checked whole before anything of a chunk changes.

use super::error::{FORM, ImageError, StorageError};
use super::rule::CurrentRule;
use super::{Storage, Stored};
use crate::engine::ChunkState;
use proto_common::element::Dtype;
use proto_common::message::{decode, encode};
use serde::{Deserialize, Serialize};

/// Bytes before the head: magic, form, reserved, and the head's length.
const LEAD_BYTES: usize = 12;
const MAGIC: [u8; 4] = *b"GWIM";
/// Bytes of a head at most: counts of all workers there can be, and changes of a rule.
const HEAD_BYTES_MAX: usize = 128 << 10;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    state: ChunkState,
    rule: CurrentRule,
    dtype: u8,
    bytes: u64,
    /// Bytes of each array that the rule keeps, and of exact weights.
    kept: [u64; 2],
    master: u64,
}

proto_common::control_messages!(Head);

/// An image, taken apart; its parts lie in the bytes that it was read from.
#[derive(Clone, Debug)]
pub struct Image<'a> {
    /// The engine's part.
    pub state: ChunkState,
    /// The elements' type.
    pub dtype: Dtype,
    /// Weights in force.
    pub weights: &'a [u8],
    /// Those before, where the state has them.
    pub previous: Option<&'a [u8]>,
    /// What the rule keeps, in the type of sums; empty where it has fewer arrays.
    pub kept: [&'a [u8]; 2],
    /// Exact weights, in the type of sums, where published ones are rounded.
    pub master: &'a [u8],
    rule: CurrentRule,
}

impl<'a> Image<'a> {
    /// Reads an image's parts. Whether it fits a chunk is for [`Storage::load_image`] to say.
    pub fn read(bytes: &'a [u8]) -> Result<Self, ImageError> {
        let (lead, rest) = bytes.split_first_chunk::<LEAD_BYTES>().ok_or(ImageError::Form)?;
        let (magic, words) = lead.split_at(MAGIC.len());
        if magic != MAGIC || words[..2] != FORM.to_le_bytes() || words[2..4] != [0; 2] {
            return Err(ImageError::Form);
        }
        let head_bytes = u32::from_le_bytes([words[4], words[5], words[6], words[7]]) as usize;
        let short = ImageError::Length { got: bytes.len(), want: LEAD_BYTES.saturating_add(head_bytes) };
        if head_bytes > HEAD_BYTES_MAX {
            return Err(short);
        }
        let (head, mut rest) = rest.split_at_checked(head_bytes).ok_or(short)?;
        let head: Head = decode(head).map_err(|error| ImageError::Head(error.to_string()))?;
        let dtype = Dtype::from_wire(head.dtype).ok_or_else(|| ImageError::Head("unknown dtype".into()))?;
        let before = if head.state.previous.is_some() { head.bytes } else { 0 };
        let lengths = [head.bytes, before, head.kept[0], head.kept[1], head.master];
        let want = lengths.iter().try_fold(0u64, |sum, part| sum.checked_add(*part));
        if want != Some(rest.len() as u64) {
            let want = usize::try_from(want.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
            return Err(ImageError::Length { got: rest.len(), want });
        }
        let parts = lengths.map(|length| {
            // Their sum is what there is.
            let (part, after) = rest.split_at(length as usize);
            rest = after;
            part
        });
        let [weights, previous, first, second, master] = parts;
        let previous = head.state.previous.is_some().then_some(previous);
        let Head { state, rule, .. } = head;
        Ok(Self { state, dtype, weights, previous, kept: [first, second], master, rule })
    }
}

impl Stored {
    fn head(&self, state: &ChunkState) -> Head {
        let [first, second, master] = self.numbers.kept().map(|part| part.len() as u64);
        Head {
            state: state.clone(),
            rule: self.rule.clone(),
            dtype: self.dtype as u8,
            bytes: self.bytes as u64,
            kept: [first, second],
            master,
        }
    }
}

impl Storage {
    /// Bytes of an image of a chunk at most, whatever its rule becomes.
    pub fn image_bytes_max(&self, chunk: u32) -> Result<usize, StorageError> {
        let stored = self.stored(chunk)?;
        let elements = stored.bytes / stored.dtype.bytes();
        let numbers = 3 * elements * stored.dtype.of_sums().bytes();
        Ok(LEAD_BYTES + HEAD_BYTES_MAX + 2 * stored.bytes + numbers)
    }

    /// Writes a chunk's image over `out`: the engine's `state`, and weights from buffer `live`; those before, from the other
    /// one, where the state has them.
    pub fn save_image(
        &self,
        chunk: u32,
        state: &ChunkState,
        live: u8,
        out: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        let stored = self.stored(chunk)?;
        let head = encode(&stored.head(state)).map_err(|error| ImageError::Head(error.to_string()))?;
        let live = usize::from(live & 1);
        out.clear();
        out.extend(MAGIC);
        out.extend(FORM.to_le_bytes());
        out.extend([0; 2]);
        // Bounded by the workers there can be.
        out.extend((head.len() as u32).to_le_bytes());
        out.extend(head);
        out.extend_from_slice(&stored.weights[live]);
        if state.previous.is_some() {
            out.extend_from_slice(&stored.weights[1 - live]);
        }
        stored.numbers.kept().into_iter().for_each(|part| out.extend_from_slice(part));
        Ok(())
    }

    /// Does an image fit a chunk? Whether its state does is the engine's to say.
    pub fn check_image(&self, chunk: u32, image: &Image<'_>) -> Result<(), StorageError> {
        let stored = self.stored(chunk)?;
        let (want, want_bytes) = (stored.dtype, stored.bytes as u64);
        let (got, got_bytes) = (image.dtype, image.weights.len() as u64);
        let elements = stored.bytes / want.bytes();
        let array = |has: bool| if has { elements * want.of_sums().bytes() } else { 0 };
        let arrays = image.rule.arrays();
        let kept = image.kept.map(<[u8]>::len) == [array(arrays > 0), array(arrays > 1)];
        if (got, got_bytes) != (want, want_bytes) || !kept || image.master.len() != array(want.is_half()) {
            return Err(ImageError::Shape { got, got_bytes, want, want_bytes }.into());
        }
        if !image.rule.is_sound(want) {
            return Err(ImageError::Rule.into());
        }
        Ok(image.rule.rules().try_for_each(|rule| self.check_rule(rule))?)
    }

    /// Restores a chunk from an image. The weights are written to buffer `into`, and the weights of the version before to the other
    /// buffer. `keeps_other`: a worker reads the other buffer, so it is not written. If it has the weights of the image already, the
    /// weights stay there, and those of the version before are written to `into`. Returns the buffer of the weights, and whether the
    /// other one has those of the version before. Nothing changes on error.
    pub fn load_image(
        &mut self,
        chunk: u32,
        image: &Image<'_>,
        into: u8,
        keeps_other: bool,
    ) -> Result<(u8, bool), StorageError> {
        self.check_image(chunk, image)?;
        let stored = self.stored_mut(chunk)?;
        let other = 1 - (into & 1);
        let stays = keeps_other
            && image.previous.is_some()
            && stored.weights[usize::from(other)][..] == *image.weights;
        let live = if stays { other } else { into & 1 };
        let weights = &mut stored.weights;
        if !stays {
            weights[usize::from(live)].copy_from_slice(image.weights);
        }
        let previous = image.previous.filter(|_| stays || !keeps_other);
        if let Some(previous) = previous {
            weights[usize::from(1 - live)].copy_from_slice(previous);
        }
        let has_previous = previous.is_some();
        stored.rule = image.rule.clone();
        stored.numbers.begin(image.rule.arrays());
        let [first, second] = image.kept;
        let parts = stored.numbers.kept_mut().into_iter().zip([first, second, image.master]);
        // Their lengths are checked.
        parts.for_each(|(into, from)| into.copy_from_slice(from));
        Ok((live, has_previous))
    }
}

#[cfg(test)]
mod tests;
