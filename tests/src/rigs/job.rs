//! Clients of a cluster in this process: several of them, in rank order.

use super::cluster::Cluster;
use gradwire_worker::{Client, ClientError};
use proto_common::config::Settings;
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;
use proto_common::transport::{Driver, Policies};

/// Connects as many clients as there are editors of settings, with the ranks 0, 1, ….
pub fn try_join(cluster: &Cluster, edits: &[&dyn Fn(&mut Settings)]) -> Vec<Result<Client, ClientError>> {
    let with_rank = |(rank, edit): (usize, &&dyn Fn(&mut Settings))| {
        let mut settings = cluster.settings();
        settings.node.rank = Some(rank as u32);
        edit(&mut settings);
        settings
    };
    let settings: Vec<Settings> = edits.iter().enumerate().map(with_rank).collect();
    std::thread::scope(|scope| {
        let joining: Vec<_> =
            settings.into_iter().map(|settings| scope.spawn(|| Client::connect(settings))).collect();
        joining.into_iter().map(|thread| thread.join().expect("connecting does not panic")).collect()
    })
}

/// As [`try_join`] with one edit for all; fails the test where a client cannot connect.
pub fn join(cluster: &Cluster, workers: u32, edit: impl Fn(&mut Settings)) -> Vec<Client> {
    let edits: Vec<&dyn Fn(&mut Settings)> = (0..workers).map(|_| &edit as _).collect();
    let clients = try_join(cluster, &edits);
    clients.into_iter().map(|client| client.unwrap_or_else(|error| panic!("joining: {error}"))).collect()
}

/// Requires a driver.
#[must_use]
pub fn only(driver: Driver) -> Policies {
    Policies::only(driver)
}

/// A tensor whose value after a round is the sum of what was pushed.
#[must_use]
pub fn summed(key: u64, elements: u64) -> TensorSpec {
    TensorSpec::f32(key, elements, Optimizer::assign())
}

/// All clients declare the same tensors.
pub fn declare(clients: &[Client], specs: &[TensorSpec]) {
    for client in clients {
        client.declare(specs).unwrap_or_else(|error| panic!("declaring: {error}"));
    }
}

/// One round of a declared tensor with every client, rank r pushing r + 1; checks the sum everywhere.
pub fn round(clients: &[Client], key: u64) {
    let expected: f32 = (1..=clients.len()).map(|value| value as f32).sum();
    std::thread::scope(|scope| {
        for (rank, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                let tensor = client.tensor(key).expect("declared");
                let elements = tensor.spec().elements as usize;
                let mut weights = vec![0.0; elements];
                let gradient = vec![rank as f32 + 1.0; elements];
                let done = client.push_pull_slice(&tensor, &gradient, &mut weights);
                done.unwrap_or_else(|error| panic!("worker {rank}: {error}"));
                assert!(
                    weights.iter().all(|w| *w == expected),
                    "worker {rank}: {:?}",
                    &weights[..4.min(elements)]
                );
            });
        }
    });
}
