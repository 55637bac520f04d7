//! A server with an update rule of its program, in the place of `gradwire-server`: SGD with momentum whose gradients are clipped
//! and corrected for their delay, for asynchronous training. docs/own-rules.md shows it.

#![forbid(unsafe_code)]

use clap::Parser;
use daemon::settings::CommonArgs;
use gradwire_server::{Block, OwnKind, OwnRule, OwnStep, Range, Rules, Server};
use proto_common::ids::Role;

/// Zheng et al. 2017 (DC-ASGD) add `compensation * g * g * (w - before)` to a gradient `g`, where `before` are the weights that its
/// worker had read. A server would have to keep a copy of the weights for each worker. This rule keeps one average of them
/// instead: those of `delay` versions ago.
struct DelayCompensated;

impl OwnRule for DelayCompensated {
    fn kind(&self) -> OwnKind {
        OwnKind::new("dc_asgd")
            .parameter("clip", Range::Positive, 1.0)
            .parameter("momentum", Range::Share, 0.9)
            .parameter("compensation", Range::NotNegative, 0.04)
            .parameter("delay", Range::NotNegative, 1.0)
            .keeps(2)
    }

    fn update(&self, step: &OwnStep<'_>, block: Block<'_, f32>) {
        let [clip, momentum, compensation, delay] = *step.parameters else { return };
        let (rate, decay, keep) = (step.rate, step.decay, delay / (1.0 + delay));
        // State begins with zeros, so the second array is not `before`, but how far the weights are from it.
        block.with_two(|weight, gradient, [moment, away]| {
            let g = gradient.clamp(-clip, clip);
            let g = g + decay * weight + compensation * g * g * away;
            let moment = momentum * moment - rate * g;
            (weight + moment, [moment, keep * (away + moment)])
        });
    }
}

#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

fn main() -> anyhow::Result<()> {
    let env = daemon::process::environment();
    daemon::process::die_with_parent(&env)?;
    let settings = Args::parse().common.load(Role::Server, &env)?.settings;
    daemon::logging::init(Role::Server, &settings.log)?;
    let mut rules = Rules::default();
    rules.register(DelayCompensated)?;
    Server::start_with(settings, rules)?.join()
}
