//! IDX, MNIST's format: a file of images (unsigned bytes, 2 to 4 axes) and a file of labels (one axis).
//!
//! The header is big-endian: two zero bytes, type 8, number of axes, then a u32 length per axis.

use std::io::Read;
use std::path::Path;

use super::dataset::{Dataset, MAX_ROWS, MAX_VALUES, Shape, open, read_failed, too_many_rows};
use crate::error::TrainError;

/// First three bytes of a file of unsigned bytes.
pub(super) const UNSIGNED_BYTES: [u8; 3] = [0, 0, 8];
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads the pair of files.
pub fn read(images: &Path, labels: &Path, shape: Shape) -> Result<Dataset, TrainError> {
    read_pair((images, open(images)?), (labels, open(labels)?), shape)
}

/// As [`read`], from readers; the paths are for error messages.
pub fn read_pair(
    (images, image_reader): (&Path, impl Read),
    (labels, label_reader): (&Path, impl Read),
    shape: Shape,
) -> Result<Dataset, TrainError> {
    let (image_axes, pixels) = read_bytes(images, image_reader, 2..=4)?;
    let (_, classes) = read_bytes(labels, label_reader, 1..=1)?;
    let width: usize = image_axes[1..].iter().product();
    let rows = image_axes[0];
    if width != shape.features {
        let cause = format!("images have {width} pixels, the network takes {}", shape.features);
        return Err(TrainError::file(images, cause, format!("begin --layers with {width}")));
    }
    if classes.len() != rows {
        let cause = format!("{} labels for {rows} images of {}", classes.len(), images.display());
        return Err(TrainError::file(labels, cause, "give the two files of one pair"));
    }
    let mut data = Dataset::new(shape);
    for (row, (pixels, &class)) in pixels.chunks_exact(width).zip(&classes).enumerate() {
        if usize::from(class) >= shape.classes {
            let cause = format!("label {class} of row {row} is not below {}", shape.classes);
            return Err(TrainError::file(labels, cause, "end --layers with the number of classes"));
        }
        data.push(pixels.iter().map(|p| f32::from(*p)), u32::from(class));
    }
    Ok(data)
}

/// Axis lengths and body of one file. The body is read only after its size was checked.
fn read_bytes(
    file: &Path,
    mut reader: impl Read,
    axes: std::ops::RangeInclusive<u8>,
) -> Result<(Vec<usize>, Vec<u8>), TrainError> {
    let mut magic = [0u8; 4];
    reader.read_exact(&mut magic).map_err(|e| cut_short(file, e))?;
    if magic[..2] == GZIP {
        return Err(TrainError::file(file, "the file is compressed", "run gunzip on it"));
    }
    if magic[..3] != UNSIGNED_BYTES || !axes.contains(&magic[3]) {
        let wanted = format!("0x000008{:02x} to 0x000008{:02x}", axes.start(), axes.end());
        let cause = format!("begins with 0x{:08x}, wanted {wanted}", u32::from_be_bytes(magic));
        return Err(TrainError::file(
            file,
            cause,
            "give images to --data and labels to --labels, both of bytes",
        ));
    }
    let mut lengths = Vec::new();
    let mut bytes = 1usize;
    for _ in 0..magic[3] {
        let mut length = [0u8; 4];
        reader.read_exact(&mut length).map_err(|e| cut_short(file, e))?;
        let length = u32::from_be_bytes(length) as usize;
        lengths.push(length);
        bytes = bytes.saturating_mul(length);
    }
    if bytes > MAX_VALUES || lengths[0] > MAX_ROWS {
        return Err(too_many_rows(file));
    }
    if bytes == 0 {
        return Err(TrainError::file(file, "an axis has length 0", "give a file with at least one row"));
    }
    let mut body = Vec::new();
    reader.take(bytes as u64 + 1).read_to_end(&mut body).map_err(|e| read_failed(file, e))?;
    if body.len() != bytes {
        let found = if body.len() > bytes { "more".to_owned() } else { body.len().to_string() };
        let cause = format!("the header promises {bytes} bytes after it, there are {found}");
        return Err(TrainError::file(file, cause, "fetch the file again"));
    }
    Ok((lengths, body))
}

fn cut_short(file: &Path, error: std::io::Error) -> TrainError {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        return TrainError::file(file, "the file ends within its header", "fetch the file again");
    }
    read_failed(file, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { features: 4, classes: 3 };

    fn idx(axes: &[u32], body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, axes.len() as u8];
        axes.iter().for_each(|a| bytes.extend(a.to_be_bytes()));
        bytes.extend(body);
        bytes
    }

    fn pair(images: &[u8], labels: &[u8]) -> Result<Dataset, TrainError> {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("images"), dir.path().join("labels"));
        std::fs::write(&a, images).unwrap();
        std::fs::write(&b, labels).unwrap();
        read(&a, &b, SHAPE)
    }

    fn error(images: &[u8], labels: &[u8]) -> String {
        pair(images, labels).unwrap_err().to_string()
    }

    #[test]
    fn a_good_pair_is_read() {
        let data = pair(&idx(&[2, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 255]), &idx(&[2], &[0, 2])).unwrap();
        assert_eq!((data.len(), data.label(1)), (2, 2));
        assert_eq!(data.features(1), [5.0, 6.0, 7.0, 255.0]);
    }

    #[test]
    fn bad_pairs_are_refused_with_cause() {
        let images = idx(&[2, 2, 2], &[0; 8]);
        let labels = idx(&[2], &[0, 1]);
        assert!(error(&images[..6], &labels).contains("within its header"));
        assert!(error(&idx(&[2, 2, 2], &[0; 7]), &labels).contains("there are 7"));
        assert!(error(&idx(&[2, 2, 2], &[0; 9]), &labels).contains("there are more"));
        assert!(error(&images, &idx(&[1], &[0])).contains("1 labels for 2 images"));
        assert!(error(&images, &idx(&[2], &[0, 3])).contains("label 3 of row 1"));
        assert!(error(&idx(&[2, 3], &[0; 6]), &labels).contains("3 pixels"));
        assert!(error(&labels, &images).contains("wanted"));
        assert!(error(&[0x1f, 0x8b, 8, 0], &labels).contains("gunzip"));
        assert!(error(&idx(&[0, 2, 2], &[]), &labels).contains("length 0"));
    }

    #[test]
    fn a_header_that_lies_about_its_size_reserves_nothing() {
        let huge = idx(&[u32::MAX, u32::MAX, u32::MAX], &[]);
        assert!(error(&huge, &idx(&[2], &[0, 1])).contains("more than"));
    }
}
