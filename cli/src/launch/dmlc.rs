//! Flags of dmlc-submit and MXNet's launch.py. They are accepted so that old command lines work. Those without an effect are named
//! in a warning, with a replacement. Queue and job name have an effect under Slurm.

use clap::Args;

macro_rules! flags {
    ($($field:ident, $flag:literal, $value:literal, $instead:literal;)*) => {
        /// Flags of dmlc-submit and launch.py.
        #[derive(Args, Debug, Default)]
        #[command(next_help_heading = "Flags of dmlc-submit")]
        pub(super) struct DmlcArgs {
            /// Name of the job under Slurm.
            #[arg(long, alias = "job-name", value_name = "NAME")]
            pub(super) jobname: Option<String>,
            /// Queue of the job: a partition of Slurm.
            #[arg(long, value_name = "NAME")]
            pub(super) queue: Option<String>,
            /// No effect: gradients of the first layers always have priority.
            #[arg(short = 'p', long)]
            pub(super) p3: bool,
            $(
                #[doc = concat!("No effect: ", $instead, ".")]
                #[arg(long = $flag, value_name = $value, hide_short_help = true)]
                $field: Vec<String>,
            )*
        }

        impl DmlcArgs {
            /// A warning for each given flag that has no effect, with the reason.
            pub(super) fn warnings(&self, has_queues: bool) -> Vec<String> {
                let given = [$((!self.$field.is_empty(), $flag, $instead)),*];
                let queue = "queues and job names need --cluster slurm";
                let own = [
                    (self.p3, "p3", "gradients of the first layers always have priority"),
                    (self.queue.as_deref().is_some_and(|queue| queue != "default") && !has_queues, "queue", queue),
                    (self.jobname.is_some() && !has_queues, "jobname", queue),
                ];
                let all = given.iter().chain(&own).filter(|(is_given, ..)| *is_given);
                all.map(|(_, flag, why)| format!("--{flag} has no effect: {why}")).collect()
            }
        }
    };
}

flags! {
    worker_cores, "worker-cores", "N", "give cores to processes with Slurm, MPI or taskset";
    worker_memory, "worker-memory", "SIZE", "limit memory with Slurm or cgroups";
    server_cores, "server-cores", "N", "give cores to processes with Slurm, MPI or taskset";
    server_memory, "server-memory", "SIZE", "limit memory with Slurm or cgroups";
    log_file, "log-file", "FILE", "use --keep-logs DIR, which writes one file for each process";
    hdfs_tempdir, "hdfs-tempdir", "DIR", "there is no YARN here";
    sge_log_dir, "sge-log-dir", "DIR", "there is no SGE here; use --keep-logs DIR";
    auto_file_cache, "auto-file-cache", "BOOL", "files are used in place, or copied with --sync-dst-dir";
    files, "files", "FILE", "copy the working directory with --sync-dst-dir";
    archives, "archives", "FILE", "copy the working directory with --sync-dst-dir";
    yarn_app_classpath, "yarn-app-classpath", "PATH", "there is no YARN here";
    yarn_app_dir, "yarn-app-dir", "DIR", "there is no YARN here";
    mesos_master, "mesos-master", "HOST", "there is no Mesos here";
    ship_libcxx, "ship-libcxx", "DIR", "install libraries on the hosts, or name them in LD_LIBRARY_PATH";
    slurm_worker_nodes, "slurm-worker-nodes", "N", "one step holds all roles; ask for nodes with salloc or sbatch";
    slurm_server_nodes, "slurm-server-nodes", "N", "one step holds all roles; ask for nodes with salloc or sbatch";
    kube_namespace, "kube-namespace", "NAME", "pods are started by Kubernetes, and find the scheduler by DMLC_PS_ROOT_URI";
    kube_worker_image, "kube-worker-image", "IMAGE", "pods are started by Kubernetes";
    kube_server_image, "kube-server-image", "IMAGE", "pods are started by Kubernetes";
    kube_worker_template, "kube-worker-template", "FILE", "pods are started by Kubernetes";
    kube_server_template, "kube-server-template", "FILE", "pods are started by Kubernetes";
    local_num_attempt, "local-num-attempt", "N", "use --restart=N";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_nothing_is_named_with_its_reason() {
        let args = DmlcArgs {
            worker_cores: vec!["2".into()],
            queue: Some("gpu".into()),
            p3: true,
            ..DmlcArgs::default()
        };
        let said = args.warnings(false);
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].starts_with("--worker-cores has no effect: give cores"), "{said:?}");
        assert_eq!(args.warnings(true).len(), 2, "a queue is Slurm's");
        assert!(DmlcArgs { queue: Some("default".into()), ..DmlcArgs::default() }.warnings(false).is_empty());
    }
}
