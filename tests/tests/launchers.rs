//! `gradwire launch` under what starts programs elsewhere: a real sshd on loopback, a Slurm of two nodes on this host,
//! Open MPI. What is trained there ends with the bits of the reference; what fails there ends with its own code and
//! leaves nobody behind.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{PATIENCE, Place};
use gradwire_tests::rigs::netns::Net;
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::programs::{program, repository};
use gradwire_tests::rigs::training::{TRAIN, hash_in, reference};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        // Sleep: other people's programs, which say nothing when they are ready.
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A directory that is gone when its holder is.
struct Bed {
    directory: TempDir,
}

impl Bed {
    fn new() -> Self {
        Self { directory: TempDir::new().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Processes whose command line names this bed.
    fn assert_nobody_left(&self) {
        let own = self.directory.path().to_str().unwrap();
        until("everyone to be gone", || {
            let commands = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
                entry.file_name().to_str()?.parse::<u32>().ok()?;
                std::fs::read(entry.path().join("cmdline")).ok()
            });
            let naps = format!("{own}/nap").into_bytes();
            !commands.into_iter().any(|command| command.windows(naps.len()).any(|part| part == naps))
        });
    }
}

/// A launch with real daemons and what it ended with.
fn launch(env: &[(&str, &str)], flags: &[&str], worker: &[&str]) -> (i32, String) {
    let mut command = Place::default().command("gradwire");
    command.arg("launch").args(flags).arg("--").args(worker).envs(env.iter().copied());
    let mut process = Process::start("launch", &mut command);
    let code = process.expect_end(PATIENCE);
    (code, process.log().text())
}

/// The trainer of the demo, whose result is compared with the reference's.
fn trainer() -> Vec<String> {
    let path = program("gradwire-worker").to_str().unwrap().to_owned();
    [vec![path, "train".into()], TRAIN.map(str::to_owned).to_vec()].concat()
}

/// Trains, and returns what was said, with each worker's place on its host in it.
fn trains(env: &[(&str, &str)], flags: &[&str], workers: u32) -> String {
    let trainer = telling_trainer();
    let words: Vec<&str> = trainer.iter().map(String::as_str).collect();
    let (code, text) = launch(env, flags, &words);
    assert_eq!(code, 0, "{text}");
    assert_eq!(hash_in(&text), reference(workers), "{text}");
    text
}

/// The trainer, by way of a shell that says its place first.
fn telling_trainer() -> Vec<String> {
    let script =
        "echo \"worker $DMLC_WORKER_ID is $BYTEPS_LOCAL_RANK/$BYTEPS_LOCAL_SIZE\"; exec \"$0\" \"$@\"";
    [vec!["sh".into(), "-c".into(), script.into()], trainer()].concat()
}

/// Each worker, in order, took its number among the workers of its host.
fn assert_places(text: &str, places: &[&str]) {
    for (rank, place) in places.iter().enumerate() {
        assert!(
            text.contains(&format!("worker {rank} is {place}\n")),
            "worker {rank} is not {place}: {text}"
        );
    }
}

/// One worker fails before anything else, one waits for ever; the first one's code counts.
fn fails(bed: &Bed, env: &[(&str, &str)], flags: &[&str]) -> String {
    let nap = bed.path("nap");
    let _ = std::os::unix::fs::symlink("/bin/sleep", &nap);
    let script =
        format!("[ $DMLC_WORKER_ID = 1 ] && {{ echo no data; exit 65; }}; {} 1000 & wait", nap.display());
    let (code, text) = launch(env, flags, &["sh", "-c", &script]);
    assert_eq!(code, 65, "{text}");
    assert!(text.contains("exit code 65 (a data, model or checkpoint file that cannot be used)"), "{text}");
    assert!(text.contains("worker 1 said last: no data"), "{text}");
    bed.assert_nobody_left();
    text
}

/// An sshd for this user, on loopback.
struct Sshd {
    bed: Bed,
    port: u16,
    ssh: String,
    _daemon: Process,
}

impl Sshd {
    fn start() -> Self {
        Self::start_at(Place::default(), "127.0.0.1")
    }

