//! A whole cluster in the test's own process: scheduler, servers with handlers, and clients. It must not know what a test
//! is about.

use super::job::only;
use gradwire_scheduler::runtime::Scheduler;
use gradwire_server::{Apps, Call, Server};
use gradwire_worker::Client;
use proto_common::config::Settings;
use proto_common::transport::Driver;

/// The number of the handler that every server has.
pub const ECHO: u32 = 1;

/// A whole cluster in this process. Fields are dropped in order.
pub struct Bed {
    /// In rank order.
    pub clients: Vec<Client>,
    /// In rank order.
    pub servers: Vec<Server>,
    /// The scheduler.
    pub scheduler: Scheduler,
}

impl Bed {
    /// So many servers and workers over one driver. Each server has [`echo`] as its handler [`ECHO`].
    pub fn new(driver: Driver, (servers, workers): (u32, u32), edit: impl Fn(&mut Settings)) -> Self {
        let mut settings = Settings::default();
        (settings.cluster.servers, settings.cluster.workers) = (servers, workers);
        settings.scheduler.port = 0;
        settings.transport = only(driver);
        settings.memory.pool_bytes = 1 << 30;
        edit(&mut settings);
        let scheduler = Scheduler::start(settings.clone()).expect("a bed");
        settings.scheduler.port = scheduler.address().port();
        let ranked = |rank: u32| {
            let mut settings = settings.clone();
            settings.node.rank = Some(rank);
            settings
        };
        let servers = (0..servers).map(|rank| {
            let apps = Apps::default();
            apps.register(ECHO, echo).expect("a bed");
            Server::start_with(ranked(rank), apps).expect("a bed")
        });
        let servers: Vec<_> = servers.collect();
        let joining = (0..workers).map(ranked).map(|own| std::thread::spawn(|| Client::connect(own)));
        let joining: Vec<_> = joining.collect();
        let clients =
            joining.into_iter().map(|thread| thread.join().expect("a bed").expect("a bed")).collect();
        Self { clients, servers, scheduler }
    }

    /// Workers leave; the others end with that, in good order.
    pub fn end(self) {
        let Self { clients, servers, scheduler } = self;
        clients.iter().for_each(Client::close);
        servers.into_iter().for_each(|server| server.join().expect("a bed"));
        scheduler.join().expect("a bed");
    }
}

/// Sends back what came, head and body.
pub fn echo(call: Call) {
    let body = call.body.to_vec();
    call.reply.send(&call.head, body).expect("a reply");
}
