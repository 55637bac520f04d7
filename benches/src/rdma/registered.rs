//! How much memory is registered: by a server with few and many workers, and after many reconnections.
//!
//! It must not judge what it finds.

use super::channel::Pair;
use super::device;
use crate::gradwire::start_daemons;
use crate::gradwire::worker::settings;
use crate::report::{self, Row};
use crate::stats;
use anyhow::Context as _;
use gradwire_worker::Client;
use proto_common::config::Settings;
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long all workers together may take to connect and to do one round.
const READY_DEADLINE: Duration = Duration::from_secs(180);
/// How long a daemon may take to answer a scrape.
const SCRAPE_DEADLINE: Duration = Duration::from_secs(10);
const TENSOR_BYTES: u64 = 64 << 10;

/// Both. With slots only the inbox counts, which all workers share; what the plan gives some tensors beside it comes out of
/// the spill area's budget.
pub(super) fn measure(quick: bool) -> anyhow::Result<Vec<Row>> {
    let counts: &[u32] = if quick { &[1, 8] } else { &[1, 8, 64] };
    let mut rows = Vec::new();
    for placement in ["slot", "auto"] {
        for count in counts {
            rows.extend(with_workers(*count, placement)?);
        }
    }
    rows.extend(reconnections(if quick { 50 } else { 1000 })?);
    report::progress(report::table(&rows).trim_end());
    Ok(rows)
}

fn row(name: &str, registered_bytes: u64) -> Row {
    Row {
        name: name.to_owned(),
        device: Some(device().to_owned()),
        transport: Some("verbs".to_owned()),
        registered_bytes: Some(registered_bytes),
        ..Row::default()
    }
}

/// Memory as it is with many workers on a small machine; the same for each number of them.
const SMALL: [&str; 4] = [
    "cluster.chunk_bytes=65536",
    "memory.spill_bytes=4194304",
    "memory.pool_bytes=1048576",
    // Two CPUs cannot spin for 64 workers.
    "memory.spin_us=0",
];

/// A server and so many workers, each of which has done one round.
fn with_workers(count: u32, placement: &str) -> anyhow::Result<Vec<Row>> {
    let mut small = SMALL.map(str::to_owned).to_vec();
    small.push(format!("transport.placement={placement}"));
    let (of_server, of_worker) = (free_address()?, free_address()?);
    let daemons = start_daemons("verbs", (1, count), &small, &of_server.to_string(), None)?;
    let worker = |rank| -> anyhow::Result<Settings> {
        let mut settings = settings(&daemons.scheduler, "verbs", rank, &small)?;
        if rank == 0 {
            settings.node.http = of_worker.to_string();
        }
        Ok(settings)
    };
    let all = (0..count).map(worker).collect::<anyhow::Result<Vec<_>>>()?;
    let (joined, clients) = mpsc::channel();
    for settings in all {
        let joined = joined.clone();
        // Nobody listens any more where the deadline has passed.
        std::thread::spawn(move || drop(joined.send(one_round(settings))));
    }
    let until = Instant::now() + READY_DEADLINE;
    let mut ready = Vec::new();
    for _ in 0..count {
        let left = until.saturating_duration_since(Instant::now());
        ready.push(clients.recv_timeout(left).context("workers did not get ready in time")??);
    }
    let (server, worker) = (scrape(of_server)?, scrape(of_worker)?);
    for client in ready {
        client.close();
    }
    let placement = Some(placement.to_owned());
    let named = |name, bytes| {
        let placement = placement.clone();
        Row { workers: Some(count), servers: Some(1), placement, ..row(name, bytes) }
    };
    Ok(vec![named("registered_server", server), named("registered_worker", worker)])
}

fn one_round(settings: Settings) -> anyhow::Result<Client> {
    let client = Client::connect(settings)?;
    let tensor = client.declare(&[TensorSpec::f32(1, TENSOR_BYTES / 4, Optimizer::sum())])?.remove(0);
    let (gradient, weights) = (client.allocate(TENSOR_BYTES)?, client.allocate(TENSOR_BYTES)?);
    client.push_pull(&tensor, gradient, weights, 0)?.wait()?;
    Ok(client)
}

/// An address that nobody listens at now.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// What a daemon says about its registered memory.
fn scrape(address: SocketAddr) -> anyhow::Result<u64> {
    let mut stream = TcpStream::connect_timeout(&address, SCRAPE_DEADLINE)?;
    stream.set_read_timeout(Some(SCRAPE_DEADLINE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    gauge(&text).with_context(|| format!("{address} tells of no registered memory"))
}

fn gauge(text: &str) -> Option<u64> {
    let value =
        text.lines().find_map(|line| line.strip_prefix("gradwire_registered_bytes")?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

/// A channel that is connected, written over and closed, again and again.
fn reconnections(count: u64) -> anyhow::Result<Vec<Row>> {
    let mut pair = Pair::start(1 << 20)?;
    let mut cycle = || -> anyhow::Result<((u64, u64), f64)> {
        let started = Instant::now();
        pair.connect()?;
        pair.write_once()?;
        let registered = pair.close()?;
        Ok((registered, started.elapsed().as_secs_f64() * 1e6))
    };
    let (first, _) = cycle()?;
    let (mut last, mut times_us) = (first, Vec::new());
    for _ in 1..count {
        let (registered, took_us) = cycle()?;
        last = registered;
        times_us.push(took_us);
    }
    let times_us = stats::sorted(times_us);
    let told = |repeats, (ours, theirs): (u64, u64)| Row {
        repeats: Some(repeats),
        ..row("reconnect", ours + theirs)
    };
    let after = Row {
        p50_us: stats::quantile_sorted(&times_us, 0.5),
        p99_us: stats::quantile_sorted(&times_us, 0.99),
        ..told(count, last)
    };
    Ok(vec![told(1, first), after])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gauge_is_read_and_not_its_help() {
        let text = "# HELP gradwire_registered_bytes Bytes.\n# TYPE gradwire_registered_bytes gauge\r\ngradwire_registered_bytes 4096\r\n";
        assert_eq!(gauge(text), Some(4096));
        assert_eq!(gauge("gradwire_registered_bytes_more 1\n"), None);
    }
}
