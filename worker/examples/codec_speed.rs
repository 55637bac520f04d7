//! How fast each codec encodes and decodes here: GB/s of plain f32, by one thread, a 64 MiB gradient in chunks of 256 KiB,
//! the best of several passes. Encoding includes the error feedback. It measures and prints, and keeps nothing.
//!
//! `cargo run --release -p gradwire-worker --example codec_speed`

use fabric::simd::{Pass, widest};
use gradwire_worker::encoder::Encoder;
use proto_common::codec::{Codec, Compression, Malformed};
use proto_common::ids::{ChunkIndex, Rank};
use proto_common::limits::CHUNK_BYTES_DEFAULT;
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;
use std::io::Write;
use std::time::Instant;

const ELEMENTS: usize = 16 << 20;
const PASSES: u64 = 5;
const CODECS: [&str; 9] =
    ["f16", "bf16", "onebit", "twobit:0.5", "topk:0.01", "randomk:0.1", "dither:2", "dither:4", "dither:8"];

/// What a server does with one chunk: looks at it whole, then decodes it.
struct Take<'a> {
    codec: Codec,
    encoded: &'a [u8],
    into: &'a mut [f32],
    result: &'a mut Result<(), Malformed>,
}

impl Pass for Take<'_> {
    #[inline(always)]
    fn run(self) {
        *self.result = self.codec.check(self.into.len(), self.encoded);
        self.codec.decode(self.encoded, self.into);
    }
}

/// The best of several passes.
fn gb_per_s(mut pass: impl FnMut(u64)) -> f64 {
    let seconds = (0..=PASSES).map(|number| {
        let start = Instant::now();
        pass(number + 1);
        start.elapsed().as_secs_f64()
    });
    (ELEMENTS * size_of::<f32>()) as f64 / seconds.skip(1).fold(f64::INFINITY, f64::min) / 1e9
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = &mut std::io::stdout();
    let gradient: Vec<f32> = (0..ELEMENTS as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0)
        .collect();
    writeln!(out, "| codec | encode, GB/s | check and decode, GB/s | bytes of plain |")?;
    writeln!(out, "| --- | --- | --- | --- |")?;
    for name in CODECS {
        let codec: Codec = name.parse()?;
        let spec = TensorSpec::f32(1, ELEMENTS as u64, Optimizer::sum()).compressed(Compression::of(codec));
        let mut encoder =
            Encoder::new(&spec, CHUNK_BYTES_DEFAULT, Rank(0)).ok_or("a codec without encoder")?;
        let mut bytes = vec![0; encoder.bytes()];
        let encode = gb_per_s(|round| encoder.encode(&gradient, round, &mut bytes));
        let mut chunk = vec![0.0; CHUNK_BYTES_DEFAULT as usize / size_of::<f32>()];
        let mut result = Ok(());
        let decode = gb_per_s(|_| {
            for index in 0..ELEMENTS / chunk.len() {
                let encoded = &bytes[encoder.place(ChunkIndex(index as u32))];
                let mut one = Ok(());
                widest(Take { codec, encoded, into: &mut chunk, result: &mut one });
                result = result.and(one);
            }
        });
        result?;
        let share = 100.0 * bytes.len() as f64 / (ELEMENTS * size_of::<f32>()) as f64;
        writeln!(out, "| {name} | {encode:.1} | {decode:.1} | {share:.1} % |")?;
    }
    Ok(())
}
