//! What the manual of `gradwire` says beside its command line: examples, and the page gradwire.toml(5), made from the types of
//! the settings. It must not say what a flag means: that stands with the flag.

use daemon::manual::{Manual, Text};
use daemon::settings::reference;

pub(crate) const MANUAL: Manual = Manual { examples: EXAMPLES, role: None, others };

const EXAMPLES: &str = "\
gradwire:
  gradwire doctor
      Checks this host, and shows the fix of each problem
  gradwire launch -n 2 -s 1 -- python3 train.py
      Trains with two workers and a server on this host
gradwire launch:
  gradwire launch -n 2 -s 2 -- gradwire-worker train
      A cluster on this host, until training is done
  gradwire launch -n 8 -s 4 -H hosts python3 train.py
      On the hosts of a file, over ssh
  gradwire launch -n 8 -s 4 --cluster slurm python3 train.py
      In the tasks of a Slurm job
  gradwire launch -n 4 -s 2 --restart --set cluster.replicas=1 --set cluster.worker_loss=wait -- gradwire-worker train
      Continues when a process fails, with the same weights at the end
gradwire serve:
  gradwire serve --updates my_rules.py --scheduler 127.0.0.1:9092
      A server that also applies the optimizers that my_rules.py registers
gradwire why:
  gradwire why --scheduler-http 127.0.0.1:9095
      Shows what the job waits for, and what to do
  gradwire why --scheduler-http 127.0.0.1:9095 --json
      The same as JSON, the most important cause first
gradwire trace:
  gradwire trace --scheduler-http 127.0.0.1:9095 --out trace.json
      What all members did last, for ui.perfetto.dev
  gradwire trace --out trace.json gradwire-server-0-4711.flight.json
      The same from what a failed process left behind
gradwire status:
  gradwire status --scheduler-http 127.0.0.1:9095
      Shows a job as its scheduler sees it
  gradwire status --scheduler-http 127.0.0.1:9095 --watch
      The same, again and again
gradwire top:
  gradwire top --scheduler-http 127.0.0.1:9095
      Shows a job live; q quits
gradwire certs init:
  gradwire certs init
      Creates the cluster's authority, in gradwire-ca
gradwire certs issue:
  gradwire certs issue --role any --out tls
      One certificate for every role, with the settings that use it
gradwire certs show:
  gradwire certs show tls/certificate.pem
      The role, job and expiry of a certificate
gradwire chaos:
  gradwire chaos --kills 20
      Kills processes of a training of the demo, and compares the weights
  gradwire chaos --minutes 30 --away-ms 500
      A soak: memory and open files over time
gradwire checkpoint list:
  gradwire checkpoint list /var/lib/gradwire/checkpoints
      Lists all checkpoints
gradwire checkpoint show:
  gradwire checkpoint show /var/lib/gradwire/checkpoints job-0/round-000000120
      Shows the tensors, tables and parts of a checkpoint
gradwire checkpoint verify:
  gradwire checkpoint verify /var/lib/gradwire/checkpoints
      Reads all complete checkpoints and verifies every checksum
gradwire checkpoint delete:
  gradwire checkpoint delete /var/lib/gradwire/checkpoints NAME
      Deletes a checkpoint
gradwire checkpoint save:
  gradwire checkpoint save --scheduler 127.0.0.1:9092
      Requests a checkpoint from a running job, and prints its name
gradwire config check:
  gradwire config check /etc/gradwire/server.toml
      Checks a file before anything is started
gradwire config show:
  gradwire config show --role worker --changed
      Settings that differ from their defaults, with their sources
gradwire config sample:
  gradwire config sample
      Every setting, with its meaning and default
gradwire doctor:
  gradwire doctor --scheduler 10.0.0.1:9092
      This host, and whether a scheduler of this release answers
  gradwire doctor --listen 10.0.0.1:9094
      On one of two hosts
  gradwire doctor --peer 10.0.0.1:9094
      On the other one: every transport between both, with real writes
gradwire plan:
  gradwire plan --workers 8 --servers 2 --driver verbs tensors.txt
      How each tensor of a list would travel, and why
gradwire bench:
  gradwire bench --json results.json
      Measures this machine, where gradwire-bench lies beside this program
gradwire env:
  gradwire env
      Every setting with its variable, other systems' variables, and the exit codes";

fn others() -> Vec<(&'static str, String)> {
    vec![("gradwire.toml.5", settings())]
}

/// Every setting, as a page.
fn settings() -> String {
    let mut text = Text::page("GRADWIRE.TOML", "5");
    text.section("NAME").says("gradwire.toml - settings of Gradwire's processes");
    text.section("SYNOPSIS").typed("./gradwire.toml\n/etc/gradwire/ROLE.toml (units of systemd)");
    text.section("DESCRIPTION").says(
        "A file of settings is TOML. A setting comes from the first of these that has it: the command line (`--set \
         section.name=VALUE`), the environment (`GRADWIRE_SECTION__NAME`), and one file: that which `--config` or \
         `GRADWIRE_CONFIG` names, else `gradwire.toml` in the working directory, if it is there. The units of systemd name \
         `scheduler.toml`, `server.toml` and `worker.toml` in `/etc/gradwire`, which nobody else reads unasked. An unknown name \
         is an error that names the closest known name, and a value out of range is an error that names the range. The \
          scheduler's values of the cluster's shape apply to all members.",
    );
    text.section("SETTINGS");
    let (of_none, of_sections): (Vec<_>, Vec<_>) =
        reference().into_iter().partition(|line| !line.key.contains('.'));
    let mut section = String::new();
    for line in of_none.into_iter().chain(of_sections) {
        let (head, name) = line.key.split_once('.').unwrap_or(("", &line.key));
        if head != section {
            text.part(&format!("[{head}]"));
            section = head.to_owned();
        }
        let value = line.default_toml.map_or_else(String::new, |value| format!(" = {value}"));
        text.term(name, &value, &line.meaning);
    }
    text.section("EXAMPLES")
        .says("A scheduler of two servers and two workers, each part with a copy on the other server:");
    text.typed("job = 1\n\n[scheduler]\nport = 9092\n\n[cluster]\nservers = 2\nworkers = 2\nreplicas = 1");
    text.paragraph().says("Files are checked before anything is started, and shown as they are in force:");
    text.typed(
        "gradwire config check /etc/gradwire/scheduler.toml\n\
         gradwire config show --role scheduler --config /etc/gradwire/scheduler.toml --changed",
    );
    text.section("SEE ALSO").says("`gradwire`(1), `gradwire-config`(1), `gradwire-env`(1)");
    text.source()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn every_command_has_examples_that_it_takes() {
        let wrong = daemon::manual::unfit(&crate::Cli::command(), &MANUAL);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn the_page_of_settings_has_all_of_them() {
        let page = settings();
        for line in reference() {
            let name = line.key.rsplit('.').next().unwrap_or_default();
            assert!(
                page.contains(&format!("\\fB{}\\fR", name.replace('-', "\\-"))),
                "{} is not in it",
                line.key
            );
        }
    }
}
