//! Images of chunks as they come from other servers and out of checkpoints: read, and loaded into a chunk. Never a panic,
//! and no memory beyond what the chunk has.

use gradwire_server::engine::ChunkSpec;
use gradwire_server::storage::{Cells, Image, Storage};
use proto_common::codec::Codec;
use proto_common::element::Dtype;
use proto_common::ids::ChunkId;
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;
use std::cell::RefCell;

thread_local! {
    static STORAGE: RefCell<Storage> = RefCell::new(storage());
}

fn storage() -> Storage {
    let cells = || Cells::allocate(1, 4096, "fuzz").expect("memory");
    let mut storage = Storage::new(cells(), cells()).expect("memory");
    for (chunk, dtype) in [Dtype::F32, Dtype::Bf16, Dtype::I64].into_iter().enumerate() {
        let spec = ChunkSpec {
            id: ChunkId::new(1, chunk as u32),
            bytes: 64,
            dynamic: false,
            dtype,
            codec: Codec::Plain,
            optimizer: Optimizer::sum(),
            mode: Mode::Sync,
            backup_workers: 0,
        };
        storage.add(&spec).expect("memory");
    }
    storage
}

crate::target!(|data: &[u8]| {
    let Ok(image) = Image::read(data) else { return };
    STORAGE.with_borrow_mut(|storage| {
        for chunk in 0..3 {
            let _ = storage.load_image(chunk, &image, 0, false);
        }
    });
});