    fn start_at(place: Place, address: &str) -> Self {
        let (bed, port) = (Bed::new(), free_port());
        for key in ["host_key", "key"] {
            done(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(bed.path(key)));
        }
        let at = |name: &str| bed.path(name).display().to_string();
        let config = format!(
            "Port {port}\nListenAddress {address}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
             PasswordAuthentication no\nPermitRootLogin yes\nPidFile none\nClientAliveInterval 5\nClientAliveCountMax 8\n",
            at("host_key"),
            at("key.pub"),
        );
        let config = bed.write("sshd_config", &config);
        // It drops its rights in there, and wants it to be.
        let _ = std::fs::create_dir_all("/run/sshd");
        let words =
            [&place.prefix[..], &["/usr/sbin/sshd".into(), "-D".into(), "-e".into(), "-f".into()]].concat();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(config);
        let daemon = Process::start("sshd", &mut command);
        let client = format!(
            "Host *\nIdentityFile {}\nIdentitiesOnly yes\nUserKnownHostsFile /dev/null\nStrictHostKeyChecking no\nLogLevel ERROR\n",
            at("key"),
        );
        let ssh = format!("ssh -F {}", bed.write("ssh_config", &client).display());
        until("sshd", || daemon.log().text().contains("Server listening"));
        Self { bed, port, ssh, _daemon: daemon }
    }

    fn flags<'a>(&'a self, hosts: &'a str) -> [&'a str; 4] {
        ["--ssh", &self.ssh, "--host-file", hosts]
    }

    fn hosts(&self) -> String {
        let port = self.port;
        self.bed
            .write("hosts", &format!("127.0.0.1:{port} slots=3\nlocalhost:{port}\n"))
            .display()
            .to_string()
    }
}

#[test]
#[ignore = "slow tier: needs sshd"]
fn trains_over_ssh_with_the_references_bits() {
    let sshd = Sshd::start();
    let hosts = sshd.hosts();
    trains(&[], &[&sshd.flags(&hosts)[..], &["-n", "4", "-s", "2"]].concat(), 4);
}

#[test]
#[ignore = "slow tier: needs sshd"]
fn over_ssh_the_first_failure_counts_and_nobody_is_left() {
    let sshd = Sshd::start();
    let hosts = sshd.hosts();
    let text = fails(&sshd.bed, &[], &[&sshd.flags(&hosts)[..], &["-n", "3", "-s", "1"]].concat());
    assert!(text.contains("worker 1 on 127.0.0.1 failed first: "), "{text}");

    let closed = sshd.bed.write("closed", &format!("127.0.0.1:{}\n", free_port()));
    let (code, text) = launch(&[], &sshd.flags(closed.to_str().unwrap()), &["true"]);
    assert!(code == 74 && text.contains("ssh does not reach 127.0.0.1"), "{code}: {text}");
    assert!(text.contains("Connection refused"), "{text}");
    let nobody = sshd.bed.write("nobody", &format!("no-such-user@127.0.0.1:{}\n", sshd.port));
    let (code, text) = launch(&[], &sshd.flags(nobody.to_str().unwrap()), &["true"]);
    assert!(code == 74 && text.contains("Permission denied"), "{code}: {text}");
}

#[test]
#[ignore = "slow tier: needs sshd and rsync"]
fn the_working_directory_is_copied_first() {
    let sshd = Sshd::start();
    let (hosts, there) = (sshd.hosts(), sshd.bed.path("there"));
    let here = sshd.bed.path("here");
    std::fs::create_dir(&here).unwrap();
    std::fs::write(here.join("script"), "echo from $PWD\n").unwrap();
    let mut command = Place::default().command("gradwire");
    let flags = [&sshd.flags(&hosts)[..], &["--sync-dst-dir", there.to_str().unwrap()]].concat();
    command.arg("launch").args(flags).args(["--", "sh", "./script"]).current_dir(&here);
    let mut process = Process::start("launch", &mut command);
    assert_eq!(process.expect_end(PATIENCE), 1, "it never joined, which launch does not take for done");
    assert!(process.log().text().contains(&format!("from {}", there.display())));
    assert!(there.join("script").is_file());
}

/// Three hosts with cables between them: the launcher on the hub, an sshd on each of the others.
fn launch_from_the_hub(net: &Net, sshds: &[Sshd], more: &[&str], worker: &[&str]) -> Process {
    let bed = &sshds[0].bed;
    // The first one's key opens all of them.
    let key = read(&bed.path("key.pub"));
    sshds.iter().for_each(|sshd| drop(sshd.bed.write("key.pub", &key)));
    let line = |(index, sshd): (usize, &Sshd)| format!("{}:{}\n", Net::address(index + 1), sshd.port);
    let hosts = bed.write("hosts", &sshds.iter().enumerate().map(line).collect::<String>());
    let mut command = net.place(0).command("gradwire");
    command.arg("launch").args(sshds[0].flags(hosts.to_str().unwrap())).args(["-n", "3", "-s", "1"]);
    Process::start("launch", command.args(more).arg("--").args(worker))
}

