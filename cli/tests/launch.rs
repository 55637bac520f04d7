//! The launcher with small shell programs in the roles: exit codes, output, and no process left behind.
#![allow(clippy::unwrap_used)]

mod bed;

use bed::{Bed, GRADWIRE, WAIT, signal, text};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[test]
fn everyone_gets_its_role_and_worker_0_has_stdout() {
    let bed = Bed::new();
    let script = r#"echo "$DMLC_ROLE $GRADWIRE_NODE__RANK of $DMLC_NUM_WORKER at $DMLC_PS_ROOT_URI:$DMLC_PS_ROOT_PORT $GRADWIRE_TRANSPORT__TCP $GRADWIRE_TRANSPORT__PLACEMENT"
echo oops >&2; printf last"#;
    let flags = ["--workers", "2", "--servers", "2", "--transport", "tcp", "--placement", "static"];
    let (output, _) = bed.run(&flags, &["sh", "-c", script]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert_eq!(out, "worker 0 of 2 at 127.0.0.1:1 require static\nlast\n");
    for line in
        ["[worker 1] worker 1 of 2 at 127.0.0.1:1 require static\n", "[worker 1] last\n", "[worker 0] oops\n"]
    {
        assert!(err.contains(line), "{line:?} is missing in {err}");
    }
    assert_eq!(bed.pids().len(), 3, "a scheduler and two servers");
    bed.assert_nobody_left();
}

#[test]
fn the_first_failure_gives_the_exit_code_and_its_name() {
    let bed = Bed::new();
    let script = r#"[ "$GRADWIRE_NODE__RANK" = 1 ] && exit 65; trap 'exit 3' TERM; sleep 1000 & wait"#;
    let (output, took) = bed.run(&["--workers", "3"], &["sh", "-c", script]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(65), "{err}");
    assert!(
        err.contains(
            "worker 1 failed first: exit code 65 (a data, model or checkpoint file is missing or damaged)"
        ),
        "{err}"
    );
    assert!(took < Duration::from_secs(5), "{took:?}");
    bed.assert_nobody_left();
}

#[test]
fn a_process_that_reports_anothers_death_is_not_the_first_to_fail() {
    let bed = Bed::new();
    // Worker 0 tells of worker 1's death and is gone before worker 1 is seen to have died.
    let script = r#"[ "$GRADWIRE_NODE__RANK" = 0 ] && exit 71; sleep 0.1; kill -9 $$"#;
    let (output, _) = bed.run(&["--workers", "2"], &["sh", "-c", script]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(137), "{err}");
    assert!(err.contains("worker 1 failed first: killed by signal 9"), "{err}");
    // Where nobody else turns up, it is what there is.
    let (output, _) = bed.run(&[], &["sh", "-c", "exit 71"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(71), "{err}");
    assert_eq!(err.matches("failed first").count(), 1, "{err}");
    bed.assert_nobody_left();
}

#[test]
fn whoever_ignores_sigterm_is_killed_and_so_are_its_children() {
    let bed = Bed::new();
    bed.program("gradwire-server", "trap '' TERM\n$BED/nap 1000 &\nwhile :; do wait; done\n");
    let (output, _) = bed.run(&[], &["sh", "-c", "exit 5"]);
    assert_eq!(output.status.code(), Some(5));
    bed.assert_nobody_left();
}

#[test]
fn a_killed_launcher_leaves_nobody() {
    let bed = Bed::new();
    bed.program("worker", "$BED/nap 1000 &\nwait\n");
    let worker = bed.path("worker");
    let mut launcher = bed.launch(&["--workers", "2"], &[worker.to_str().unwrap()]).spawn().unwrap();
    bed.wait_for(4);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    bed.assert_nobody_left();
}

#[test]
fn a_launcher_killed_at_any_moment_of_the_start_leaves_nobody() {
    for delay_ms in (0..60).step_by(2) {
        let bed = Bed::new();
        bed.program("worker", WAIT);
        let mut launcher = bed.launch(&["--workers", "2"], &["worker"]).spawn().unwrap();
        // The moment is what is tested; there is no event to wait for.
        std::thread::sleep(Duration::from_millis(delay_ms));
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        bed.assert_nobody_left();
    }
}

#[test]
fn ctrl_c_and_sigterm_end_everyone() {
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let bed = Bed::new();
        bed.program("worker", WAIT);
        let mut launcher = bed.launch(&[], &["worker"]).spawn().unwrap();
        bed.wait_for(3);
        signal(&launcher, name);
        let mut err = String::new();
        launcher.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!(launcher.wait().unwrap().code(), Some(code), "{err}");
        assert!(err.contains(&format!("SIG{name} received; ending ")), "{err}");
        bed.assert_nobody_left();
    }
}

#[test]
fn the_timeout_names_who_still_runs() {
    let bed = Bed::new();
    let (output, took) = bed.run(&["--timeout", "1"], &["sh", "-c", "sleep 1000"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(72), "{err}");
    assert!(err.contains("still running: scheduler, server 0, worker 0"), "{err}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    bed.assert_nobody_left();
}

#[test]
fn a_scheduler_that_fails_at_once_ends_everything_at_once() {
    let bed = Bed::new();
    bed.program("gradwire-scheduler", "echo 'port in use' >&2; exit 74\n");
    let (output, _) = bed.run(&[], &["sh", "-c", "exit 0"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(74), "{err}");
    assert!(err.contains("[scheduler] port in use") && err.contains("scheduler failed first"), "{err}");
}

#[test]
fn a_wrong_command_line_starts_nothing() {
    let bed = Bed::new();
    let cases: [(&[&str], &str); 3] = [
        (&["--set", "lanes"], "KEY=VALUE"),
        (&["--bin-dir", "/nonexistent"], "--bin-dir"),
        (&["--workers", "0"], "--set cluster.workers=N"),
    ];
    for (flags, words) in cases {
        let mut command = Command::new(GRADWIRE);
        let bin_dir = bed.directory.path().to_str().unwrap();
        command.args(["launch"]).args(flags);
        if !flags.contains(&"--bin-dir") {
            command.args(["--bin-dir", bin_dir]);
        }
        let output = command.args(["--", "sh"]).output().unwrap();
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains(words), "{err}");
    }
    let (output, _) = bed.run(&[], &["no-such-program"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(bed.pids().is_empty());
}

#[test]
fn a_grandchild_that_keeps_the_pipe_does_not_hang_the_launcher() {
    let bed = Bed::new();
    let pids = bed.path("pids");
    // It leaves the group: only its open pipe could hold the launcher.
    let script = format!("setsid sh -c 'echo $$ >> {}; exec sleep 4' & echo done", pids.display());
    let (output, took) = bed.run(&[], &["sh", "-c", &script]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "done\n"));
    assert!(took < Duration::from_secs(4), "{took:?}");
}

#[test]
fn logs_are_kept_one_file_a_process() {
    let bed = Bed::new();
    let logs = bed.path("logs");
    let flags = ["--keep-logs", logs.to_str().unwrap(), "--plain-rank0", "false"];
    let (output, _) = bed.run(&flags, &["sh", "-c", "echo out; echo err >&2"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), "");
    let log = std::fs::read_to_string(logs.join("worker-0.log")).unwrap();
    assert!(log.contains("out\n") && log.contains("err\n"), "{log}");
    assert!(Path::exists(&logs.join("scheduler.log")) && Path::exists(&logs.join("server-0.log")));
}

#[test]
fn output_arrives_while_the_job_runs() {
    let bed = Bed::new();
    let mut launcher = bed.launch(&[], &["sh", "-c", "echo early; sleep 1000"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(launcher.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "early\n");
    signal(&launcher, "TERM");
    assert_eq!(launcher.wait().unwrap().code(), Some(143));
    bed.assert_nobody_left();
}

#[test]
fn a_job_whose_output_nobody_reads_ends() {
    let bed = Bed::new();
    bed.program("worker", "trap 'exit 0' TERM\nwhile echo step; do $BED/nap 0.01; done\n");
    let mut launcher = bed.launch(&[], &["worker"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(launcher.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "step\n");
    let mut err = String::new();
    launcher.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(launcher.wait().unwrap().code(), Some(141), "{err}");
    assert!(err.contains("nobody reads the launcher's stdout any more; ending "), "{err}");
    bed.assert_nobody_left();
}

#[test]
fn what_launch_decides_cannot_be_set_beside_it() {
    let bed = Bed::new();
    for (pair, instead) in [("cluster.workers=5", "use --workers"), ("scheduler.port=70000", "free port")] {
        let (output, _) = bed.run(&["--set", pair], &["true"]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(pair.split('=').next().unwrap()) && text.contains(instead), "{text}");
        assert_eq!(bed.pids(), Vec::<u32>::new(), "nothing was started");
    }
}

/// Whose death the job survives is started again, so often; the rest ends it as ever.
#[test]
fn seats_are_filled_again_where_the_job_goes_on() {
    let bed = Bed::new();
    let script = r#"echo life >> $0.lives; [ $(wc -l < $0.lives) -ge 3 ] || kill -9 $$; echo done"#;
    let lives = bed.path("worker");
    let program = ["sh", "-c", script, lives.to_str().unwrap()];
    let wait = ["--set", "cluster.worker_loss=wait"];
    let (output, _) = bed.run(&[&["--restart"], &wait[..]].concat(), &program);
    let err = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "done\n"), "{err}");
    for words in
        ["killed by signal 9; restarting it in 250 ms (restart 1 of 3)", "in 500 ms (restart 2 of 3)"]
    {
        assert!(err.contains(words), "{words:?} is missing in {err}");
    }
    assert!(err.contains("a failed server is not restarted, because its failure ends the job"), "{err}");
    std::fs::remove_file(bed.path("worker.lives")).unwrap();
    let (output, _) = bed.run(&[&["--restart=1"], &wait[..]].concat(), &program);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(137), "{err}");
    assert!(err.contains("worker 0 failed first: killed by signal 9"), "{err}");
    bed.assert_nobody_left();
}

/// Who was turned away for the moment is started again; who is told that another life would be turned away as well is not.
#[test]
fn seats_of_those_who_may_come_later_are_filled_again() {
    let bed = Bed::new();
    let lives = bed.path("worker");
    let wait = ["--restart=2", "--set", "cluster.worker_loss=wait"];
    for (code, expected, made) in [(69, 0, 2), (73, 73, 1)] {
        let script = format!(r#"echo life >> $0.lives; [ $(wc -l < $0.lives) -ge 2 ] || exit {code}"#);
        let (output, _) = bed.run(&wait, &["sh", "-c", &script, lives.to_str().unwrap()]);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(expected), "{err}");
        assert_eq!(err.contains("restarting it in 250 ms (restart 1 of 2)"), expected == 0, "{err}");
        let lived = std::fs::read_to_string(bed.path("worker.lives")).unwrap();
        assert_eq!(lived.lines().count(), made, "{err}");
        std::fs::remove_file(bed.path("worker.lives")).unwrap();
    }
    bed.assert_nobody_left();
}

/// Whose death the settings spare is no end: nobody is told to go, and the rest decides the code.
#[test]
fn a_job_that_goes_on_without_a_member_is_left_alone() {
    let bed = Bed::new();
    let go_on = ["-n", "3", "--set", "cluster.worker_loss=continue"];
    // Longer than both of the launcher's graces after the death.
    let script = r#"[ "$GRADWIRE_NODE__RANK" = 1 ] && kill -9 $$; sleep 1; [ "$GRADWIRE_NODE__RANK" = 0 ] && echo done; exit 0"#;
    let (output, _) = bed.run(&go_on, &["sh", "-c", script]);
    let err = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "done\n"), "{err}");
    for words in [
        "worker 1 ended: killed by signal 9; the job continues without it",
        "succeeded without worker 1, which failed",
    ] {
        assert!(err.contains(words), "{words:?} is missing in {err}");
    }
    // A server with a copy of what it has, too.
    bed.program("gradwire-server", "[ \"$GRADWIRE_NODE__RANK\" = 0 ] || kill -9 $$\nexec $BED/nap 1\n");
    let copies = ["-s", "2", "--set", "cluster.replicas=1"];
    let (output, _) = bed.run(&copies, &["sh", "-c", "sleep 1"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(err.contains("server 1 ended: killed by signal 9; the job continues without it"), "{err}");
    bed.assert_nobody_left();
}

/// Where the job ends all the same, the code is that of the first who died, after the grace.
#[test]
fn a_loss_that_ends_the_job_in_the_end_gives_the_code() {
    let bed = Bed::new();
    let go_on = ["-n", "3", "--set", "cluster.worker_loss=continue"];
    let script = r#"case $GRADWIRE_NODE__RANK in 1) kill -9 $$;; 0) sleep 0.3; exit 71;; esac; sleep 1000"#;
    // Neither the last worker nor any with the default goes on alone, and a scheduler is not done without.
    let last = r#"sleep 0.$GRADWIRE_NODE__RANK; exit 5"#;
    for (flags, script, code, words) in [
        (&go_on[..], script, 137, "worker 1 failed first: killed by signal 9"),
        (&go_on, last, 5, "worker 2 failed first: exit code 5"),
        (&["-n", "3"], script, 137, "worker 1 failed first: killed by signal 9"),
        (
            &["-n", "3", "--set", "cluster.worker_loss=wait"],
            script,
            137,
            "the others would wait for it, and without --restart it is not restarted",
        ),
    ] {
        let (output, took) = bed.run(flags, &["sh", "-c", script]);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{err}");
        assert!(err.contains(words), "{words:?} is missing in {err}");
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
    bed.assert_nobody_left();
}

/// `--env NAME` takes the value of the caller's environment; one that is not set is an error before anything starts.
#[test]
fn a_variable_without_a_value_is_the_callers() {
    let bed = Bed::new();
    let flags = ["--env", "FOO", "--env", "BAR:8", "--env-worker", "EMPTY"];
    let script = r#"echo "$FOO $BAR <$EMPTY> ${PYTHONUNBUFFERED-unset}""#;
    let mut command = bed.launch(&flags, &["sh", "-c", script]);
    command.env_remove("PYTHONUNBUFFERED");
    let output = command.env("FOO", "1").env("BAR", "7").env("EMPTY", "").output().unwrap();
    assert_eq!(text(&output.stdout), "1 8 <> 1\n", "{}", text(&output.stderr));
    // Users who want Python to buffer say so with an empty variable.
    let mut buffered = bed.launch(&["--env", "FOO"], &["sh", "-c", script]);
    let output = buffered.env("FOO", "1").env("PYTHONUNBUFFERED", "").output().unwrap();
    assert_eq!(text(&output.stdout), "1  <> \n", "{}", text(&output.stderr));
    for (name, words) in [("NOT_SET_ANYWHERE", "is not set here"), ("A-B", "write NAME:VALUE")] {
        let (output, _) = bed.run(&["--env", name], &["true"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
}

/// The flags of BytePS's launcher that have two letters are taken, and only before the program.
#[test]
fn flags_of_two_letters_are_taken_before_the_program() {
    let bed = Bed::new();
    std::fs::write(bed.path("hosts"), "localhost slots=8\n").unwrap();
    let hosts = bed.path("hosts");
    let hosts = hosts.to_str().unwrap();
    // `sh -c LAST` is what this ssh runs; it starts with an empty environment, as sshd does.
    bed.program("ssh", "for last; do :; done\nexec env -i PATH=/usr/bin:/bin sh -c \"$last\"\n");
    let ssh = bed.path("ssh");
    let flags = ["-n", "2", "-s", "1", "-SH", hosts, "-WH", hosts, "--ssh", ssh.to_str().unwrap()];
    let (output, _) = bed.run(&flags, &["sh", "-c", "echo $1 $2", "sh", "-SH", "-x"]);
    let err = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "-SH -x\n"), "{err}");
}

/// Without `-s` there is one server, as the help says, also where other launchers start more.
#[test]
fn one_server_unless_given_and_the_help_names_the_difference() {
    let bed = Bed::new();
    let (output, _) = bed.run(&["-n", "3", "--launcher", "local"], &["sh", "-c", "echo $DMLC_NUM_SERVER"]);
    assert_eq!(text(&output.stdout), "1\n");
    let help = text(&Command::new(GRADWIRE).args(["launch", "--help"]).output().unwrap().stdout);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("(MXNet's launch.py starts as many servers as workers by default.)"), "{help}");
}

/// What Python prints arrives at once, and is there when the process is killed.
#[test]
fn python_does_not_buffer_what_it_prints() {
    let bed = Bed::new();
    let script = "import os; print('step 1'); os.kill(os.getpid(), 9)";
    let mut command = bed.launch(&[], &["python3", "-c", script]);
    let output = command.env_remove("PYTHONUNBUFFERED").output().unwrap();
    let err = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(137), "step 1\n"), "{err}");
    assert!(err.contains("worker 0 said last: step 1\n"), "{err}");
}

/// Progress bars repaint their line: the latest frame shows while they run, and alone at the end.
#[test]
fn progress_shows_while_it_runs_and_the_last_frame_is_the_last_word() {
    let bed = Bed::new();
    // It goes on when the test has seen a frame, so the time between frames is nobody's guess.
    let seen = bed.path("seen");
    let script = format!(
        r#"printf '\r0/9\r1/9' >&2; until [ -e {} ]; do sleep 0.01; done; i=2; while [ $i -le 9 ]; do printf '\r%s/9' $i >&2; i=$((i+1)); done; kill -9 $$"#,
        seen.display()
    );
    let mut launcher = bed.launch(&[], &["sh", "-c", &script]).spawn().unwrap();
    let mut lines = BufReader::new(launcher.stderr.take().unwrap()).lines().map(Result::unwrap);
    let frame = lines.find(|line| line.starts_with("[worker 0]")).unwrap();
    assert_eq!(frame, "[worker 0] 1/9", "the latest one, before the line has ended");
    std::fs::write(&seen, "").unwrap();
    let rest: Vec<String> = lines.collect();
    assert_eq!(launcher.wait().unwrap().code(), Some(137));
    assert!(rest.contains(&"[launch]   worker 0 said last: 9/9".to_owned()), "{rest:?}");
    assert_eq!(rest.iter().filter(|line| line.contains("said last")).count(), 1, "{rest:?}");
    // On the stdout of worker 0, which passes as it is, returns do as well.
    let (output, _) = bed.run(&[], &["sh", "-c", r"printf 'a\r\n0/1\r1/1\r\nb'"]);
    assert_eq!(text(&output.stdout), "a\r\n0/1\r1/1\r\nb\n");
}

/// A command line in one word, a variable before the program: the error names the way out. Odd arguments pass byte for byte.
#[test]
fn a_command_in_one_word_has_a_hint_and_odd_arguments_pass() {
    let bed = Bed::new();
    for (program, words) in [
        (&["python3 -c 'print(1)'"][..], "pass the program and its arguments as separate words"),
        (&["OMP_NUM_THREADS=2", "python3"], "--env OMP_NUM_THREADS=2"),
    ] {
        let (output, _) = bed.run(&[], program);
        let err = text(&output.stderr);
        assert!(output.status.code() == Some(2) && err.contains(words), "{err}");
    }
    let odd = ["x y", "$HOME", "it's", "", "é \"q\" \\n", "*"];
    let show = [&["sh", "-c", r#"printf '<%s>' "$@""#, "sh"][..], &odd].concat();
    let (output, _) = bed.run(&[], &show);
    let expected: String = odd.iter().map(|arg| format!("<{arg}>")).collect();
    assert_eq!(text(&output.stdout), expected + "\n", "{}", text(&output.stderr));
}

#[test]
fn without_workers_it_starts_scheduler_and_servers_for_the_workers_of_others() {
    let bed = Bed::new();
    bed.program("gradwire-server", "echo \"of $GRADWIRE_CLUSTER__WORKERS, job $GRADWIRE_JOB.\"; exit 3\n");
    let (output, _) = bed.run(&["--workers", "0", "--set", "cluster.workers=3"], &[]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("[server 0] of 3, job .\n"), "{err}");
    let invitation = "for workers with GRADWIRE_SCHEDULER__HOST=127.0.0.1 GRADWIRE_SCHEDULER__PORT=1\n";
    assert!(err.contains(invitation), "{err}");
    bed.assert_nobody_left();
    let count = "--set cluster.workers=N";
    for (flags, program, words) in [
        (&["-n", "0"][..], &[][..], count),
        (&["-n", "0", "--set", "cluster.workers=0"], &[], count),
        (&["-n", "0", "--set", "cluster.workers=2"], &["true"], "remove PROGRAM"),
        (&["-n", "0", "--set", "cluster.workers=2", "--every-role"], &[], "without --every-role"),
        (&["-n", "1"], &[], "no PROGRAM"),
        (&["-n", "1", "--set", "cluster.workers=2"], &["true"], "use --workers"),
    ] {
        let (output, _) = bed.run(flags, program);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains(words), "{words:?} is missing in {err}");
    }
}
