//! Rows of 256 bytes, drawn by Zipf's law: pulled and pushed, beside a gather of the same rows out of this process's own
//! memory, which asks for rows ahead. That memory is of normal pages and of huge ones, as tables are.

use crate::stats::{quantile_sorted, sorted};
use fabric::Floats;
use fabric::simd::prefetch_row;
use gradwire_worker::{Client, Table};
use proto_common::optimizer::Optimizer;
use proto_common::table::{Initial, TableSpec, mix};
use std::time::Instant;

const WIDTH: usize = 64;
/// Rows of one request of the trainer's.
const DRAWS: usize = 64 << 10;
const LAPS: usize = 60;
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
        // Pulls make no rows.
        client.push_rows(&table, ids, &out[..ids.len() * WIDTH])?.wait()?;
    }
    let own = vec![1f32; rows * WIDTH];
    let mut huge = Floats::zeroed(rows * WIDTH, 0)?;
    huge.fill(1.0);
    let mut draws = Draws::new(rows);
    let mut rates: [Vec<f64>; 4] = Default::default();
    for _ in 0..LAPS {
        let ids: Vec<u64> = (0..DRAWS).map(|_| draws.next()).collect();
        let laps = [
            gather(&own, &ids, &mut out),
            gather(&huge, &ids, &mut out),
            pull(client, &table, &ids, &mut out)?,
            push(client, &table, &ids, &out)?,
        ];
        rates.iter_mut().zip(laps).for_each(|(rates, lap)| rates.push(lap));
    }
    let [normal, huge, pulled, pushed] = &rates;
    // Each lap beside its own gathers: what else the machine does then is the same for all.
    let beside = |rates: &[f64], gathered: &[f64]| {
        let [low, median, high] =
            quantiles(rates.iter().zip(gathered).map(|(rate, gathered)| rate / gathered));
        format!("{median:.2} x ({low:.2} to {high:.2})")
    };
    let told = |what: &str, rates: &[f64]| {
        let [_, median, _] = quantiles(rates.iter().copied());
        format!("{what} {median:.1} M/s: {}, from huge pages {}", beside(rates, normal), beside(rates, huge))
    };
    crate::report::progress(&format!(
        "{name:4} rows of {} bytes by Zipf's law, {rows} in the table, {DRAWS} at once, median (quartiles) of {LAPS}: gather {:.1} M/s, from huge pages {:.1}; {}; {}",
        WIDTH * size_of::<f32>(),
        quantiles(normal.iter().copied())[1],
        quantiles(huge.iter().copied())[1],
        told("pull", pulled),
        told("push", pushed),
    ));
    Ok(())
}

/// Quartiles and median.
fn quantiles(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let sorted = sorted(values);
    [0.25, 0.5, 0.75].map(|at| quantile_sorted(&sorted, at).unwrap_or(f64::NAN))
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
