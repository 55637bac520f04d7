//! A real Slurm on this host: controller, two nodes, and a munge of its own, in a directory that is removed with it. The nodes are
//! processes on loopback, or hosts of a [`Net`] with addresses of their own.

use super::cluster::Place;
use super::launching::{Bed, done, until};
use super::netns::Net;
use super::ports::free_port;
use super::process::Process;
use std::process::Command;

/// A machine of it.
struct Host {
    place: Place,
    name: String,
    address: String,
}

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
        let name = done(&mut Command::new("hostname"));
        let name = name.trim().split('.').next().unwrap();
        Self::start_at(
            Bed::default(),
            [(); 3].map(|()| Host {
                place: Place::default(),
                name: name.to_owned(),
                address: "127.0.0.1".to_owned(),
            }),
        )
    }

    /// Starts it with the controller on the hub of a net and a node on each of its first two hosts, which have the names of
    /// their nodes.
    #[must_use]
    pub fn between(net: &Net) -> Self {
        let bed = Bed::default();
        let hosts = bed.write("hosts", &net.hosts());
        let host = |host| Host {
            place: net.named_place(host, &hosts),
            name: format!("n{host}"),
            address: if host == 0 { Net::HUB.to_owned() } else { Net::address(host) },
        };
        Self::start_at(bed, [0, 1, 2].map(host))
    }

    /// The first host has the controller.
    fn start_at(bed: Bed, [hub, nodes @ ..]: [Host; 3]) -> Self {
        let at = |name: &str| bed.path(name).display().to_string();
        let key = bed.write("munge.key", &"gradwire".repeat(32));
        done(Command::new("chmod").arg("600").arg(&key));
        // munge refuses sockets where others could not reach them.
        done(Command::new("chmod").arg("755").arg(bed.directory()));
        let nodes_text: String = (1..=2)
            .zip(&nodes)
            .map(|(node, Host { name, address, .. })| {
                std::fs::create_dir_all(bed.path(&format!("spool/n{node}"))).unwrap();
                let port = free_port();
                format!("NodeName=n{node} NodeHostname={name} NodeAddr={address} Port={port} CPUs=8\n")
            })
            .collect();
        std::fs::create_dir(bed.path("state")).unwrap();
        let config = format!(
            "ClusterName=gradwire\nSlurmctldHost={}({})\nSlurmctldPort={}\nAuthType=auth/munge\n\
             AuthInfo=socket={munge}\nCredType=cred/munge\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             JobAcctGatherType=jobacct_gather/none\nMpiDefault=none\nSlurmUser=root\nSlurmdUser=root\n\
             SlurmdParameters=config_overrides\nStateSaveLocation={}\nSlurmdSpoolDir={}/%n\nSlurmctldPidFile={}\n\
             SlurmdPidFile={}-%n\nSwitchType=switch/none\nReturnToService=2\nKillWait=5\n{nodes_text}\
             PartitionName=p Nodes=n1,n2 Default=YES OverSubscribe=YES State=UP\n",
            hub.name,
            hub.address,
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
        let mut slurmctld = command_in(&hub.place, "slurmctld");
        daemons.push(Process::start("slurmctld", slurmctld.arg("-D").arg("-f").arg(&config)));
        for (node, host) in ["n1", "n2"].into_iter().zip(&nodes) {
            let mut slurmd = command_in(&host.place, "slurmd");
            slurmd.args(["-D", "-N", node, "-f"]).arg(&config);
            daemons.push(Process::start(node, &mut slurmd));
        }
        until("both nodes", || {
            let mut sinfo = command_in(&hub.place, "sinfo");
            sinfo.args(["-h", "-o", "%T %D"]).env("SLURM_CONF", &config);
            sinfo.output().is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("idle 2"))
        });
        Self { bed, place: hub.place, _daemons: daemons }
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
