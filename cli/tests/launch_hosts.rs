//! The launcher over several hosts: an `ssh` that runs its command here, in another directory and with an environment of
//! its own; hosts that cannot be reached, programs that are missing, ranks that die, launchers that are killed.
#![allow(clippy::unwrap_used)]

mod bed;

use bed::{Bed, GRADWIRE, WAIT, signal, text, wait};
use std::io::Read;
use std::process::{Command, Output};

/// Notes how it was called, and what the host is named; then does what sshd does.
const SSH: &str = r#"
echo "$*" >> $BED/ssh-calls
while :; do
  case "$1" in
    -o) options="$options $2"; shift 2 ;;
    -p) port=$2; shift 2 ;;
    -l) user=$2; shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
host=$1; shift
[ "$host" = gone ] && { echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255; }
[ "$host" = slow ] && exec $BED/nap 1000
cd /
exec env -i PATH="$PATH" HOST=$host USER=${user:-nobody} PORT=${port:-22} sh -c "$*"
"#;

/// A bed with hosts.
fn bed(hosts: &str) -> Bed {
    let bed = Bed::new();
    bed.program("ssh", SSH);
    std::fs::write(bed.path("hosts"), hosts).unwrap();
    bed
}

/// Loopback as the scheduler's address: the hosts are this one.
fn launch(bed: &Bed, flags: &[&str], program: &[&str]) -> Command {
    let (ssh, hosts) = (bed.path("ssh"), bed.path("hosts"));
    let own = ["--ssh", ssh.to_str().unwrap(), "-H", hosts.to_str().unwrap(), "--host-ip", "127.0.0.1"];
    let mut command = bed.launch(&[&own[..], flags].concat(), program);
    command.current_dir(bed.directory.path()).env("DMLC_NODE_HOST", "10.0.0.1").env("SECRET", "own");
    command
}

fn run(bed: &Bed, flags: &[&str], program: &[&str]) -> (Output, String) {
    let output = launch(bed, flags, program).output().unwrap();
    let err = text(&output.stderr);
    (output, err)
}

#[test]
fn members_run_on_their_hosts_with_what_they_need() {
    let bed = bed("a slots=2\nme@b:2222\n");
    bed.program(
        "gradwire-server",
        &format!("echo \"$DMLC_ROLE $DMLC_SERVER_ID on $HOST\" >> $BED/servers\n{WAIT}"),
    );
    let script = r#"echo "$DMLC_ROLE $GRADWIRE_NODE__RANK $DMLC_WORKER_ID $BYTEPS_LOCAL_RANK/$BYTEPS_LOCAL_SIZE on $HOST:$PORT $USER in $PWD of $DMLC_NUM_WORKER at $DMLC_PS_ROOT_URI:$GRADWIRE_SCHEDULER__PORT $MODE/$OMP_NUM_THREADS/$SECRET$DMLC_NODE_HOST $1""#;
    let flags = ["-n", "3", "-s", "1", "--env", "MODE:x:y", "--env-worker", "OMP_NUM_THREADS=4"];
    let (output, err) = run(&bed, &flags, &["sh", "-c", script, "sh", "it's \"one\" arg"]);
    assert_eq!(output.status.code(), Some(0), "{err}");
    let here = bed.directory.path().canonicalize().unwrap();
    let line = |rank, local, host| {
        let place = format!("in {} of 3 at 127.0.0.1:1", here.display());
        format!("worker {rank} {rank} {local} on {host} {place} x:y/4/ it's \"one\" arg\n")
    };
    // Dealt out in turn: server 0 on a, worker 0 on b, worker 1 on a, which is full; worker 2 on b.
    assert_eq!(text(&output.stdout), line(0, "0/2", "b:2222 me"));
    assert!(err.contains(&format!("[worker 1] {}", line(1, "0/1", "a:22 nobody"))), "{err}");
    assert!(err.contains(&format!("[worker 2] {}", line(2, "1/2", "b:2222 me"))), "{err}");
    assert!(!err.contains("gradwire attend"), "its words are for the launcher: {err}");
    assert_eq!(std::fs::read_to_string(bed.path("servers")).unwrap(), "server 0 on a\n");
    let calls = std::fs::read_to_string(bed.path("ssh-calls")).unwrap();
    assert_eq!(calls.lines().count(), 4);
    assert!(calls.contains("BatchMode=yes") && !calls.contains("OMP_NUM_THREADS"), "{calls}");
    bed.assert_nobody_left();
}

