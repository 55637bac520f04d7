//! `gradwire launch` under a real Slurm of two nodes on this host, and the batch script that users copy: trainings with the bits of
//! the reference, first failures, cancelled jobs, what tasks may pin.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{PATIENCE, Place};
use gradwire_tests::rigs::launching::{
    CERTIFICATE, assert_certificates, assert_places, done, fails, launch, names, own_certificates, read,
    showing_trainer, telling_trainer, trains, until,
};
use gradwire_tests::rigs::netns::Net;
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::programs::{program, repository};
use gradwire_tests::rigs::slurm::Slurm;
use gradwire_tests::rigs::training::{TRAIN, hash_in, reference};
use std::path::PathBuf;
use std::process::Command;

#[test]
fn trains_under_slurm_with_the_references_bits() {
    let slurm = Slurm::start();
    let config = slurm.config();
    let env = [("SLURM_CONF", config.as_str())];
    let flags = ["--cluster", "slurm", "-n", "2", "-s", "2", "--jobname", "train", "--queue", "p"];
    assert_places(&trains(&env, &flags, 2), &["0/2", "1/2"]);
    // Over both nodes, whose names have no address here, in a row and in turns.
    let both = [env[0], ("SLURM_JOB_NUM_NODES", "2")];
    let flags = ["--cluster", "slurm", "-n", "3", "-s", "1", "--host-ip", "127.0.0.1"];
    for (distribution, places) in [("block", ["0/1", "0/2", "1/2"]), ("cyclic", ["0/2", "0/1", "1/2"])] {
        let text = trains(&[&both[..], &[("SLURM_DISTRIBUTION", distribution)]].concat(), &flags, 3);
        assert_places(&text, &places);
    }
    let (code, text) = launch(&both, &["--cluster", "slurm", "-n", "1"], &["true"]);
    assert_eq!(code, 74, "{text}");
    assert!(text.contains("towards n1"), "a name without an address is named: {text}");
    until("the jobs to be over", || slurm.idle());
}

#[test]
fn under_slurm_the_first_failure_counts_and_nobody_is_left() {
    let slurm = Slurm::start();
    let config = slurm.config();
    let env = [("SLURM_CONF", config.as_str())];
    let text = fails(&slurm.bed, &env, &["--cluster", "slurm", "-n", "2", "-s", "1"]);
    assert!(text.contains("worker 1 failed: "), "{text}");
    until("the job to be over", || slurm.idle());

    // Told to end, all tasks do.
    let nap = slurm.bed.path("nap").display().to_string();
    let mut command = Place::default().command("gradwire");
    command.args(["launch", "--cluster", "slurm", "-n", "1", "--", &nap, "1000"]).env("SLURM_CONF", &config);
    let mut process = Process::start("launch", &mut command);
    until("the worker", || names(&nap) > 0);
    done(Command::new("kill").args(["-s", "TERM", &process.pid().to_string()]));
    assert_eq!(process.expect_end(PATIENCE), 143, "{}", process.log().text());
    slurm.bed.assert_nobody_left();
}

/// Both nodes of a Slurm on loopback are this host, and their names have no address.
const ONE_NODE: [&str; 3] = ["--nodes=1", "--ntasks=5", "--ntasks-per-node=5"];

/// The script that users copy, submitted with these words for sbatch and this program; its output comes to the file.
fn submit(slurm: &Slurm, words: &[&str], program_words: &[&str], out: &PathBuf) -> Command {
    let programs = program("gradwire").parent().unwrap().display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    // As a user's shell has it; tasks get the limits of who submits.
    let mut batch = slurm.command("prlimit");
    batch.args(["--memlock=8388608:8388608", "sbatch"]).args(words).arg("--output").arg(out);
    batch.arg(repository().join("deploy/slurm/gradwire.sbatch")).args(program_words);
    batch.env("PATH", path).env("SERVERS", "2").current_dir(repository());
    batch
}

