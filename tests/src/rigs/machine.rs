//! A machine that systemd has booted: a container with this host's `/usr` and an `/etc` of its own; with the units of
//! `deploy/systemd` and the programs that were built with the test, or bare, for packages; or one whose every file is of a Debian
//! that was made for it. Its only network is its loopback. Ends with its holder.

use super::cluster::PATIENCE;
use super::launching::{Bed, done, until};
use super::process::Process;
use super::programs::{program, repository};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where programs that are ours are in there.
const PROGRAMS: [&str; 4] = ["gradwire", "gradwire-scheduler", "gradwire-server", "gradwire-worker"];
/// What the root has links to, on a system whose /usr is merged.
const LINKS: [&str; 4] = ["bin", "sbin", "lib", "lib64"];
/// What a new Debian has beside its smallest selection: a service manager, what the package needs, and what pages use.
const DEBIAN: &str = "--include=systemd,systemd-sysv,dbus,procps,curl,man-db";
/// What a boot has to reach.
const BOOTED: &str = "Reached target test.target";

/// See the module.
#[derive(Debug)]
pub struct Machine {
    // Dropped in this order.
    /// What its journal says, from the beginning.
    pub journal: Process,
    container: Process,
    bed: Bed,
    /// Process 1 of the machine, as this host numbers it.
    init: u32,
}

impl Machine {
    /// Boots it; `prepare` may change the root directory before.
    #[must_use]
    pub fn boot(prepare: impl FnOnce(&Path)) -> Self {
        let bed = Bed::default();
        let root = bed.path("root");
        make_root(&root);
        add_ours(&bed, &root);
        prepare(&root);
        let mut mounts = vec![format!("--overlay-ro=/usr:{}:/usr", bed.path("usr").display())];
        let bound = PROGRAMS.map(|name| format!("--bind-ro={}:/usr/bin/{name}", program(name).display()));
        mounts.extend(bound);
        Self::start(bed, &root, &mounts)
    }

    /// One without anything of ours, where packages can be installed: what is written to `/usr` and to dpkg's records goes with it.
    #[must_use]
    pub fn boot_bare(prepare: impl FnOnce(&Path)) -> Self {
        let bed = Bed::default();
        let root = bed.path("root");
        make_root(&root);
        fs::create_dir_all(root.join("var/lib/dpkg")).unwrap();
        prepare(&root);
        let written = |path: &str, name: &str| {
            fs::create_dir_all(bed.path(name)).unwrap();
            format!("--overlay={path}:{}:{path}", bed.path(name).display())
        };
        let mounts = [written("/usr", "usr"), written("/var/lib/dpkg", "dpkg")];
        // Of packages whose groups the machine does not have.
        bed.write("dpkg/statoverride", "");
        Self::start(bed, &root, &mounts)
    }

    /// A Debian of its own, of this host's release, from Debian's archive: nothing of this host's is in it.
    #[must_use]
    pub fn boot_debian(prepare: impl FnOnce(&Path)) -> Self {
        let bed = Bed::default();
        let root = bed.path("root");
        let release = fs::read_to_string("/etc/os-release").unwrap();
        let release = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap();
        done(Command::new("mmdebstrap").args(["--quiet", "--variant=minbase", DEBIAN, release]).arg(&root));
        add_identity(&root);
        prepare(&root);
        Self::start(bed, &root, &[])
    }

    fn start(bed: Bed, root: &Path, mounts: &[String]) -> Self {
        let mut command = Command::new("systemd-nspawn");
        command.args(["-q", "--register=no", "--keep-unit", "--private-network", "--link-journal=no"]);
        let name = format!(
            "--machine=gradwire-{}",
            bed.directory().file_name().unwrap().to_str().unwrap().replace('.', "")
        );
        command.args(["--resolv-conf=off", "--timezone=off", &name, "-D"]).arg(root);
        command.args(mounts);
        command.args(["-b", "--", "--unit=test.target"]);
        let container = Process::start("machine", &mut command);
        let init = first_process(&container);
        let mut follow = within(init, "journalctl");
        follow.args(["--follow", "--lines=all", "--output=short-monotonic", "--no-hostname"]);
        until("the journal", || is_logging(init));
        let journal = Process::start("journal", &mut follow);
        journal.expect_line(BOOTED, PATIENCE);
        Self { journal, container, bed, init }
    }