#[test]
fn the_first_failure_names_its_host_and_last_words() {
    let bed = bed("a\nb\n");
    let script = r#"[ $GRADWIRE_NODE__RANK = 1 ] && { echo "no such file: x"; exit 65; }; trap 'exit 3' TERM; sleep 1000 & wait"#;
    let (output, err) = run(&bed, &["-n", "3"], &["sh", "-c", script]);
    assert_eq!(output.status.code(), Some(65), "{err}");
    assert!(
        // Each host has a server, so that workers begin on the first one.
        err.contains("worker 1 on b failed first: exit code 65 (a data, model or checkpoint file"),
        "{err}"
    );
    assert!(err.contains("worker 1 said last: no such file: x"), "{err}");
    bed.assert_nobody_left();
}

#[test]
fn a_rank_killed_on_its_host_is_told_as_such() {
    let bed = bed("a\n");
    let (output, err) =
        run(&bed, &["-n", "2"], &["sh", "-c", "[ $DMLC_WORKER_ID = 1 ] && kill -9 $$; sleep 1000"]);
    assert_eq!(output.status.code(), Some(137), "{err}");
    assert!(err.contains("worker 1 on a failed first: exit code 137"), "{err}");
    bed.assert_nobody_left();
}

#[test]
fn hosts_that_cannot_be_used_are_named() {
    /// Hosts, flags, program; exit code and words.
    type Case<'a> = (&'a str, &'a [&'a str], &'a [&'a str], i32, &'a str);
    let cases: [Case<'_>; 6] = [
        (
            "a\ngone\n",
            &[],
            &["true"],
            74,
            "worker 0 on gone failed first: ssh cannot reach gone (exit code 255)",
        ),
        ("a\n", &["--remote-bin-dir", "/nonexistent"], &["true"], 2, "gradwire was not found on a"),
        ("a\n", &[], &["no-such-program"], 2, "worker 0 on a failed first: cannot start its program"),
        ("a\n", &["--sync-dst-dir", "/nonexistent/here"], &["true"], 74, "cannot copy to a:"),
        ("a slots=1\n", &["-n", "2"], &["true"], 2, "the host file has 1 slots, but the job has 3 processes"),
        ("a slots=\n", &[], &["true"], 2, "line 1 of the host file"),
    ];
    for (hosts, flags, program, code, words) in cases {
        let bed = bed(hosts);
        let (output, err) = run(&bed, flags, program);
        assert_eq!(output.status.code(), Some(code), "{words}: {err}");
        assert!(err.contains(words), "{words}: {err}");
        bed.assert_nobody_left();
    }
    let missing = bed("a\ngone\n");
    let (_, err) = run(&missing, &[], &["true"]);
    assert!(err.contains("worker 0 said last: ssh: connect to host gone"), "{err}");
}

#[test]
fn a_host_that_does_not_answer_has_a_deadline() {
    let bed = bed("a\nslow\n");
    let (output, err) = run(&bed, &["--start-timeout", "1"], &["sh", "-c", "sleep 1000"]);
    assert_eq!(output.status.code(), Some(72), "{err}");
    assert!(err.contains("worker 0 on slow failed first: it did not start within 1 s"), "{err}");
    bed.assert_nobody_left();
}

