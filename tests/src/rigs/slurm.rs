//! A real Slurm on this host: controller, two nodes, and a munge of its own, in a directory that goes with it.

use super::launching::{Bed, done, free_port, until};
use super::process::Process;
use std::process::Command;

/// Slurm with two nodes that are this host.
#[derive(Debug)]
pub struct Slurm {
    /// Where its files are, and the test's.
    pub bed: Bed,
    _daemons: Vec<Process>,
}

impl Slurm {
    /// Starts it; returns when both nodes are idle.
    #[must_use]
    pub fn start() -> Self {
        let bed = Bed::default();
        let at = |name: &str| bed.path(name).display().to_string();
        let key = bed.write("munge.key", &"gradwire".repeat(32));
        done(Command::new("chmod").arg("600").arg(&key));
        // munge refuses sockets where others could not reach them.
        done(Command::new("chmod").arg("755").arg(bed.directory()));
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

    /// Its settings file, for SLURM_CONF.
    #[must_use]
    pub fn config(&self) -> String {
        self.bed.path("slurm.conf").display().to_string()
    }

    /// Does no job run or wait?
    #[must_use]
    pub fn idle(&self) -> bool {
        let queue = done(Command::new("squeue").arg("-h").env("SLURM_CONF", self.config()));
        queue.trim().is_empty()
    }
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
