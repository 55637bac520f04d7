//! What the machine's memory allows for push_pull over shared memory. A copy reads and writes each byte once, and its speed counts the byte
//! once. Push and pull of a byte move more: in a view, the server reads the gradient and the weights, and writes the weights (3); landed,
//! the worker's copy reads and writes them again (5). Throughput counts a byte in both directions. So the bound is 4/3 of the speed of one
//! copy for a view, which the server's core makes alone, and 4/5 of that of two copies at the same time for landed weights, which the cores of
//! server and worker share.

use crate::report::Row;

/// Smaller works are in the caches of the machine, and may exceed these bounds.
const BYTES_MIN: u64 = 128 << 20;

/// Adds the ratios to the bounds, from the speeds of one copy and of two copies at the same time.
pub(super) fn beside_bounds(rows: &mut [Row], (one, two): (f64, f64)) {
    for row in rows.iter_mut().filter(|row| (row.workers, row.servers) == (Some(1), Some(1))) {
        let bytes = row.bytes.zip(row.tensors).map(|(bytes, tensors)| bytes * u64::from(tensors));
        let bound = match row.transport.as_deref() {
            Some("shm_view") => 4.0 * one / 3.0,
            Some("shm") => 4.0 * two / 5.0,
            _ => continue,
        };
        if row.model_bytes.or(bytes).is_some_and(|bytes| bytes >= BYTES_MIN) {
            row.ratio_to_bound = row.gb_per_s.map(|speed| speed / bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(transport: &str, model_bytes: u64) -> Row {
        let (transport, gb_per_s) = (Some(transport.to_owned()), Some(6.0));
        Row {
            transport,
            gb_per_s,
            model_bytes: Some(model_bytes),
            workers: Some(1),
            servers: Some(1),
            ..Row::default()
        }
    }

    #[test]
    fn large_works_over_shared_memory_have_a_bound() {
        let mut rows =
            [row("shm_view", BYTES_MIN), row("shm", BYTES_MIN), row("tcp", BYTES_MIN), row("shm", 1 << 20)];
        beside_bounds(&mut rows, (9.0, 10.0));
        assert_eq!(rows.map(|row| row.ratio_to_bound), [Some(0.5), Some(0.75), None, None]);
    }
}
