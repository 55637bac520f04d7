//! Flags of dmlc-submit and MXNet's launch.py that say nothing to this launcher: taken, so that command lines keep
//! working, and named in a warning with what to use instead. Slurm's queue and name are the exception.

use clap::Args;

macro_rules! flags {
    ($($field:ident, $flag:literal, $value:literal, $instead:literal;)*) => {
        /// Flags that are taken and change nothing.
        #[derive(Args, Debug, Default)]
        #[command(next_help_heading = "Flags of dmlc-submit")]
        pub(super) struct DmlcArgs {
            /// The job's name, for Slurm.
            #[arg(long, alias = "job-name", value_name = "NAME")]
            pub(super) jobname: Option<String>,
            /// The queue that the job goes to: a partition of Slurm's.
            #[arg(long, value_name = "NAME")]
            pub(super) queue: Option<String>,
            /// Nothing: first layers always go first.
            #[arg(short = 'p', long)]
            pub(super) p3: bool,
            $(
                #[doc = concat!("Nothing: ", $instead, ".")]
                #[arg(long = $flag, value_name = $value, hide_short_help = true)]
                $field: Vec<String>,
            )*
        }

        impl DmlcArgs {
            /// What was given and changes nothing, each with the reason.
            pub(super) fn warnings(&self, has_queues: bool) -> Vec<String> {
                let given = [$((!self.$field.is_empty(), $flag, $instead)),*];
                let queue = "queues and job names are Slurm's, with --cluster slurm";
                let own = [
                    (self.p3, "p3", "first layers always go first"),
                    (self.queue.as_deref().is_some_and(|queue| queue != "default") && !has_queues, "queue", queue),
                    (self.jobname.is_some() && !has_queues, "jobname", queue),
                ];
                let all = given.iter().chain(&own).filter(|(is_given, ..)| *is_given);
                all.map(|(_, flag, why)| format!("--{flag} does nothing here: {why}")).collect()
            }
        }
    };
}

flags! {
    worker_cores, "worker-cores", "N", "give cores to processes with Slurm, MPI or taskset";
    worker_memory, "worker-memory", "SIZE", "limit memory with Slurm or cgroups";
    server_cores, "server-cores", "N", "give cores to processes with Slurm, MPI or taskset";
    server_memory, "server-memory", "SIZE", "limit memory with Slurm or cgroups";
    log_file, "log-file", "FILE", "use --keep-logs DIR for a file a process";
    hdfs_tempdir, "hdfs-tempdir", "DIR", "there is no YARN here";
    sge_log_dir, "sge-log-dir", "DIR", "there is no SGE here; use --keep-logs DIR";
    auto_file_cache, "auto-file-cache", "BOOL", "files are used where they are, or copied with --sync-dst-dir";
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
    local_num_attempt, "local-num-attempt", "N", "--restart=N starts again what the job survives";
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
        assert!(said[0].starts_with("--worker-cores does nothing here: give cores"), "{said:?}");
        assert_eq!(args.warnings(true).len(), 2, "a queue is Slurm's");
        assert!(DmlcArgs { queue: Some("default".into()), ..DmlcArgs::default() }.warnings(false).is_empty());
    }
}
