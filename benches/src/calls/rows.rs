//! Rows of 256 bytes, drawn by Zipf's law: pulled and pushed, beside a gather of the same rows out of this process's own
//! memory, which asks for rows ahead.

use fabric::simd::prefetch_row;
use gradwire_worker::{Client, Table};
use proto_common::optimizer::Optimizer;
use proto_common::table::{Initial, TableSpec, mix};
use std::time::Instant;

const WIDTH: usize = 64;
/// Rows of one request of the trainer's.
const DRAWS: usize = 64 << 10;
const LAPS: usize = 12;
const AHEAD: usize = 12;
/// As YCSB has it (Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", section 5.3).
const ZIPF_EXPONENT: f64 = 0.99;

/// Draws by Zipf's law among `rows`, the same in each run; hot ones are spread over the table.
struct Draws {
    /// Of the first so many, the sum of their shares.
    sums: Vec<f64>,
    state: u64,
}

impl Draws {
    fn new(rows: usize) -> Self {
        let mut total = 0.0;
        let sums = (1..=rows).map(|place| {
            total += (place as f64).powf(-ZIPF_EXPONENT);
            total
        });
        Self { sums: sums.collect(), state: 1 }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(1);
        let total = self.sums.last().copied().unwrap_or(1.0);
        let draw = (mix(self.state) >> 11) as f64 / (1u64 << 53) as f64 * total;
        let place = self.sums.partition_point(|sum| *sum <= draw) as u64;
        mix(place) % self.sums.len() as u64
    }
}

pub(super) fn measure(client: &Client, name: &str, rows: usize) -> anyhow::Result<()> {
    let initial = Initial::Uniform { low: -0.1, high: 0.1, seed: 1 };
    let table = client.declare_table(&TableSpec::new(1, WIDTH as u32, Optimizer::sum(), initial))?;
    let mut out = vec![0f32; DRAWS * WIDTH];
    let all: Vec<u64> = (0..rows as u64).collect();
    for ids in all.chunks(DRAWS) {
        client.pull_rows(&table, ids, &mut out[..ids.len() * WIDTH])?;
    }
    let own = vec![1f32; rows * WIDTH];
    let mut draws = Draws::new(rows);
    let mut best = [0f64; 3];
    for _ in 0..LAPS {
        let ids: Vec<u64> = (0..DRAWS).map(|_| draws.next()).collect();
        let laps = [
            gather(&own, &ids, &mut out),
            pull(client, &table, &ids, &mut out)?,
            push(client, &table, &ids, &out)?,
        ];
        best.iter_mut().zip(laps).for_each(|(best, lap)| *best = best.max(lap));
    }
    let [gathered, pulled, pushed] = best;
    crate::report::progress(&format!(
        "{name:4} rows of {} bytes by Zipf's law, {rows} in the table, {DRAWS} at once: gather {gathered:.1} M/s, pull {pulled:.1} M/s ({:.2} x), push {pushed:.1} M/s ({:.2} x)",
        WIDTH * size_of::<f32>(),
        pulled / gathered,
        pushed / gathered
    ));
    Ok(())
}

fn rate(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64() / 1e6
}

fn gather(own: &[f32], ids: &[u64], out: &mut [f32]) -> f64 {
    let began = Instant::now();
    let row = |id: u64| &own[id as usize * WIDTH..][..WIDTH];
    for (at, to) in out.chunks_exact_mut(WIDTH).enumerate() {
        if let Some(id) = ids.get(at + AHEAD) {
            prefetch_row(row(*id));
        }
        to.copy_from_slice(row(ids[at]));
    }
    rate(ids.len(), began)
}

fn pull(client: &Client, table: &Table, ids: &[u64], out: &mut [f32]) -> anyhow::Result<f64> {
    let began = Instant::now();
    client.pull_rows(table, ids, out)?;
    Ok(rate(ids.len(), began))
}

fn push(client: &Client, table: &Table, ids: &[u64], values: &[f32]) -> anyhow::Result<f64> {
    let began = Instant::now();
    client.push_rows(table, ids, values)?.wait()?;
    Ok(rate(ids.len(), began))
}
