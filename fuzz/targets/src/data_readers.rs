//! The trainer's data readers: any bytes are refused, or give rows that fit the shape; never a panic, and no
//! memory that the input does not pay for. The first byte chooses format and shape.

use gradwire_trainer::TrainError;
use gradwire_trainer::data::{Dataset, Shape, csv, idx, libsvm};
use std::path::Path;

crate::target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    let shape =
        Shape { features: 1 + usize::from(choice >> 2 & 3), classes: 1 + usize::from(choice >> 4 & 3) };
    let read = match choice & 3 {
        0 => {
            let label_column = (choice & 64 != 0).then_some(usize::from(choice >> 4));
            csv::read(
                Path::new("rows.csv"),
                bytes,
                shape,
                &csv::Options { header: choice & 128 != 0, label_column },
            )
        }
        1 => libsvm::read(
            Path::new("rows.svm"),
            bytes,
            shape,
            (choice & 64 != 0).then_some(u32::from(choice >> 7)),
        ),
        _ => pair(*choice, bytes, shape),
    };
    match read {
        Ok(data) => check(&data, shape, bytes.len()),
        Err(error) => assert!(error.to_string().len() < 2_000, "errors stay readable"),
    }
});

/// The first byte says how many bytes the labels have. Half of the inputs get good headers.
fn pair(choice: u8, bytes: &[u8], shape: Shape) -> Result<Dataset, TrainError> {
    let Some((labels, bytes)) = bytes.split_first() else { return Ok(Dataset::new(shape)) };
    let (labels, images) = bytes.split_at(bytes.len().min(usize::from(*labels)));
    let (mut image_file, mut label_file) = (Vec::new(), Vec::new());
    if choice & 64 != 0 {
        let rows = (images.len() / shape.features) as u32;
        image_file.extend([0, 0, 8, 2]);
        image_file.extend(rows.to_be_bytes());
        image_file.extend((shape.features as u32).to_be_bytes());
        label_file.extend([0, 0, 8, 1]);
        label_file.extend((labels.len() as u32).to_be_bytes());
    }
    image_file.extend(images);
    label_file.extend(labels);
    idx::read_pair((Path::new("images"), &image_file[..]), (Path::new("labels"), &label_file[..]), shape)
}

fn check(data: &Dataset, shape: Shape, input_bytes: usize) {
    assert_eq!(data.shape(), shape);
    assert!(data.len() <= input_bytes, "a row costs at least a byte");
    for row in 0..data.len() as u32 {
        assert_eq!(data.features(row).len(), shape.features);
        assert!(data.features(row).iter().all(|value| value.is_finite()));
        assert!((data.label(row) as usize) < shape.classes);
    }
    let (train, test) = data.split(3);
    assert_eq!(train.len() + test.len(), data.len());
}
