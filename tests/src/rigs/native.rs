//! Programs in C and C++ of the tests, compiled against the headers and the shared library of this build, and clusters of
//! them that know each other by `DMLC_*` variables. It looks for the library nowhere but beside the tests.

use super::ports::free_port;
use super::process::Process;
use super::programs::repository;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Compiled programs lie here, with the library under the name that they look for.
#[derive(Debug)]
pub struct Native {
    directory: TempDir,
}

impl Native {
    /// A directory for programs. Fails the test with what to do where the library is not built.
    #[must_use]
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let library = library();
        for name in ["libgradwire.so", "libgradwire.so.1"] {
            std::os::unix::fs::symlink(&library, directory.path().join(name)).expect("a link");
        }
        Self { directory }
    }

    /// The shared library of this build.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        let path = self.directory.path().join("libgradwire.so");
        std::fs::canonicalize(path).expect("the link leads to a library")
    }

    /// Compiles a program of `bindings/c/tests`, all warnings being errors.
    #[must_use]
    pub fn compile(&self, source: &str) -> PathBuf {
        self.compile_file(&repository().join("bindings/c/tests").join(source))
    }

    /// As [`Native::compile`], any file.
    #[must_use]
    pub fn compile_file(&self, source: &Path) -> PathBuf {
        let here = repository().join("bindings/c");
        let (compiler, standard) = match source.extension().and_then(|extension| extension.to_str()) {
            Some("c") => ("cc", "-std=c11"),
            _ => ("c++", "-std=c++11"),
        };
        let program = self.directory.path().join(source.file_stem().expect("a file's name"));
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Werror", "-pthread"]);
        command.arg("-I").arg(here.join("include")).arg(source).arg("-o").arg(&program);
        command.arg("-L").arg(self.directory.path()).arg("-lgradwire");
        let output = command.output().unwrap_or_else(|error| {
            panic!("{compiler} cannot be started ({error}); install it: apt-get install gcc g++ libc6-dev")
        });
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} does not compile:\n{text}", source.display());
        program
    }

    /// A command that runs a program with the library, and nothing else of ours in its environment.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().into_owned();
            if ["GRADWIRE_", "DMLC_", "PS_"].iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.env("LD_LIBRARY_PATH", self.directory.path());
        command
    }

    /// Starts a program as every node of a cluster: the scheduler, so many servers and so many worker processes. All of
    /// them get `settings`; `workers` is what `DMLC_NUM_WORKER` says.
    #[must_use]
    pub fn cluster(
        &self,
        program: &Path,
        (servers, workers, worker_processes): (u32, u32, u32),
        settings: &[(&str, &str)],
    ) -> Vec<Process> {
        let port = free_port().to_string();
        let settings = [&[("DMLC_PS_ROOT_PORT", port.as_str())][..], settings].concat();
        let roles = [("scheduler", 1), ("server", servers), ("worker", worker_processes)];
        let nodes = roles.iter().flat_map(|(role, count)| (0..*count).map(move |number| (*role, number)));
        nodes.map(|node| self.node(program, node, (servers, workers), &settings)).collect()
    }

    /// Starts a program as one more node of a cluster, such as the next process of a member. `DMLC_PS_ROOT_PORT` is one of the
    /// settings; `number` is for people.
    #[must_use]
    pub fn node(
        &self,
        program: &Path,
        (role, number): (&str, u32),
        (servers, workers): (u32, u32),
        settings: &[(&str, &str)],
    ) -> Process {
        let mut command = self.command(program);
        command.env("DMLC_ROLE", role).env("DMLC_NUM_SERVER", servers.to_string());
        command.env("DMLC_NUM_WORKER", workers.to_string());
        command.env("DMLC_PS_ROOT_URI", "127.0.0.1").envs(settings.iter().copied());
        Process::start(format!("{role} {number}"), &mut command)
    }
}

impl Default for Native {
    fn default() -> Self {
        Self::new()
    }
}

/// All of them end with 0 and say that everything holds.
pub fn expect_all(nodes: &mut [Process], within: Duration) {
    for node in nodes {
        let code = node.expect_end(within);
        let text = node.log().text();
        assert_eq!(code, 0, "{} ended with {code}:\n{text}", node.name());
        assert!(text.contains("everything holds"), "{} did not get to its end:\n{text}", node.name());
        assert!(!text.contains("panicked"), "{}:\n{text}", node.name());
    }
}

/// The shared library of this build: beside the test executables.
fn library() -> PathBuf {
    // The runner builds libraries, too.
    let test = std::env::current_exe().expect("a test knows its own file");
    let path = test.parent().expect("a file has a directory").join("libgradwire.so");
    assert!(path.is_file(), "{} is not there; run: cargo build -p gradwire-c", path.display());
    path
}
