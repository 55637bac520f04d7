//! `gradwire why`: what holds a job up, found in what its scheduler knows. It asks and prints; what follows from what is
//! `cause`'s to say.

mod cause;

use crate::status::words::{clean, phase, rate};
use crate::status::{Whom, print_looks, run_printing};
use cause::Finding;
use clap::Args;
use daemon::status::ClusterStatus;
use proto_common::ids::Role;
use std::fmt::Write as _;

/// Explain what delays a job: which worker, server, link, lane or disk the current round waits for, for how long, why, and
/// what to do about it.
///
/// Shows one sample, from the members' last heartbeats; with --watch one sample per second. If rounds are short, the share of
/// samples in which servers waited for each worker says more than the current round.
#[derive(Args, Debug)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    whom: Whom,
    /// Print JSON: a list of causes, the most important first.
    #[arg(long, conflicts_with = "watch")]
    json: bool,
    /// Refresh every second, until the job ends or Ctrl-C.
    #[arg(long)]
    watch: bool,
}

pub(crate) fn run(args: &WhyArgs) -> Result<(), anyhow::Error> {
    let address = args.whom.address()?;
    run_printing(print_looks(&address, args.watch, |status, _| {
        let findings = cause::causes(status);
        Ok(match args.json {
            true => serde_json::to_string_pretty(&findings)?,
            false => render(status, &findings),
        })
    }))
}

fn render(status: &ClusterStatus, findings: &[Finding]) -> String {
    let working = status.members.iter().filter(|member| member.role == Role::Worker && !member.left);
    let round = working.map(|member| member.round).max().unwrap_or(0);
    let (phase, pace) = (phase(status.phase), rate(status.rounds_per_second));
    let mut text = format!("job {}  {phase}  round {round}  {pace} rounds/s\n", status.job);
    if findings.is_empty() {
        text.push_str("nothing delays the job\n");
    }
    for (number, finding) in (1..).zip(findings) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "\n{number}. {}", clean(&finding.what));
        for line in &finding.seen {
            let _ = writeln!(text, "   {}", clean(line));
        }
        let _ = writeln!(text, "   to do: {}", clean(&finding.fix));
    }
    text
}