#[test]
fn the_batch_script_trains_and_says_what_tasks_may_pin() {
    let slurm = Slurm::start();
    let out = slurm.bed.path("batch.out");
    let trainer = [&["gradwire-worker", "train"][..], &TRAIN].concat();
    done(&mut submit(&slurm, &[&ONE_NODE[..], &["--wait"]].concat(), &trainer, &out));
    let text = read(&out);
    assert_eq!(hash_in(&text), reference(2), "{text}");
    assert!(
        text.contains("may pin 8192 KiB") && text.contains("PropagateResourceLimitsExcept=MEMLOCK"),
        "{text}"
    );

    // The script's code is the code of who failed first.
    let out = slurm.bed.path("failed.out");
    let fails = ["sh", "-c", "[ $DMLC_WORKER_ID = 1 ] && exit 65; exec sleep 1000"];
    let mut process =
        Process::start("sbatch", &mut submit(&slurm, &[&ONE_NODE[..], &["--wait"]].concat(), &fails, &out));
    assert_eq!(process.expect_end(PATIENCE), 65, "{}", read(&out));
    until("the jobs to be over", || slurm.idle());
}

#[test]
fn tasks_of_a_plain_srun_find_their_roles() {
    let slurm = Slurm::start();
    let mut srun = Command::new("srun");
    srun.args(["--ntasks=5", "--ntasks-per-node=5", "--kill-on-bad-exit=1"]).arg(program("gradwire"));
    srun.args(["launch", "--cluster", "slurm", "-s", "2", "--"]).args(telling_trainer());
    let mut process =
        Process::start("srun", srun.env("SLURM_CONF", slurm.config()).current_dir(repository()));
    assert_eq!(process.expect_end(PATIENCE), 0, "{}", process.log().text());
    let text = process.log().text();
    assert_eq!(hash_in(&text), reference(2), "{text}");
    assert_places(&text, &["0/2", "1/2"]);
}

#[test]
fn a_job_that_is_cancelled_ends_in_order() {
    let slurm = Slurm::start();
    let out = slurm.bed.path("cancelled.out");
    let long = ["gradwire-worker", "train", "--epochs", "100000", "--jitter-us", "1000"];
    let submitted = done(&mut submit(&slurm, &[&ONE_NODE[..], &["--parsable"]].concat(), &long, &out));
    until("training", || read(&out).contains("epoch "));
    done(Command::new("scancel").arg(submitted.trim()).env("SLURM_CONF", slurm.config()));
    until("the job to be over", || slurm.idle());
    let text = read(&out);
    assert!(text.contains("SIGTERM received"), "{text}");
    assert!(text.contains("the job is over"), "the scheduler has ended it: {text}");
    assert!(!text.contains("killed by signal 9"), "nobody had to be killed: {text}");
}

/// Two nodes with two addresses, security on: the script makes certificates for its job, or takes those that it is given, and a
/// plain srun, which has none, gets advice.
#[test]
fn the_batch_script_trains_on_two_nodes_with_certificates() {
    let net = Net::new(2);
    let slurm = Slurm::between(&net);
    let trainer = showing_trainer();
    let trainer: Vec<&str> = trainer.iter().map(String::as_str).collect();
    let run = |name: &str, env: &[(String, String)]| {
        let out = slurm.bed.path(name);
        let mut batch = submit(&slurm, &["--wait"], &trainer, &out);
        let mut process = Process::start("sbatch", batch.envs(env.iter().cloned()));
        let code = process.expect_end(PATIENCE);
        let text = read(&out);
        assert_eq!(code, 0, "{text}{}", process.log().text());
        assert_eq!(hash_in(&text), reference(3), "{text}");
        text
    };
    let hosts = ["n2", "n1", "n2"];
    assert_certificates(&run("made.out", &[]), &hosts, CERTIFICATE);
    let own = own_certificates(&slurm.bed);
    assert_certificates(&run("taken.out", &own), &hosts, &own[1].1);

    let mut srun = slurm.command("srun");
    srun.args(["--ntasks=3", "--nodes=2", "--kill-on-bad-exit=1"]).arg(program("gradwire"));
    srun.args(["launch", "--cluster", "slurm", "--"]).arg(program("gradwire-worker")).arg("train");
    let mut process = Process::start("srun", srun.current_dir(repository()));
    let code = process.expect_end(PATIENCE);
    let text = process.log().text();
    // srun ends with the highest of its tasks' codes, and a task that it kills before that task has seen the fault ends with 143.
    assert!([78, 143].contains(&code), "{code}: {text}");
    assert!(text.contains("run gradwire launch --cluster slurm without srun"), "{text}");
    until("the jobs to be over", || slurm.idle());
}
