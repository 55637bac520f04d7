//! The hot kernels as the server runs them, out of a slot. Not through its storage, for whose address space valgrind has
//! no room. It must not count.

use fabric::PeerWritable;
use gradwire_server::kernel::{self, Bf16, Both, Contribution, Element, F16, Weights};
use proto_common::batch::{
    BatchHeader, BatchKind, BatchReader, BatchWriter, Block, BlockData, Count, OpKind, Reading, Status,
    payload_checksum,
};
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Epoch, Incarnation, JobId, Lane, Operation, Rank};
use proto_common::limits::{BLOCKS_PER_BATCH_MAX, TABLE_BYTES_MAX};
use proto_common::optimizer::{Adam, Optimizer};
use std::hint::black_box;

/// Elements of a chunk.
const ELEMENTS: u64 = 16 << 10;
/// Bytes of a slot that batches are for.
const SLOT_BYTES: u64 = 1 << 20;

/// One kernel.
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    /// What one round counts: elements, bytes or blocks.
    pub(crate) units: u64,
    /// So many rounds of it.
    pub(crate) run: fn(u32) -> anyhow::Result<()>,
}

const fn of_elements(name: &'static str, run: fn(u32) -> anyhow::Result<()>) -> Kernel {
    Kernel { name, units: ELEMENTS, run }
}

/// All that are counted.
pub(crate) const KERNELS: &[Kernel] = &[
    of_elements("reduce_f32", |rounds| reduce::<f32>(Dtype::F32, rounds)),
    of_elements("reduce_f16", |rounds| reduce::<F16>(Dtype::F16, rounds)),
    of_elements("reduce_bf16", |rounds| reduce::<Bf16>(Dtype::Bf16, rounds)),
    of_elements("reduce_i8", reduce_integers),
    of_elements("sgd_f32", |rounds| finish::<f32>(Dtype::F32, Optimizer::sgd(0.1, 0.0, 0.0), rounds)),
    of_elements("momentum_f32", |rounds| finish::<f32>(Dtype::F32, Optimizer::sgd(0.1, 0.9, 0.0), rounds)),
    of_elements("adam_f32", |rounds| finish::<f32>(Dtype::F32, adam(), rounds)),
    of_elements("sgd_f16", |rounds| finish::<F16>(Dtype::F16, Optimizer::sgd(0.1, 0.0, 0.0), rounds)),
    of_elements("sgd_bf16", |rounds| finish::<Bf16>(Dtype::Bf16, Optimizer::sgd(0.1, 0.0, 0.0), rounds)),
    Kernel { name: "checksum", units: 4 * ELEMENTS, run: checksum },
    Kernel { name: "batch_encode", units: BLOCKS_PER_BATCH_MAX as u64, run: encode },
    Kernel { name: "batch_decode", units: BLOCKS_PER_BATCH_MAX as u64, run: decode },
];

fn adam() -> Optimizer {
    Optimizer::mean(Adam::default(), 1e-3)
}

/// A contribution as it lies in a slot.
fn slot(dtype: Dtype) -> anyhow::Result<PeerWritable> {
    let bytes = ELEMENTS as usize * dtype.bytes();
    let region = PeerWritable::allocate(bytes, "count-slot")?;
    // Bytes that are small numbers of every type.
    region.write(0, &vec![0x11; bytes])?;
    Ok(region)
}

/// sum += contribution.
fn reduce<E: Element<Sum = f32>>(dtype: Dtype, rounds: u32) -> anyhow::Result<()> {
    let (slot, mut sum) = (slot(dtype)?, vec![0.5f32; ELEMENTS as usize]);
    for _ in 0..rounds {
        kernel::add(&mut sum, Contribution::<E>(slot.numbers(0, ELEMENTS as usize)?));
    }
    black_box(sum);
    Ok(())
}

fn reduce_integers(rounds: u32) -> anyhow::Result<()> {
    let (slot, mut sum) = (slot(Dtype::I8)?, vec![5i64; ELEMENTS as usize]);
    for _ in 0..rounds {
        let fits = kernel::fold_integers(&mut sum, slot.numbers::<i8>(0, ELEMENTS as usize)?, false);
        anyhow::ensure!(fits, "small sums fit");
    }
    black_box(sum);
    Ok(())
}

/// The last of two contributions with the update.
fn finish<E: Element<Sum = f32>>(dtype: Dtype, optimizer: Optimizer, rounds: u32) -> anyhow::Result<()> {
    let (slot, count) = (slot(dtype)?, ELEMENTS as usize);
    let (sum, mut weights, mut new) = (vec![0.5f32; count], vec![0.25f32; count], vec![E::round(0.0); count]);
    let mut state = [0, 1].map(|i| vec![0.0f32; if i < optimizer.state_arrays() { count } else { 0 }]);
    for number in 1..=u64::from(rounds) {
        let last = Both(Contribution::<E>(slot.numbers(0, count)?), &sum[..]);
        let [first, second] = &mut state;
        let (step, state) = (optimizer.step(number, 2), [&mut first[..], &mut second[..]]);
        if dtype == Dtype::F32 {
            kernel::update(&step, last, Weights::<f32>::InPlace(&mut weights), state);
        } else {
            kernel::update(&step, last, Weights::Rounded { master: &mut weights, new: &mut new }, state);
        }
    }
    black_box((weights, new));
    Ok(())
}

/// Of a payload, in blocks as storage reads it.
fn checksum(rounds: u32) -> anyhow::Result<()> {
    let block = vec![0x11; 16 << 10];
    for _ in 0..rounds {
        let mut sum = 0;
        for _ in 0..4 {
            sum = payload_checksum(sum, black_box(&block));
        }
        black_box(sum);
    }
    Ok(())
}

fn block(index: u32) -> Block {
    Block {
        id: ChunkId::new(7, index),
        op: OpKind::Push,
        dtype: Dtype::F32,
        codec: 0,
        status: Status::None,
        operation: Operation(3),
        first_open: Operation(1),
        exact: false,
        count: Count::Round(3),
        bytes: 64,
        data: BlockData::Inline { offset: 0 },
        landing: None,
        view: false,
        reading: Reading::default(),
        timeout_ms: 1_000,
        token: 5,
    }
}

fn batch(prefix: &mut [u8]) -> anyhow::Result<usize> {
    let mut writer = BatchWriter::new(prefix, SLOT_BYTES)?;
    for index in 0..BLOCKS_PER_BATCH_MAX as u32 {
        anyhow::ensure!(writer.push(black_box(block(index))), "a batch takes as many blocks as it can have");
    }
    Ok(writer.finish(BatchHeader {
        kind: BatchKind::Request,
        lane: Lane(0),
        wanted: 0,
        sender: Rank(0),
        job: JobId(1),
        epoch: Epoch { term: 1, counter: 1 },
        sender_incarnation: Incarnation(1),
        receiver_incarnation: Incarnation(2),
        sequence: 1,
        payload_offset: 0,
        payload_bytes: 0,
        payload_checksum: None,
    }))
}

fn encode(rounds: u32) -> anyhow::Result<()> {
    let mut prefix = vec![0; TABLE_BYTES_MAX];
    for _ in 0..rounds {
        black_box(batch(&mut prefix)?);
    }
    Ok(())
}

fn decode(rounds: u32) -> anyhow::Result<()> {
    let (mut prefix, mut reader) = (vec![0; TABLE_BYTES_MAX], BatchReader::default());
    let bytes = batch(&mut prefix)?;
    for _ in 0..rounds {
        black_box(reader.read(black_box(&prefix[..bytes]), SLOT_BYTES)?);
    }
    Ok(())
}