    /// A file of the machine, as this host sees it.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.bed.path("root").join(path)
    }

    /// Its process 1, as this host numbers it.
    #[must_use]
    pub fn init(&self) -> u32 {
        self.init
    }

    /// A command in the machine.
    #[must_use]
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = within(self.init, words[0]);
        command.args(&words[1..]);
        command
    }

    /// Runs a command in the machine, which has to end well; what it said.
    pub fn run(&self, words: &[&str]) -> String {
        done(&mut self.command(words))
    }

    /// A property of a unit.
    #[must_use]
    pub fn show(&self, unit: &str, property: &str) -> String {
        self.run(&["systemctl", "show", "--value", "-p", property, unit]).trim().to_owned()
    }

    /// Waits until a property of a unit is as asked for.
    pub fn until_shown(&self, unit: &str, property: &str, is_it: impl Fn(&str) -> bool) -> String {
        let mut shown = String::new();
        until(&format!("{property} of {unit}"), || {
            shown = self.show(unit, property);
            is_it(&shown)
        });
        shown
    }

    /// The process of a unit, as this host numbers it.
    #[must_use]
    pub fn pid(&self, unit: &str) -> u32 {
        let inside = self.show(unit, "MainPID");
        let is_it = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            let of_ours = namespace(*pid) == namespace(self.init);
            of_ours && line.is_some_and(|ids| ids.split_whitespace().next_back() == Some(&inside))
        };
        processes().find(is_it).unwrap_or_else(|| panic!("{unit} has no process {inside}"))
    }

    /// Shuts it down, as a power button does.
    pub fn power_off(self) {
        let Self { journal, mut container, .. } = self;
        // A process of ours in there would be waited for.
        drop(journal);
        container.signal(Signal::TERM);
        assert_eq!(container.expect_end(PATIENCE), 0, "the machine went down badly");
    }
}

/// `/usr` is this host's.
fn make_root(root: &Path) {
    for directory in ["usr", "etc/systemd/system", "srv", "tmp", "var"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    for link in LINKS {
        symlink(format!("usr/{link}"), root.join(link)).unwrap();
    }
    fs::write(root.join("etc/os-release"), "ID=gradwire-test\nNAME=test\n").unwrap();
    add_identity(root);
}

/// Who it is, and what it boots into.
fn add_identity(root: &Path) {
    let write = |path: &str, text: &str| fs::write(root.join(path), text).unwrap();
    // A machine without an id would take its first boot for one, and set presets.
    write("etc/machine-id", &format!("{}\n", "6".repeat(32)));
    write("etc/hostname", "machine\n");
    write("etc/hosts", "127.0.0.1 localhost\n");
    let test =
        "[Unit]\nDescription=test.target\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n";
    write("etc/systemd/system/test.target", test);
}

/// Units, settings, and places for our programs over `/usr`.
fn add_ours(bed: &Bed, root: &Path) {
    for directory in ["etc/gradwire", "etc/sysusers.d", "etc/tmpfiles.d"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    fs::create_dir_all(bed.path("usr/bin")).unwrap();
    for name in PROGRAMS {
        bed.write(&format!("usr/bin/{name}"), "");
    }
    let deploy = repository().join("deploy");
    for entry in fs::read_dir(deploy.join("systemd")).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name.ends_with(".service") || name.ends_with(".target") {
            fs::copy(entry.path(), root.join("etc/systemd/system").join(name)).unwrap();
        }
    }
    for (from, to) in [("sysusers", "sysusers.d"), ("tmpfiles", "tmpfiles.d")] {
        let from = deploy.join(format!("systemd/gradwire.{from}"));
        fs::copy(from, root.join("etc").join(to).join("gradwire.conf")).unwrap();
    }
    for role in ["scheduler", "server", "worker"] {
        let name = format!("{role}.toml");
        fs::copy(deploy.join("config").join(&name), root.join("etc/gradwire").join(name)).unwrap();
    }
}

fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn namespace(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// The machine's process 1: the container's child in another namespace, once it is systemd.
fn first_process(container: &Process) -> u32 {
    let own = container.pid();
    let mut found = 0;
    until("the machine's first process", || {
        let list = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        let children = list.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok());
        let is_systemd = |pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            namespace(*pid) != namespace(own) && name.trim() == "systemd"
        };
        found = children.into_iter().find(is_systemd).unwrap_or(0);
        found != 0
    });
    found
}

/// Is there a journal to follow?
fn is_logging(init: u32) -> bool {
    Path::new(&format!("/proc/{init}/root/run/log/journal")).exists()
}

fn within(init: u32, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd", "--target"]);
    command.arg(init.to_string()).arg("--").arg(program);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin").env("SYSTEMD_COLORS", "0").env("SYSTEMD_PAGER", "");
    command
}