#[test]
#[ignore = "slow tier: needs sshd and network namespaces"]
fn between_hosts_addresses_are_found_and_nothing_is_open_unasked() {
    let net = Net::new(2);
    let sshds = [1, 2].map(|host| Sshd::start_at(net.place(host), &Net::address(host)));
    let trainer = trainer();
    let words: Vec<&str> = trainer.iter().map(String::as_str).collect();
    let mut open = launch_from_the_hub(&net, &sshds, &["--set", "security.mode=off"], &words);
    assert_eq!(open.expect_end(PATIENCE), 0, "{}", open.log().text());
    assert_eq!(hash_in(&open.log().text()), reference(3));
    let mut closed = launch_from_the_hub(&net, &sshds, &[], &words);
    assert_eq!(closed.expect_end(PATIENCE), 78, "{}", closed.log().text());
    assert!(closed.log().text().contains("set security.mode = \"off\""), "{}", closed.log().text());
}

#[test]
#[ignore = "slow tier: needs sshd and network namespaces"]
fn a_host_that_is_cut_off_is_told_and_ends_by_itself() {
    let net = Net::new(2);
    let sshds = [1, 2].map(|host| Sshd::start_at(net.place(host), &Net::address(host)));
    let bed = &sshds[0].bed;
    let nap = bed.path("nap");
    std::os::unix::fs::symlink("/bin/sleep", &nap).unwrap();
    let nap = nap.to_str().unwrap();
    let mut launch = launch_from_the_hub(&net, &sshds, &["--set", "security.mode=off"], &[nap, "1000"]);
    until("three workers", || names(nap) == 3);
    net.cut(2);
    let code = launch.expect_end(PATIENCE);
    let text = launch.log().text();
    assert!(
        code == 255 && text.contains(&format!("on {} failed first: ", Net::address(2))),
        "{code}: {text}"
    );
    assert!(text.contains(&format!("the line to {} was lost", Net::address(2))), "{text}");
    // Nobody could tell the others there: they have not heard of their launcher.
    bed.assert_nobody_left();
}

/// Slurm with two nodes that are this host.
struct Slurm {
    bed: Bed,
    _daemons: Vec<Process>,
}

impl Slurm {
    fn start() -> Self {
        let bed = Bed::new();
        let at = |name: &str| bed.path(name).display().to_string();
        let key = bed.write("munge.key", &"gradwire".repeat(32));
        done(Command::new("chmod").arg("600").arg(&key));
        // munge refuses sockets where others could not reach them.
        done(Command::new("chmod").arg("755").arg(bed.directory.path()));
        let host = done(&mut Command::new("hostname"));
        let host = host.trim().split('.').next().unwrap().to_owned();
        let nodes: String = (1..=2)
            .map(|node| {
                std::fs::create_dir_all(bed.path(&format!("spool/n{node}"))).unwrap();
                format!(
                    "NodeName=n{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs=8\n",
                    free_port()
                )
            })
            .collect();
        std::fs::create_dir(bed.path("state")).unwrap();
        let config = format!(
            "ClusterName=gradwire\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\nAuthType=auth/munge\n\
             AuthInfo=socket={munge}\nCredType=cred/munge\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             JobAcctGatherType=jobacct_gather/none\nMpiDefault=none\nSlurmUser=root\nSlurmdUser=root\n\
             SlurmdParameters=config_overrides\nStateSaveLocation={}\nSlurmdSpoolDir={}/%n\nSlurmctldPidFile={}\n\
             SlurmdPidFile={}-%n\nSwitchType=switch/none\nReturnToService=2\nKillWait=5\n{nodes}\
             PartitionName=p Nodes=n1,n2 Default=YES OverSubscribe=YES State=UP\n",
            free_port(),
            at("state"),
            at("spool"),
            at("slurmctld.pid"),
            at("slurmd.pid"),
            munge = at("munge.sock"),
        );
        let config = bed.write("slurm.conf", &config);
        let mut daemons = Vec::new();
        let mut munged = Command::new("munged");
        munged.args(["--foreground", "--force"]).arg(format!("--key-file={}", key.display()));
        for (flag, name) in [
            ("socket", "munge.sock"),
            ("pid-file", "munge.pid"),
            ("seed-file", "munge.seed"),
            ("log-file", "munge.log"),
        ] {
            munged.arg(format!("--{flag}={}", at(name)));
        }
        daemons.push(Process::start("munged", &mut munged));
        until("munged", || bed.path("munge.sock").exists());
        daemons.push(Process::start("slurmctld", Command::new("slurmctld").arg("-D").arg("-f").arg(&config)));
        for node in ["n1", "n2"] {
            let mut slurmd = Command::new("slurmd");
            slurmd.args(["-D", "-N", node, "-f"]).arg(&config);
            daemons.push(Process::start(node, &mut slurmd));
        }
        until("both nodes", || {
            let mut sinfo = Command::new("sinfo");
            sinfo.args(["-h", "-o", "%T %D"]).env("SLURM_CONF", &config);
            sinfo.output().is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("idle 2"))
        });
        Self { bed, _daemons: daemons }
    }

    fn config(&self) -> String {
        self.bed.path("slurm.conf").display().to_string()
    }

    fn idle(&self) -> bool {
        let queue = done(Command::new("squeue").arg("-h").env("SLURM_CONF", self.config()));
        queue.trim().is_empty()
    }
}

