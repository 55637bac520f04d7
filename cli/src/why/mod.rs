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

/// Says what holds a job up: which worker, server, link, lane or disk the current round waits for and for how long, why that
/// is so, and what to do about it.
///
/// One look, as of the members' last heartbeats; with --watch a look every second. Where rounds follow each other quickly, how
/// often each worker was waited for over the last seconds says more than whom this very round waits for.
#[derive(Args, Debug)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    whom: Whom,
    /// Print JSON: a list of causes, the heaviest first.
    #[arg(long, conflicts_with = "watch")]
    json: bool,
    /// Look again every second, until the job ends or Ctrl-C.
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
        text.push_str("nothing is held up\n");
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
