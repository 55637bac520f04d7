//! `gradwire launch` under what starts programs elsewhere: a real sshd on loopback, Open MPI, MPICH (Slurm has a suite of its own).
//! What is trained there ends with the bits of the reference; what fails there ends with its own code and leaves nobody behind.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{PATIENCE, Place};
use gradwire_tests::rigs::launching::{
    Bed, CERTIFICATE, assert_certificates, assert_places, done, fails, launch, names, own_certificates, read,
    showing_trainer, telling_trainer, trainer, trains, until,
};
use gradwire_tests::rigs::netns::Net;
use gradwire_tests::rigs::ports::free_port;
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::programs::{program, repository};
use gradwire_tests::rigs::training::{hash_in, reference};
use std::process::Command;

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
        let (bed, port) = (Bed::default(), free_port());
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
    assert!(code == 74 && text.contains("ssh cannot reach 127.0.0.1"), "{code}: {text}");
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
fn between_hosts_addresses_are_found_and_processes_know_each_other() {
    let net = Net::new(2);
    let sshds = [1, 2].map(|host| Sshd::start_at(net.place(host), &Net::address(host)));
    let trainer = trainer();
    let words: Vec<&str> = trainer.iter().map(String::as_str).collect();
    let warning = "security.mode = \"off\": peers beyond loopback are not authenticated";
    for (more, is_open) in [(&[][..], false), (&["--set", "security.mode=off"], true)] {
        let mut launch = launch_from_the_hub(&net, &sshds, more, &words);
        assert_eq!(launch.expect_end(PATIENCE), 0, "{}", launch.log().text());
        let text = launch.log().text();
        assert_eq!(hash_in(&text), reference(3));
        assert_eq!(text.contains(warning), is_open, "{text}");
    }
    // What everybody is told to do without is not there.
    let mut closed = launch_from_the_hub(&net, &sshds, &["--set", "security.mode=auto"], &words);
    assert_eq!(closed.expect_end(PATIENCE), 78, "{}", closed.log().text());
    assert!(closed.log().text().contains("gradwire certs"), "{}", closed.log().text());
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
    assert!(text.contains(&format!("the ssh connection to {} was lost", Net::address(2))), "{text}");
    // Nobody could tell the others there: they have not heard of their launcher.
    bed.assert_nobody_left();
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
    let bed = Bed::default();
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

/// Two hosts of a net for mpirun on the hub, which reaches them through a stand-in for ssh.
struct MpiHosts {
    bed: Bed,
    net: Net,
}

impl MpiHosts {
    fn new() -> Self {
        let (bed, net) = (Bed::default(), Net::new(2));
        let names = bed.write("hosts", &net.hosts());
        let quoted = |word: &String| format!("'{word}'");
        let enter = |host| {
            let words: Vec<String> = net.named_place(host, &names).prefix.iter().map(quoted).collect();
            format!("n{host}) exec {} sh -c \"$*\" ;;\n", words.join(" "))
        };
        let skip = "while [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1\nshift\n";
        let agent =
            bed.write("agent", &format!("#!/bin/sh\n{skip}case $host in\n{}{}esac\n", enter(1), enter(2)));
        done(Command::new("chmod").arg("755").arg(agent));
        bed.write("openmpi", "n1 slots=3\nn2 slots=3\n");
        bed.write("mpich", "n1:3\nn2:3\n");
        Self { bed, net }
    }

    /// A program on the hub that calls the mpirun of this MPI.
    fn command(&self, mpi: &str, program: &str) -> Command {
        let bin = self.bed.path(&format!("bin-{mpi}"));
        std::fs::create_dir_all(&bin).unwrap();
        // No link: Hydra looks for its other programs beside the name that it was called by.
        let mpirun =
            self.bed.write(&format!("bin-{mpi}/mpirun"), &format!("#!/bin/sh\nexec mpirun.{mpi} \"$@\"\n"));
        done(Command::new("chmod").arg("755").arg(mpirun));
        let place = self.net.named_place(0, &self.bed.path("hosts"));
        let mut command = Command::new(&place.prefix[0]);
        command.args(&place.prefix[1..]).arg(program).current_dir(repository()).envs(MPI);
        command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
        let agent = self.bed.path("agent");
        command.env("OMPI_MCA_plm_rsh_agent", &agent).env("HYDRA_LAUNCHER_EXEC", &agent);
        command
    }

    fn trains(&self, mpi: &str, env: &[(String, String)], certificate: &str) {
        let mut command = self.command(mpi, program("gradwire").to_str().unwrap());
        command.args(["launch", "--cluster", "mpi", "-n", "3", "-s", "2", "-H"]).arg(self.bed.path(mpi));
        command.arg("--").args(showing_trainer()).envs(env.iter().cloned());
        let mut process = Process::start(mpi, &mut command);
        let code = process.expect_end(PATIENCE);
        let text = process.log().text();
        assert_eq!(code, 0, "{text}");
        assert_eq!(hash_in(&text), reference(3), "{text}");
        assert_certificates(&text, &["n2"; 3], certificate);
    }
}

#[test]
#[ignore = "slow tier: needs Open MPI, MPICH and network namespaces"]
fn between_hosts_either_mpi_trains_with_certificates() {
    let hosts = MpiHosts::new();
    let own = own_certificates(&hosts.bed);
    for mpi in ["openmpi", "mpich"] {
        hosts.trains(mpi, &[], CERTIFICATE);
    }
    hosts.trains("openmpi", &own, &own[1].1);

    let mut by_hand = hosts.command("openmpi", "mpirun");
    by_hand.args(["-n", "4", "--map-by", "node", "--hostfile"]).arg(hosts.bed.path("openmpi"));
    by_hand.arg(program("gradwire")).args(["launch", "--cluster", "mpi", "--host-ip", "n1", "--"]);
    let mut process = Process::start("mpirun", by_hand.args(trainer()));
    assert_eq!(process.expect_end(PATIENCE), 78, "{}", process.log().text());
    let text = process.log().text();
    assert!(text.contains("run gradwire launch --cluster mpi without mpirun"), "{text}");
}