impl Drop for Slurm {
    /// The last step's keeper outlives a controller that it cannot reach any more.
    fn drop(&mut self) {
        let own = self.bed.directory.path().as_os_str().as_encoded_bytes();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let is = |file: &str, part: &[u8]| {
                let text = std::fs::read(entry.path().join(file)).unwrap_or_default();
                text.windows(part.len()).any(|found| found == part)
            };
            if is("comm", b"slurmstepd") && is("environ", own) {
                let _ = Command::new("kill").arg("-KILL").arg(entry.file_name()).status();
            }
        }
    }
}

#[test]
#[ignore = "slow tier: needs Slurm"]
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
    assert!(text.contains("leads to n1"), "a name without an address is told: {text}");
    until("the jobs to be over", || slurm.idle());
}

#[test]
#[ignore = "slow tier: needs Slurm"]
fn under_slurm_the_first_failure_counts_and_nobody_is_left() {
    let slurm = Slurm::start();
    let config = slurm.config();
    let env = [("SLURM_CONF", config.as_str())];
    let text = fails(&slurm.bed, &env, &["--cluster", "slurm", "-n", "2", "-s", "1"]);
    assert!(text.contains("worker 1 failed: "), "{text}");
    until("the job to be over", || slurm.idle());

    // A batch script: the tasks of its allocation that are neither scheduler nor server are workers.
    let trainer = trainer().join(" ");
    let gradwire = program("gradwire").display().to_string();
    let script = format!("#!/bin/sh\n{gradwire} launch --cluster slurm -s 1 -- {trainer}\n");
    let (script, out) = (slurm.bed.write("batch.sh", &script), slurm.bed.path("batch.out"));
    let mut batch = Command::new("sbatch");
    batch.args(["--wait", "--ntasks=4", "--ntasks-per-node=4", "--output"]).arg(&out).arg(script);
    done(batch.env("SLURM_CONF", &config).current_dir(repository()));
    assert_eq!(hash_in(&read(&out)), reference(2), "{}", read(&out));

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

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// How many processes are this program.
fn names(path: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let commands = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    commands.filter(|command| command.starts_with(path.as_bytes())).count()
}

/// mpirun refuses to run as root, and more ranks than cores, unless told.
const MPI: [(&str, &str); 3] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
];

#[test]
#[ignore = "slow tier: needs Open MPI"]
fn trains_under_mpirun_with_the_references_bits() {
    assert_places(&trains(&MPI, &["--cluster", "mpi", "-n", "2", "-s", "1"], 2), &["0/2", "1/2"]);
    let bed = Bed::new();
    fails(&bed, &MPI, &["--cluster", "mpi", "-n", "2", "-s", "1"]);
}

#[test]
#[ignore = "slow tier: needs Open MPI and MPICH"]
fn ranks_that_either_mpi_has_started_find_one_another() {
    for mpirun in ["mpirun.openmpi", "mpirun.mpich"] {
        let mut command = Command::new(mpirun);
        command.args(["-n", "5"]).arg(program("gradwire")).args([
            "launch",
            "--cluster",
            "mpi",
            "-s",
            "2",
            "--",
        ]);
        command.args(telling_trainer()).envs(MPI).current_dir(repository());
        let mut process = Process::start(mpirun, &mut command);
        assert_eq!(process.expect_end(PATIENCE), 0, "{}", process.log().text());
        assert_eq!(hash_in(&process.log().text()), reference(2), "{mpirun}");
        assert_places(&process.log().text(), &["0/2", "1/2"]);
    }
}
