//! The model as a whole: engines, roster, links and cores together, small enough for every run of the tests.

use super::forms;
use super::loggp::{LogGp, Prices};
use super::registered;
use super::roster;
use super::shape::{Hosts, Shape, Work};
use super::world::{Outcome, World};

/// Costs that are near what sockets have.
fn model() -> LogGp {
    let prices = Prices::from_array([2_000.0, 1_000.0, 300.0, 0.2, 0.3, 0.1, 0.1]);
    LogGp { prices, jitter: 0.2, ..LogGp::round_numbers() }
}

fn run(shape: &Shape, model: LogGp, seed: u64) -> Outcome {
    World::new(shape, model, seed).and_then(World::run).unwrap_or_else(|error| panic!("{shape:?}: {error}"))
}

fn shape(workers: u32, servers: u32, chunks: u64) -> Shape {
    Shape { rounds: 3, ..Shape::cluster(workers, servers, chunks * (256 << 10)) }
}

#[test]
fn rounds_end_and_messages_are_those_of_the_closed_form() {
    for (workers, servers, chunks) in [(1, 1, 1), (2, 1, 5), (8, 3, 7), (40, 4, 16), (40, 10, 10)] {
        for is_deterministic in [false, true] {
            let shape = Shape { is_deterministic, ..shape(workers, servers, chunks) };
            let outcome = run(&shape, model(), 7);
            let (map, _) = roster::start(&shape).expect("starts");
            let form = forms::messages(&shape, &map);
            assert_eq!(form.worker_batches, chunks, "a slot holds a chunk");
            let counted = u64::from(workers) * (shape.rounds - 1);
            assert_eq!(outcome.retried, 0.0, "{shape:?}");
            assert_eq!(outcome.workers_sent.batches, counted * form.worker_batches, "{shape:?}");
            let all = u64::from(workers) * shape.rounds;
            assert_eq!(outcome.servers_sent.landings, all * form.worker_landings, "{shape:?}");
            assert!(outcome.servers_sent.batches <= all * (form.worker_landings + form.worker_batches));
            // A batch asks for credits; a worker without any asks once, and gives back what it cannot use.
            assert!(
                outcome.workers_sent.notices <= 2 * outcome.workers_sent.batches,
                "{shape:?}: {outcome:?}"
            );
        }
    }
}

#[test]
fn small_tensors_share_batches_as_the_closed_form_says() {
    let small = Shape { tensors: 300, tensor_bytes: 1024, ..shape(4, 2, 1) };
    let outcome = run(&small, model(), 3);
    let (map, _) = roster::start(&small).expect("starts");
    let form = forms::messages(&small, &map);
    assert!(form.worker_batches < 10, "{form:?}");
    assert_eq!(outcome.workers_sent.batches, 4 * 2 * form.worker_batches);
    assert_eq!(form.worker_landings, 300);
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_one_another() {
    let shape = shape(20, 4, 12);
    let first = run(&shape, model(), 5);
    assert_eq!(run(&shape, model(), 5), first);
    assert_ne!(run(&shape, model(), 6).trace, first.trace);
}

#[test]
fn registered_bytes_of_a_server_are_flat_in_workers_and_those_of_a_worker_grow_with_servers() {
    let server = |workers| registered::server_bytes(&shape(workers, 1, 1)).expect("a server");
    let flat = server(1);
    assert_eq!([server(10), server(1000)], [flat, flat]);
    let form = |workers, servers| forms::registered(&shape(workers, servers, 1));
    assert_eq!(form(1, 1).server, form(1000, 100).server);
    assert!(flat <= form(1, 1).server, "what peers reach is part of what is registered");
    let worker = |servers| registered::worker_bytes(&shape(1, servers, 1)).expect("a worker");
    assert_eq!(worker(100) - worker(1), form(1, 100).worker - form(1, 1).worker);
    assert_eq!(form(1000, 1).server_per_pair, 1000 * form(1, 1).server_per_pair);
}

#[test]
fn a_core_is_shared_and_a_link_is_no_faster_than_its_bytes() {
    let own = Shape { work: Work::Push, ..shape(4, 1, 8) };
    let prices = Prices { sent_byte: 1.0, ..Prices::default() };
    let bytes_only = LogGp { prices, wire_ns: 0.0, link_ns_per_byte: 0.0, ..LogGp::round_numbers() };
    // Four workers that all compute take one core four times as long as a core each.
    let on = |hosts| run(&Shape { hosts, ..own }, bytes_only, 1).round_ns;
    let (shared, alone) = (on(Hosts::Pinned { cores: 2 }), on(Hosts::Own));
    assert!(shared > 3.0 * alone, "{shared} and {alone}");
    // And a server on the same core takes its time from them.
    let reduced = LogGp { prices: Prices { reduced_byte: 1.0, ..prices }, ..bytes_only };
    let on = |cores| run(&Shape { hosts: Hosts::Pinned { cores }, ..own }, reduced, 1).round_ns;
    assert!(on(1) > 1.5 * on(2), "{} and {}", on(1), on(2));
    // Incast: what four workers push passes one link, one after the other.
    let least_ns = (4 * 8 * (256 << 10)) as f64;
    let outcome = run(&own, LogGp::round_numbers(), 1);
    assert!(outcome.round_ns >= least_ns, "{outcome:?}");
    assert!(outcome.round_ns < 1.3 * least_ns, "{outcome:?}");
}

#[test]
fn the_scheduler_hears_four_things_of_each_member() {
    let (_, said) = roster::start(&shape(50, 5, 10)).expect("starts");
    // Registration and links of all, a declaration of each worker, an assignment's answer of each server, and the answer of all to
    // the proposal of the roster.
    assert_eq!(said.to_scheduler, 3 * 55 + 50 + 5);
    // Welcome, roster, its proposal and the decision for all, an assignment for each server, an answer for each worker.
    assert_eq!(said.from_scheduler, 4 * 55 + 5 + 50);
}
