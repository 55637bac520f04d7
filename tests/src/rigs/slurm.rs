//! A real Slurm on this host: controller, two nodes, and a munge of its own, in a directory that is removed with it. The nodes are
//! processes on loopback, or hosts of a [`Net`] with addresses of their own.

use super::cluster::Place;
use super::launching::{Bed, done, free_port, until};
use super::netns::Net;
use super::process::Process;
use std::process::Command;

/// Slurm with the nodes `n1` and `n2`.
#[derive(Debug)]
pub struct Slurm {
    /// Where its files are, and the test's.
    pub bed: Bed,
    /// Where users call its commands.
    place: Place,
    _daemons: Vec<Process>,
}

impl Slurm {
    /// Starts it on loopback; returns when both nodes are idle.
    #[must_use]
    pub fn start() -> Self {
        Self::start_at(["127.0.0.1"; 3].map(|address| (Place::default(), address.to_owned())))
    }

    /// Starts it with the controller on the hub of a net and a node on each of its first two hosts. On all of them `n1` and
    /// `n2` are the names of the nodes' addresses.
    #[must_use]
    pub fn between(net: &Net) -> Self {
        net.name_hosts("n");
        let host = |host| (net.place(host), Net::address(host));
        Self::start_at([(net.place(0), Net::HUB.into()), host(1), host(2)])
    }

    /// The controller's place and address, and those of both nodes.
    fn start_at(hosts: [(Place, String); 3]) -> Self {
        let [(place, address), nodes_at @ ..] = hosts;
        let bed = Bed::default();
        let at = |name: &str| bed.path(name).display().to_string();
        let key = bed.write("munge.key", &"gradwire".repeat(32));
        done(Command::new("chmod").arg("600").arg(&key));
        // munge refuses sockets where others could not reach them.
        done(Command::new("chmod").arg("755").arg(bed.directory()));
        let host = done(&mut Command::new("hostname"));
        let host = host.trim().split('.').next().unwrap().to_owned();
        let nodes: String = (1..=2)
            .zip(&nodes_at)
            .map(|(node, (_, address))| {
                std::fs::create_dir_all(bed.path(&format!("spool/n{node}"))).unwrap();
                format!(
                    "NodeName=n{node} NodeHostname={host} NodeAddr={address} Port={} CPUs=8\n",
                    free_port()
                )
            })
            .collect();
        std::fs::create_dir(bed.path("state")).unwrap();
        let config = format!(
            "ClusterName=gradwire\nSlurmctldHost={host}({address})\nSlurmctldPort={}\nAuthType=auth/munge\n\
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
        let mut slurmctld = command_in(&place, "slurmctld");
        daemons.push(Process::start("slurmctld", slurmctld.arg("-D").arg("-f").arg(&config)));
        for (node, (place, _)) in ["n1", "n2"].into_iter().zip(&nodes_at) {
            let mut slurmd = command_in(place, "slurmd");
            slurmd.args(["-D", "-N", node, "-f"]).arg(&config);
            daemons.push(Process::start(node, &mut slurmd));
        }
        until("both nodes", || {
            let mut sinfo = command_in(&place, "sinfo");
            sinfo.args(["-h", "-o", "%T %D"]).env("SLURM_CONF", &config);
            sinfo.output().is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("idle 2"))
        });
        Self { bed, place, _daemons: daemons }
    }

    /// A command of a user of this Slurm.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = command_in(&self.place, program);
        command.env("SLURM_CONF", self.config());
        command
    }

    /// Its settings file, for SLURM_CONF.
    #[must_use]
    pub fn config(&self) -> String {
        self.bed.path("slurm.conf").display().to_string()
    }

    /// Does no job run or wait?
    #[must_use]
    pub fn idle(&self) -> bool {
        let queue = done(self.command("squeue").arg("-h"));
        queue.trim().is_empty()
    }
}

fn command_in(place: &Place, program: &str) -> Command {
    let words = [&place.prefix[..], &[program.to_owned()]].concat();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

impl Drop for Slurm {
    /// The last step's keeper outlives a controller that it cannot reach any more.
    fn drop(&mut self) {
        let own = self.bed.directory().as_os_str().as_encoded_bytes();
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
