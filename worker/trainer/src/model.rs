//! Models on disk (safetensors) and their fingerprint.
//!
//! Owns the file's keys and checks; written whole or not at all. Momentum is not in it: it lives on the servers.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::error::TrainError;
use crate::exchange::NamedTensor;
use crate::layers::{Layers, MAX_PARAMETERS};

/// Largest model file: all parameters the bounds allow, and a header.
const MAX_FILE_BYTES: u64 = 4 * MAX_PARAMETERS as u64 + (64 << 20);
/// Value of the key `format` in the metadata.
const FORMAT: &str = "gradwire-mlp-1";

/// A trained network with what is needed to go on training or to evaluate it.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Its shape.
    pub layers: Layers,
    /// Seed of initial weights and row order.
    pub seed: u64,
    /// Epochs trained so far.
    pub epochs_done: u32,
    /// Features were divided by this.
    pub scale: f32,
    /// Every how many rows one was held out; 0 where a separate test file was used.
    pub test_every: u32,
    /// For the record: batch, lr and the like. Not read back.
    pub notes: Vec<(String, String)>,
    /// Tensor i at index i.
    pub tensors: Vec<NamedTensor>,
}

/// SHA-256 over the little-endian f32 bytes of all tensors in index order, as hexadecimal digits.
pub fn weights_sha256<'a>(tensors: impl IntoIterator<Item = &'a [f32]>) -> String {
    let mut hash = Context::new(&SHA256);
    for values in tensors {
        for block in values.chunks(4096) {
            hash.update(&bytes(block));
        }
    }
    hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Writes `model` to `file`: readers see the old file or the whole new one.
pub fn save(file: &Path, model: &Model) -> Result<(), TrainError> {
    let mut notes: HashMap<String, String> = model.notes.iter().cloned().collect();
    notes.extend([
        ("format".into(), FORMAT.into()),
        ("layers".into(), model.layers.to_string()),
        ("seed".into(), model.seed.to_string()),
        ("epochs_done".into(), model.epochs_done.to_string()),
        ("scale".into(), model.scale.to_string()),
        ("test_every".into(), model.test_every.to_string()),
    ]);
    let bodies: Vec<Vec<u8>> = model.tensors.iter().map(|t| bytes(&t.values)).collect();
    let views: Result<Vec<_>, _> = (model.tensors.iter().zip(&bodies))
        .map(|(t, body)| {
            TensorView::new(Dtype::F32, t.shape.clone(), body).map(|view| (t.name.as_str(), view))
        })
        .collect();
    let encoded = views.and_then(|views| safetensors::serialize(views, Some(notes)));
    let encoded = encoded.map_err(|e| write_failed(file, std::io::Error::other(e)))?;
    write_atomic(file, &encoded)
}

/// The file beside `file` that is written first.
fn temporary_of(file: &Path) -> Result<PathBuf, TrainError> {
    let name = file.file_name().ok_or_else(|| write_failed(file, std::io::ErrorKind::InvalidInput.into()))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    Ok(file.with_file_name(temporary))
}

/// Can `file` be written when the time has come? Better asked before hours of training than after.
pub fn check_writable(file: &Path) -> Result<(), TrainError> {
    if file.is_dir() {
        return Err(write_failed(file, std::io::ErrorKind::IsADirectory.into()));
    }
    let temporary = temporary_of(file)?;
    let tried = File::create(&temporary).and_then(|_| std::fs::remove_file(&temporary));
    tried.map_err(|error| write_failed(file, error))
}

/// Writes a file beside `file`, flushes it to disk and renames it.
pub fn write_atomic(file: &Path, contents: &[u8]) -> Result<(), TrainError> {
    let temporary = temporary_of(file)?;
    let write = || {
        let mut new = File::create(&temporary)?;
        new.write_all(contents)?;
        new.sync_all()?;
        std::fs::rename(&temporary, file)?;
        // The rename itself must survive a power cut, too.
        let parent = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()
    };
    write().map_err(|error| {
        // The first error is the one to report; the rest may not even exist.
        let _ = std::fs::remove_file(&temporary);
        write_failed(file, error)
    })
}

fn write_failed(file: &Path, source: std::io::Error) -> TrainError {
    TrainError::Write { file: file.to_owned(), source }
}

/// Reads a model that [`save`] wrote and checks that every tensor fits its layers.
pub fn load(file: &Path) -> Result<Model, TrainError> {
    let opened = File::open(file).map_err(|source| TrainError::Open { file: file.to_owned(), source })?;
    let mut contents = Vec::new();
    let read = opened.take(MAX_FILE_BYTES + 1).read_to_end(&mut contents);
    read.map_err(|source| TrainError::Read { file: file.to_owned(), source })?;
    if contents.len() as u64 > MAX_FILE_BYTES {
        return Err(bad(file, format!("larger than {MAX_FILE_BYTES} bytes")));
    }
    decode(&contents).map_err(|cause| bad(file, cause))
}

fn bad(file: &Path, cause: String) -> TrainError {
    TrainError::file(file, cause, "give a model that `gradwire-worker train --save` wrote")
}

fn decode(contents: &[u8]) -> Result<Model, String> {
    let (_, header) =
        SafeTensors::read_metadata(contents).map_err(|e| format!("not a safetensors file ({e})"))?;
    let file = SafeTensors::deserialize(contents).map_err(|e| format!("not a safetensors file ({e})"))?;
    let mut notes = header.metadata().clone().unwrap_or_default();
    if notes.remove("format").as_deref() != Some(FORMAT) {
        return Err(format!("its metadata lack format = {FORMAT}"));
    }
    let layers: Layers = take(&mut notes, "layers")?;
    if file.len() != layers.tensors() {
        return Err(format!("{} tensors where layers {layers} have {}", file.len(), layers.tensors()));
    }
    let tensors = (0..layers.tensors()).map(|i| tensor(&file, &layers, i)).collect::<Result<_, _>>()?;
    let scale: f32 = take(&mut notes, "scale")?;
    if !(scale.is_finite() && scale > 0.0) {
        return Err(format!("scale {scale} in its metadata is not above 0"));
    }
    let (seed, epochs_done) = (take(&mut notes, "seed")?, take(&mut notes, "epochs_done")?);
    let test_every = take(&mut notes, "test_every")?;
    let mut notes: Vec<(String, String)> = notes.into_iter().collect();
    notes.sort();
    Ok(Model { layers, seed, epochs_done, scale, test_every, notes, tensors })
}

fn take<T: std::str::FromStr>(notes: &mut HashMap<String, String>, key: &str) -> Result<T, String> {
    let value = notes.remove(key).ok_or_else(|| format!("its metadata lack {key}"))?;
    value.parse().map_err(|_| format!("{key} = `{value:.40}` in its metadata does not parse"))
}

fn tensor(file: &SafeTensors<'_>, layers: &Layers, i: usize) -> Result<NamedTensor, String> {
    let (name, shape) = layers.tensor(i);
    let view = file.tensor(&name).map_err(|_| format!("it has no tensor {name}"))?;
    if view.dtype() != Dtype::F32 || view.shape() != shape {
        return Err(format!("{name} is {:?} {:?}, wanted F32 {shape:?}", view.dtype(), view.shape()));
    }
    let quads = view.data().chunks_exact(4);
    let values: Vec<f32> = quads.map(|q| f32::from_le_bytes([q[0], q[1], q[2], q[3]])).collect();
    Ok(NamedTensor { name, shape, values })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let layers: Layers = "3,4,2".parse().unwrap();
        let tensors = layers.initial(1);
        let notes = vec![("batch".to_owned(), "8".to_owned()), ("lr".to_owned(), "0.1".to_owned())];
        Model { layers, seed: 1, epochs_done: 7, scale: 16.0, test_every: 5, notes, tensors }
    }

    #[test]
    fn save_and_load_round_trip_and_replace() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m.safetensors");
        std::fs::write(&file, b"old").unwrap();
        save(&file, &model()).unwrap();
        assert_eq!(load(&file).unwrap(), model());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn damaged_and_foreign_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m.safetensors");
        save(&file, &model()).unwrap();
        let whole = std::fs::read(&file).unwrap();
        assert!(decode(&whole[..whole.len() - 1]).is_err());
        assert!(decode(b"").is_err());
        let foreign = safetensors::serialize(Vec::<(&str, TensorView<'_>)>::new(), None).unwrap();
        assert!(decode(&foreign).unwrap_err().contains("lack format"));
        let mut wrong = model();
        wrong.layers = "3,5,2".parse().unwrap();
        save(&file, &wrong).unwrap();
        assert!(load(&file).unwrap_err().to_string().contains("wanted F32 [5, 3]"));
        assert!(matches!(load(&dir.path().join("none")), Err(TrainError::Open { .. })));
    }

    #[test]
    fn a_directory_that_is_not_there_is_a_write_error() {
        for unwritable in ["/nowhere/m", "/tmp", "/"] {
            assert!(
                matches!(check_writable(Path::new(unwritable)), Err(TrainError::Write { .. })),
                "{unwritable}"
            );
            assert!(
                matches!(save(Path::new(unwritable), &model()), Err(TrainError::Write { .. })),
                "{unwritable}"
            );
        }
    }

    #[test]
    fn the_fingerprint_is_stable_and_sees_every_bit() {
        // sha256 of the bytes 00 00 80 3f 00 00 00 c0.
        let known = weights_sha256([&[1.0f32][..], &[-2.0][..]]);
        assert_eq!(known, "ee4ac73c2bd27756ab82780f27c73a7bc4d3f0bb6acb37e008bc27eccd7e588b");
        assert_ne!(known, weights_sha256([&[-2.0f32][..], &[1.0][..]]));
        assert_ne!(weights_sha256([&[0.0f32][..]]), weights_sha256([&[-0.0f32][..]]));
    }
}