#[test]
fn whoever_ignores_the_end_is_killed_on_its_host_with_its_children() {
    let bed = bed("a\n");
    bed.program("stubborn", "trap '' TERM\n$BED/nap 1000 &\nwhile :; do wait; done\n");
    let stubborn = bed.path("stubborn");
    let script = format!("[ $DMLC_WORKER_ID = 0 ] && exit 5; exec {}", stubborn.display());
    let (output, err) = run(&bed, &["-n", "2"], &["sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(5), "{err}");
    bed.assert_nobody_left();
}

#[test]
fn signals_reach_other_hosts_and_a_killed_launcher_leaves_nobody() {
    for name in ["TERM", "KILL"] {
        let bed = bed("a\nb\n");
        bed.program(
            "worker",
            &format!(
                "trap 'echo ended >> $BED/ended; exit 0' TERM\n{}",
                &WAIT["trap 'exit 0' TERM\n".len()..]
            ),
        );
        let worker = bed.path("worker");
        let mut launcher =
            launch(&bed, &["-n", "2", "-s", "1"], &[worker.to_str().unwrap()]).spawn().unwrap();
        // A scheduler, a server, two workers, and ssh for three of them.
        bed.wait_for(7);
        signal(&launcher, name);
        let code = launcher.wait().unwrap().code();
        let mut err = String::new();
        if name == "TERM" {
            launcher.stderr.take().unwrap().read_to_string(&mut err).unwrap();
            assert_eq!(code, Some(143), "{err}");
            wait("both workers to end by themselves", || {
                std::fs::read_to_string(bed.path("ended")).unwrap_or_default().lines().count() == 2
            });
        }
        bed.assert_nobody_left();
    }
}

#[test]
fn a_program_can_play_every_role() {
    let bed = Bed::new();
    let script = r#"echo "$DMLC_ROLE $DMLC_PS_ROOT_URI:$DMLC_PS_ROOT_PORT""#;
    let flags = ["--every-role", "-n", "2", "-s", "1", "--end-failed"];
    let (output, _) = bed.run(&flags, &["sh", "-c", script]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(err.contains("--end-failed has no effect: with --every-role servers run PROGRAM"), "{err}");
    assert_eq!(output.status.code(), Some(0), "{err}");
    let address = out.trim().strip_prefix("worker ").unwrap();
    assert!(address.starts_with("127.0.0.1:") && !address.ends_with(":0"), "{address}");
    for role in ["scheduler", "server", "worker"] {
        assert!(err.contains(&format!("] {role} {address}\n")) || out.starts_with(role), "{role}: {err}");
    }
    assert_eq!(bed.pids().len(), 0, "none of ours was started");
}

#[test]
fn a_machines_part_is_started_as_bpslaunch_does() {
    let bed = Bed::new();
    let script = r#"echo "$BYTEPS_LOCAL_RANK/$BYTEPS_LOCAL_SIZE $GRADWIRE_NODE__RANK of $GRADWIRE_CLUSTER__WORKERS; $DMLC_WORKER_ID of $DMLC_NUM_WORKER""#;
    let part = |role: &str, more: &[(&str, &str)], flags: &[&str]| {
        let mut command = Command::new(GRADWIRE);
        command
            .arg("launch")
            .arg("--bin-dir")
            .arg(bed.directory.path())
            .args(flags)
            .args(["sh", "-c", script]);
        let given = [("DMLC_ROLE", role), ("DMLC_NUM_WORKER", "2"), ("DMLC_NUM_SERVER", "1")];
        let root =
            [("DMLC_PS_ROOT_URI", "127.0.0.1"), ("DMLC_PS_ROOT_PORT", "1234"), ("DMLC_WORKER_ID", "1")];
        command.envs(given).envs(root).envs(more.iter().copied());
        let output = command.output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, err) = part("worker", &[("NVIDIA_VISIBLE_DEVICES", "0,3")], &[]);
    assert_eq!((code, out.as_str()), (Some(0), ""), "{err}");
    assert!(
        err.contains("[worker 2] 0/2 2 of 4; 1 of 2\n") && err.contains("[worker 3] 1/2 3 of 4; 1 of 2\n"),
        "{err}"
    );
    let (code, _, err) = part("worker", &[], &["--local-size", "3"]);
    assert!(code == Some(0) && err.contains("[worker 5] 2/3 5 of 6; 1 of 2\n"), "{err}");

    bed.program(
        "gradwire-server",
        "echo \"$GRADWIRE_SCHEDULER__HOST:$GRADWIRE_SCHEDULER__PORT rank=$GRADWIRE_NODE__RANK\"\nexit 9\n",
    );
    let (code, _, err) = part("server", &[], &[]);
    assert_eq!(code, Some(9), "{err}");
    assert!(
        err.contains("] 127.0.0.1:1234 rank=\n") && err.contains("server 0 failed: exit code 9"),
        "{err}"
    );
    bed.program("gradwire-scheduler", "echo \"$GRADWIRE_CLUSTER__WORKERS workers $#\"\n");
    let (code, _, err) = part("scheduler", &[("BYTEPS_LOCAL_SIZE", "2")], &[]);
    assert!(code == Some(0) && err.contains("[scheduler] 4 workers 0\n"), "{err}");
    for (name, value, words) in [
        ("DMLC_PS_ROOT_URI", "", "DMLC_PS_ROOT_URI is not set"),
        ("DMLC_PS_ROOT_PORT", "0", "use a port from 1 to 65535"),
        ("DMLC_ROLE", "boss", "use scheduler, server or worker"),
        ("DMLC_NUM_WORKER", "two", "use an integer"),
    ] {
        let (code, _, err) = part("worker", &[(name, value)], &[]);
        assert_eq!(code, Some(78), "{err}");
        assert!(err.contains(words), "{err}");
    }
}

#[test]
fn tasks_of_slurm_and_mpi_find_their_role() {
    let bed = Bed::new();
    bed.program("gradwire-scheduler", "echo \"port $GRADWIRE_SCHEDULER__PORT job $GRADWIRE_JOB\"\n");
    let script = r#"echo "$DMLC_ROLE $GRADWIRE_NODE__RANK port $GRADWIRE_SCHEDULER__PORT job $GRADWIRE_JOB"; echo "place $BYTEPS_LOCAL_RANK/$BYTEPS_LOCAL_SIZE""#;
    let task = |kind: &str, env: &[(&str, &str)]| {
        let mut command = Command::new(GRADWIRE);
        command.args(["launch", "--cluster", kind, "-s", "1", "--bin-dir"]).arg(bed.directory.path());
        let output = command.args(["sh", "-c", script]).envs(env.iter().copied()).output().unwrap();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let slurm = |rank, nodes| {
        let step = [("SLURM_STEP_NUM_TASKS", "3"), ("SLURM_STEP_NODELIST", nodes)];
        let ids = [("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_PROCID", rank)];
        task("slurm", &[&step[..], &ids[..]].concat())
    };
    let (code, scheduler) = slurm("0", "n1");
    assert_eq!(code, Some(0), "{scheduler}");
    let place = scheduler.trim().strip_prefix("[scheduler] ").unwrap();
    assert_eq!(
        slurm("2", "n1"),
        (Some(0), format!("worker 0 {place}\nplace 0/1\n")),
        "it meets the scheduler"
    );
    let (code, err) = slurm("3", "n[1");
    assert!(code == Some(78) && err.contains("a bracket is not closed"), "{err}");
    let (code, err) = slurm("2", "no-such-host,n2");
    assert!(code == Some(74) && err.contains("towards no-such-host"), "{err}");
    let mpi = [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"), ("PMIX_NAMESPACE", "8")];
    let (code, err) = task("mpi", &[&mpi[..], &[("OMPI_COMM_WORLD_SIZE", "4")]].concat());
    assert!(code == Some(0) && err.contains("worker 0 port 2"), "{err}");
    let (code, err) = task(
        "mpi",
        &[&mpi[..], &[("OMPI_COMM_WORLD_LOCAL_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")]].concat(),
    );
    assert!(code == Some(0) && err.contains("place 0/2\n"), "of the workers, not of all tasks: {err}");
    let (code, err) = task("mpi", &[&mpi[..], &[("OMPI_COMM_WORLD_SIZE", "2")]].concat());
    assert!(code == Some(2) && err.contains("2 tasks were started"), "{err}");
}

#[test]
fn flags_of_dmlc_submit_are_taken_and_named() {
    let bed = Bed::new();
    let line = [
        "--cluster",
        "local",
        "--num-workers",
        "2",
        "--num-servers",
        "1",
        "--worker-cores",
        "2",
        "--worker-memory",
        "1g",
    ];
    let more = ["--jobname", "x", "--queue", "default", "--log-level", "DEBUG", "--host-ip", "ip"];
    let script = "echo $DMLC_JOB_CLUSTER $GRADWIRE_LOG__FILTER";
    let mut command = Command::new(GRADWIRE);
    command
        .arg("launch")
        .arg("--bin-dir")
        .arg(bed.directory.path())
        .args(line)
        .args(more)
        .args(["sh", "-c", script]);
    let output = command.output().unwrap();
    let err = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "local debug\n"), "{err}");
    for flag in ["--worker-cores", "--worker-memory", "--jobname"] {
        assert!(err.contains(&format!("[launch] {flag} has no effect: ")), "{flag}: {err}");
    }
    let cases: [(&[&str], &str); 3] = [
        (&["--cluster", "yarn"], "yarn is not supported"),
        (&["--cluster", "ssh"], "--host-file"),
        (&["--env", "A-B:1"], "write NAME:VALUE"),
    ];
    for (flags, words) in cases {
        let (output, _) = bed.run(flags, &["true"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
}

#[test]
fn a_hand_without_a_launcher_ends() {
    let start = |input: &str| {
        let mut hand = Command::new(GRADWIRE);
        hand.arg("attend").stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut hand = hand.spawn().unwrap();
        std::io::Write::write_all(&mut hand.stdin.take().unwrap(), input.as_bytes()).unwrap();
        let output = hand.wait_with_output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    assert_eq!(start("").0, Some(2));
    let (code, err) = start("{\"id\": 3}\n");
    assert!(code == Some(2) && err.contains("the same version"), "{err}");
}

/// Other hosts have the variables that our pages name; what belongs to this machine stays here.
#[test]
fn what_our_pages_name_travels_to_other_hosts() {
    let bed = bed("a\n");
    let names = [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_ENDPOINT",
        "AWS_ALLOW_HTTP",
    ];
    let mut command = launch(&bed, &["--env", "HF_HOME"], &["sh", "-c", "env"]);
    command.envs(names.map(|name| (name, name.to_ascii_lowercase()))).env("HF_HOME", "/x");
    command.env("VIRTUAL_ENV", "/some/venv").env("CUDA_VISIBLE_DEVICES", "0");
    let output = command.output().unwrap();
    let out = text(&output.stdout);
    for name in names {
        assert!(out.contains(&format!("{name}={}\n", name.to_ascii_lowercase())), "{name}: {out}");
    }
    assert!(out.contains("HF_HOME=/x\n"), "{out}");
    assert!(!out.contains("VIRTUAL_ENV") && !out.contains("CUDA_VISIBLE_DEVICES"), "{out}");
}

#[test]
fn a_missing_module_on_another_host_has_a_hint() {
    let bed = bed("a\n");
    let (output, err) = run(&bed, &[], &["python3", "-c", "import no_such_module"]);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("[launch] the Python on a has no module no_such_module: "), "{err}");
    assert!(err.contains("--env PYTHONPATH=DIR") && err.contains(".venv/bin/python"), "{err}");
}

/// Arguments pass byte for byte to other hosts, and progress as on this one.
#[test]
fn odd_arguments_and_progress_pass_to_and_from_other_hosts() {
    let bed = bed("a\n");
    let odd = ["x y", "$HOME", "it's", "", "é \"q\" \\n", "*"];
    let script = r#"printf '<%s>' "$@"; printf '\r0/2\r1/2\r2/2' >&2; kill -9 $$"#;
    let (output, err) = run(&bed, &[], &[&["sh", "-c", script, "sh"][..], &odd].concat());
    let expected: String = odd.iter().map(|arg| format!("<{arg}>")).collect();
    assert_eq!(text(&output.stdout), expected + "\n", "{err}");
    assert!(err.contains("said last: 2/2\n") && !err.contains("1/2"), "{err}");
}

/// The tasks of one job on several hosts: the launcher that starts them has made certificates, and each process has those of its
/// role only.
#[test]
fn tasks_have_the_certificates_that_the_launcher_makes() {
    let bed = Bed::new();
    // Starts two tasks of three here, as srun would on several hosts; 192.0.2.1 is nobody's address.
    bed.program(
        "srun",
        r#"while [ "${1#--}" != "$1" ]; do shift; done
for rank in 0 2; do SLURM_PROCID=$rank SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NODELIST=n[1-2] SLURM_JOB_ID=7 SLURM_STEP_ID=0 "$@"; done
"#,
    );
    let show = r#"case "$GRADWIRE_SECURITY__KEY" in *PRIVATE*) key=text;; "") key=none;; *) key=$GRADWIRE_SECURITY__KEY;; esac
echo "$DMLC_ROLE has $(echo "$GRADWIRE_SECURITY__CERTIFICATE" | cksum) key $key job ${GRADWIRE_JOB:+given} ${GRADWIRE_LAUNCH_TRUST-clean}""#;
    bed.program("gradwire-scheduler", &format!("{show}\n"));
    let tasks_at = |host: &str, more: &[&str], env: &[(&str, &str)]| {
        let flags = ["--cluster", "slurm", "--interface", "lo", "--host-ip", host];
        let mut command = bed.launch(&[&flags[..], more].concat(), &["sh", "-c", show]);
        let path = format!("{}:{}", bed.directory.path().display(), std::env::var("PATH").unwrap());
        let output = command.env("PATH", path).envs(env.iter().copied()).output().unwrap();
        let all = text(&output.stdout) + &text(&output.stderr);
        let found: Vec<String> = all
            .lines()
            .filter(|line| line.contains(" has "))
            .map(|line| line.replace("[scheduler] ", ""))
            .collect();
        assert_eq!(found.len(), 2, "{all}");
        found
    };
    let tasks = |more: &[&str], env: &[(&str, &str)]| tasks_at("192.0.2.1", more, env);
    let (first, second) = (tasks(&[], &[]), tasks(&[], &[]));
    assert!(first.iter().all(|line| line.ends_with("key text job given clean")), "{first:?}");
    assert_ne!(
        first[0].split_once(' ').unwrap().1,
        first[1].split_once(' ').unwrap().1,
        "each role has its own"
    );
    assert_ne!(first, second, "each job has its own");
    let given = tasks(&[], &[("GRADWIRE_SECURITY__KEY", "mine.pem")]);
    assert!(given.iter().all(|line| line.ends_with("key mine.pem job given clean")), "{given:?}");
    let off = tasks(&["--set", "security.mode=off"], &[]);
    assert!(off.iter().all(|line| line.ends_with("key none job given clean")), "{off:?}");
    let here = tasks_at("127.0.0.1", &[], &[]);
    assert!(here.iter().all(|line| line.ends_with("key none job given clean")), "one host: {here:?}");
}
