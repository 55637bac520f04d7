//! What `make package` makes, of this build's own programs: the Debian packages as lintian judges them, the RPMs as rpm reads
//! them, the tarball where it is unpacked, manual pages, completions in a real bash, and the list of the programs' parts. The slow
//! tests install the Debian package in a machine that a real systemd has booted: a training by the settings that it brings, an
//! upgrade, removal and purge.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]
#![allow(clippy::print_stdout, reason = "what a page printed, shown when asked for")]

use gradwire_tests::book::blocks::{self, Block};
use gradwire_tests::book::shown::misfit;
use gradwire_tests::rigs::cluster::PATIENCE;
use gradwire_tests::rigs::launching::{Bed, done};
use gradwire_tests::rigs::machine::Machine;
use gradwire_tests::rigs::programs::{program, repository};
use gradwire_tests::rigs::training::{TRAIN, hash_in, reference};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

const PROGRAMS: [&str; 4] = ["gradwire", "gradwire-scheduler", "gradwire-server", "gradwire-worker"];
const UNITS: [&str; 5] = [
    "gradwire-scheduler.service",
    "gradwire-server@0.service",
    "gradwire-server@1.service",
    "gradwire-worker@0.service",
    "gradwire-worker@1.service",
];

/// Seconds for the commands of a page; a free machine needs a fifth of that.
const PAGE_S: &str = "240";
/// Before what each of its blocks prints.
const MARK: &str = "@@@ block ";

/// Instead of the C library, because a debug build of that takes a minute to pack: the suite `c` installs the real one.
const LIBRARY: &str =
    "#include <stdlib.h>\nconst char *gradwire_last_error(void) { return getenv(\"HOME\"); }\n";

/// Made once for all tests here.
static PACKAGES: LazyLock<PathBuf> = LazyLock::new(|| {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package");
    let _ = fs::remove_dir_all(&out);
    make(&out);
    out
});

fn make(out: &Path) {
    let built = Bed::default();
    for name in PROGRAMS {
        symlink(program(name), built.path(name)).unwrap();
    }
    fs::write(built.path("library.c"), LIBRARY).unwrap();
    let at = |command: &mut Command| done(command.current_dir(built.directory()));
    at(Command::new("cc").args(["-O2", "-fPIC", "-fcf-protection", "-c", "library.c"]));
    at(Command::new("ar").args(["rcs", "libgradwire.a", "library.o"]));
    let mut build = Command::new(repository().join("deploy/package/build.sh"));
    done(build.arg(built.directory()).arg(out).env("FAST", "1"));
}

/// The files there whose names begin and end so.
fn all_made(beginning: &str, ending: &str) -> Vec<PathBuf> {
    let names =
        fs::read_dir(&*PACKAGES).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let fitting = names.filter(|name| name.starts_with(beginning) && name.ends_with(ending));
    let mut paths: Vec<_> = fitting.map(|name| PACKAGES.join(name)).collect();
    paths.sort();
    paths
}

/// The one file there whose name begins and ends so.
fn made(beginning: &str, ending: &str) -> PathBuf {
    let found = all_made(beginning, ending);
    assert_eq!(found.len(), 1, "{beginning}*{ending}: {found:?}");
    found[0].clone()
}

/// The tarball, unpacked in a place of its own.
fn unpacked(bed: &Bed) -> PathBuf {
    let archive = made("gradwire-", ".tar.gz");
    done(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(bed.directory()));
    bed.path(archive.file_name().unwrap().to_str().unwrap().trim_end_matches(".tar.gz"))
}

fn install(machine: &Machine) -> String {
    machine.run(&["dpkg", "--install", "/srv/gradwire.deb"])
}

/// What of the package is left in the machine.
fn left(machine: &Machine) -> String {
    let places = ["/usr", "/etc", "/var/lib/gradwire", "/var/lib/dpkg/info"];
    let mut find = machine.command(&["find"]);
    find.args(places).args(["-xdev", "-name", "*gradwire*", "-print"]);
    String::from_utf8(find.output().unwrap().stdout).unwrap()
}

/// A command of somebody who is neither root nor the daemons' user.
fn as_anybody<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"], words].concat()
}

/// All of it is there, can be read and is good, and nothing was started.
fn assert_installed(machine: &Machine) {
    let rights = |path: &str| machine.run(&["stat", "-c", "%U:%G %a", path]).trim().to_owned();
    assert_eq!(rights("/etc/gradwire"), "root:root 755");
    assert_eq!(rights("/etc/gradwire/tls"), "root:gradwire 750");
    // A job of somebody's own has nothing of the service's.
    let own = machine.run(&as_anybody(&["gradwire", "config", "show", "--role", "scheduler", "--changed"]));
    assert_eq!(own.trim(), "read: no settings file");
    machine.run(&as_anybody(&["gradwire", "config", "check", "/etc/gradwire/server.toml"]));
    for unit in UNITS {
        assert_eq!(machine.show(unit, "LoadState"), "loaded", "{unit}");
        assert_eq!(machine.show(unit, "ActiveState"), "inactive", "{unit} was started by the installation");
    }
    for name in PROGRAMS {
        assert!(machine.run(&[name, "--version"]).starts_with(&format!("{name} ")));
        let page = machine.run(&["man", "--pager=cat", name]);
        assert!(page.contains("EXIT STATUS") && page.contains("/etc/gradwire"), "{page}");
    }
    machine.run(&[
        "gradwire",
        "config",
        "check",
        "/etc/gradwire/scheduler.toml",
        "/etc/gradwire/worker.toml",
    ]);
    let doctor =
        machine.command(&["gradwire", "doctor", "--config", "/etc/gradwire/server.toml"]).output().unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.status.success(), "{said}");
}

#[test]
#[ignore = "slow: boots a machine and installs a package there"]
fn a_package_comes_trains_is_upgraded_and_goes_without_a_trace() {
    let machine = Machine::boot_bare(|root| {
        fs::copy(made("gradwire_", ".deb"), root.join("srv/gradwire.deb")).unwrap();
        fs::write(root.join("etc/manpath.config"), "MANDATORY_MANPATH /usr/share/man\n").unwrap();
    });
    install(&machine);
    assert_installed(&machine);

    // As it comes, but for what is trained on.
    let data =
        format!("TRAIN=--data /usr/share/doc/gradwire/examples/digits/digits.csv {}\n", TRAIN.join(" "));
    fs::write(machine.path("etc/gradwire/worker.environment"), data).unwrap();
    machine.run(&[&["systemctl", "enable", "--now", "gradwire.target"][..], &UNITS].concat());
    let line = machine.journal.expect_line("weights_sha256=", PATIENCE);
    assert_eq!(hash_in(&line), reference(2));
    for unit in UNITS {
        machine.until_shown(unit, "ActiveState", |state| state == "inactive");
        assert_eq!(
            (machine.show(unit, "Result"), machine.show(unit, "NRestarts")),
            ("success".into(), "0".into())
        );
    }

    // The operator's changes stay, and what runs goes on.
    let settings = machine.path("etc/gradwire/scheduler.toml");
    let changed = fs::read_to_string(&settings).unwrap().replace("every_rounds = 1000", "every_rounds = 999");
    fs::write(&settings, &changed).unwrap();
    machine.run(&["systemctl", "start", UNITS[0]]);
    let said = install(&machine);
    assert!(said.contains("a job of the version before is running"), "{said}");
    assert_eq!(fs::read_to_string(&settings).unwrap(), changed);
    assert_eq!(machine.show(UNITS[0], "ActiveState"), "active");

    // Checkpoints are nobody's to remove but the operator's.
    let kept = machine.path("var/lib/gradwire/checkpoints/job-1");
    fs::create_dir_all(&kept).unwrap();
    fs::write(kept.join("part"), "").unwrap();
    machine.run(&["dpkg", "--remove", "gradwire"]);
    assert_eq!(machine.show(UNITS[0], "ActiveState"), "inactive", "the removal has stopped it");
    assert!(
        !machine.path("usr/bin/gradwire").exists() && settings.exists(),
        "settings are there until a purge"
    );
    install(&machine);
    assert_eq!(fs::read_to_string(&settings).unwrap(), changed);
    let said = machine.run(&["dpkg", "--purge", "gradwire"]);
    assert!(said.contains("/var/lib/gradwire was not made by the package"), "{said}");
    assert!(kept.join("part").exists() && machine.path("etc/gradwire/worker.environment").exists());

    // Without them nothing is left.
    fs::remove_dir_all(kept.parent().unwrap()).unwrap();
    fs::remove_file(machine.path("etc/gradwire/worker.environment")).unwrap();
    install(&machine);
    machine.run(&["dpkg", "--purge", "gradwire"]);
    assert_eq!(left(&machine), "");
    assert_eq!(machine.show(UNITS[0], "LoadState"), "not-found");
    machine.power_off();
}

/// Commands of `docs/hosts.md` for one host, in its order, in one shell; and what they print is what it shows.
fn the_page_of_hosts_is_true(boot: impl FnOnce(&dyn Fn(&Path)) -> Machine) {
    let all = blocks::of(&fs::read_to_string(repository().join("docs/hosts.md")).unwrap());
    let is_of_units = |block: &Block| block.value("norun") == Some("needs-systemd");
    let of_units = all.iter().enumerate().filter(|(_, block)| is_of_units(block));
    let script: String = of_units.map(|(at, block)| format!("echo '{MARK}{at}'\n{}", block.text)).collect();
    let machine = boot(&|root| {
        fs::copy(made("gradwire_", ".deb"), root.join("srv/gradwire.deb")).unwrap();
        fs::write(root.join("srv/page.sh"), format!("exec 2>&1\n{script}")).unwrap();
    });
    install(&machine);
    let run = ["timeout", "--kill-after=5", PAGE_S, "bash", "-e", "/srv/page.sh"];
    let output = machine.command(&run).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {said}\n{}", output.status, machine.journal.log().tail(40));
    let mut compared = 0;
    for part in said.split(MARK).skip(1) {
        let (at, printed) = part.split_once('\n').unwrap();
        let shown = all.get(at.parse::<usize>().unwrap() + 1).filter(|next| next.language == "text");
        if let Some(shown) = shown {
            assert_eq!(misfit(&shown.text, printed), None, "line {}: {printed}", shown.line);
            compared += 1;
        }
    }
    assert!(compared > 7, "only {compared} of {said}");
    println!("{}", said.replace(MARK, "block "));
    machine.power_off();
}

#[test]
#[ignore = "slow: boots a machine and installs a package there"]
fn the_page_of_hosts_is_true_from_the_package_to_what_breaks() {
    the_page_of_hosts_is_true(|prepare| Machine::boot_bare(prepare));
}

#[test]
#[ignore = "slow: gets a Debian from its archive"]
fn the_page_of_hosts_is_true_on_a_new_debian() {
    the_page_of_hosts_is_true(|prepare| Machine::boot_debian(prepare));
}

#[test]
fn lintian_accepts_the_debian_packages() {
    let packages = all_made("", ".deb");
    assert_eq!(packages.len(), 3, "{packages:?}");
    let mut lintian = Command::new("lintian");
    // Spelling within binaries is for information only, and half of the time.
    lintian.args(["--allow-root", "--no-cfg", "--fail-on", "error,warning", "--tag-display-limit", "0"]);
    lintian.args(["--dont-check-part", "binaries/spelling"]);
    let output = lintian.args(&packages).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let field = |package: &str, name: &str| {
        done(Command::new("dpkg-deb").arg("--field").arg(made(package, ".deb")).arg(name)).trim().to_owned()
    };
    assert_eq!(field("gradwire_", "Maintainer"), "Gradwire developers <maintainers@gradwire.invalid>");
    assert!(field("gradwire_", "Depends").contains("libc6"), "{}", field("gradwire_", "Depends"));
    let library = format!("libgradwire1 (= {})", field("libgradwire1_", "Version"));
    assert_eq!(field("libgradwire-dev_", "Depends"), library, "cli/Cargo.toml has a version");
}

#[test]
fn the_packages_for_developers_have_what_a_consumer_needs() {
    let files = |path: PathBuf| match path.extension().and_then(|ending| ending.to_str()) {
        Some("deb") => done(Command::new("dpkg-deb").arg("--contents").arg(path)),
        _ => done(Command::new("rpm").args(["--query", "--list", "--package"]).arg(path)),
    };
    for (development, library) in [
        (made("libgradwire-dev", ".deb"), made("libgradwire1", ".deb")),
        (made("gradwire-devel", ".rpm"), made("gradwire-libs", ".rpm")),
    ] {
        let listed = files(development);
        for name in [
            "include/gradwire.h",
            "include/gradwire/ps-lite/ps/ps.h",
            "cmake/gradwire/gradwire-config.cmake",
            "pkgconfig/gradwire.pc",
            "pkgconfig/gradwire-ps.pc",
            "/libgradwire.a",
            "/libgradwire.so",
        ] {
            assert!(listed.contains(name), "{name} is missing in {listed}");
        }
        assert!(!listed.contains("include/ps/"), "another ps-lite would be overwritten: {listed}");
        assert!(files(library).contains("/libgradwire.so.1"));
    }
}

/// No Apptainer runs here: its definition is read, its scripts are parsed by the shell, and it installs the package that is made.
#[test]
fn the_apptainer_definition_installs_this_package() {
    const KNOWN: [&str; 8] =
        ["arguments", "files", "post", "runscript", "test", "labels", "help", "environment"];
    let text = fs::read_to_string(repository().join("deploy/container/gradwire.def")).unwrap();
    let (header, body) = text.split_once("\n\n").unwrap();
    assert_eq!(header, "Bootstrap: docker\nFrom: debian:bookworm-slim");
    let parts = body.split("\n%").skip(1).map(|part| part.split_once('\n').unwrap());
    let sections: BTreeMap<_, _> = parts.collect();
    sections.keys().for_each(|name| assert!(KNOWN.contains(name), "%{name}"));
    for name in ["post", "runscript", "test"] {
        done(Command::new("sh").args(["-n", "-c", sections[name]]));
    }
    let arguments = sections["arguments"].lines().filter_map(|line| line.trim().split_once('='));
    let file = arguments.fold(sections["files"].to_owned(), |file, (name, value)| {
        file.replace(&format!("{{{{ {name} }}}}"), value)
    });
    let made = made("gradwire_", "_amd64.deb");
    let source = format!("target/package/{}", made.file_name().unwrap().to_str().unwrap());
    assert_eq!(file.split_whitespace().collect::<Vec<_>>(), [source.as_str(), "/gradwire.deb"]);
}

#[test]
fn rpmlint_accepts_the_rpms() {
    let mut rpmlint = Command::new("rpmlint");
    rpmlint.arg("--config").arg(repository().join("deploy/package/rpm/rpmlint.toml"));
    let output = rpmlint.args(all_made("", ".rpm")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("0 errors, 0 warnings"), "{said}");
}

#[test]
fn rpm_reads_the_packages() {
    let packages = all_made("", ".rpm");
    assert_eq!(packages.len(), 3, "{packages:?}");
    done(Command::new("rpm").args(["--checksig", "--nosignature"]).args(&packages));
    let asked = |what: &str, package: &str| {
        let mut rpm = Command::new("rpm");
        done(rpm.args(["--query", what, "--package"]).arg(made(package, ".rpm")))
    };
    let listed = asked("--list", "gradwire-0");
    for name in PROGRAMS {
        assert!(listed.lines().any(|line| line == format!("/usr/bin/{name}")), "{name}: {listed}");
    }
    assert!(asked("--configfiles", "gradwire-0").contains("/etc/gradwire/server.toml"));
    assert!(asked("--requires", "gradwire-0").contains("libc.so.6"), "what it is linked with");
    assert!(asked("--scripts", "gradwire-0").contains("systemd-sysusers gradwire.conf"));
    assert!(asked("--scripts", "gradwire-libs").contains("ldconfig"));
}

#[test]
fn sums_are_right_and_the_tarball_runs_where_it_is_unpacked() {
    done(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&*PACKAGES));
    let sums = fs::read_to_string(PACKAGES.join("SHA256SUMS")).unwrap();
    assert_eq!(sums.lines().count(), fs::read_dir(&*PACKAGES).unwrap().count() - 1, "{sums}");
    let bed = Bed::default();
    let at = unpacked(&bed);
    let mut launch = Command::new(at.join("bin/gradwire"));
    launch.args(["launch", "-n", "2", "-s", "2", "--"]).arg(at.join("bin/gradwire-worker")).arg("train");
    launch.arg("--data").arg(at.join("share/doc/gradwire/examples/digits/digits.csv")).args(TRAIN);
    let said = done(launch.current_dir(bed.directory()).env_clear().env("PATH", "/usr/bin:/bin"));
    assert_eq!(hash_in(&said), reference(2));
    for name in
        ["LICENSE-APACHE", "LICENSE-MIT", "etc/gradwire/server.toml", "lib/systemd/system/gradwire.target"]
    {
        assert!(at.join(name).is_file(), "{name}");
    }
}

#[test]
fn what_packed_pages_point_at_is_packed() {
    let bed = Bed::default();
    let documents = unpacked(&bed).join("share/doc/gradwire");
    let pages = fs::read_dir(documents.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let mut count = 0;
    for page in pages.chain([documents.join("README.md")]) {
        let text = fs::read_to_string(&page).unwrap();
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && !"_./@-".contains(c)) {
            let word = word.trim_end_matches('.');
            let place = match word.split_once('/') {
                Some(("deploy", _)) => documents.join(word),
                Some(("figures", _)) => documents.join("docs").join(word),
                _ => continue,
            };
            assert!(place.exists(), "{} names {word}", page.display());
            count += 1;
        }
    }
    assert!(count > 30, "{count} names");
    assert!(documents.join("deploy/prometheus/members.json").is_file(), "targets.yml names it");
}

#[test]
#[ignore = "slow: makes all packages a second time"]
fn the_same_programs_give_the_same_bytes() {
    let bed = Bed::default();
    make(bed.directory());
    let sums = |directory: &Path| fs::read_to_string(directory.join("SHA256SUMS")).unwrap();
    assert_eq!(sums(bed.directory()), sums(&PACKAGES));
}

#[test]
fn manual_pages_are_sound() {
    let bed = Bed::default();
    let at = unpacked(&bed);
    let mut pages = 0;
    for section in ["man1", "man5"] {
        for entry in fs::read_dir(at.join("share/man").join(section)).unwrap() {
            let page = entry.unwrap().path();
            let mut man = Command::new("man");
            man.args(["--warnings", "--pager=cat", "--local-file"]).arg(&page);
            let output = man.env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80").output().unwrap();
            let (text, warnings) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success() && warnings.is_empty(), "{}: {warnings}", page.display());
            for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"] {
                assert!(text.lines().any(|line| line == section), "{} lacks {section}", page.display());
            }
            pages += 1;
        }
    }
    assert!(pages > 20, "{pages} pages");
}

/// What bash offers after these words.
fn offered(file: &Path, words: &[&str]) -> String {
    let name = words[0];
    let script = format!(
        "source '{}'; how=$(complete -p {name}); [[ $how =~ -F\\ ([^ ]+) ]] || exit 9; \
         COMP_WORDS=({}); COMP_CWORD=$(({} - 1)); COMP_LINE='{}'; COMP_POINT=${{#COMP_LINE}}; \
         ${{BASH_REMATCH[1]}} {name} '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        file.display(),
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len(),
        words.join(" "),
        words[words.len() - 1],
        words[words.len() - 2],
    );
    done(Command::new("bash").args(["--norc", "-c", &script]))
}

#[test]
fn shells_complete_the_command_line() {
    let bed = Bed::default();
    let at = unpacked(&bed);
    let completions = at.join("share/bash-completion/completions");
    for name in PROGRAMS {
        done(Command::new("bash").arg("-n").arg(completions.join(name)));
        assert!(at.join(format!("share/zsh/vendor-completions/_{name}")).is_file());
        assert!(at.join(format!("share/fish/vendor_completions.d/{name}.fish")).is_file());
    }
    let own = completions.join("gradwire");
    assert_eq!(offered(&own, &["gradwire", "doc"]), "doctor\n");
    assert!(offered(&own, &["gradwire", "launch", "--res"]).contains("--restart"));
    assert!(
        !offered(&own, &["gradwire", ""]).contains("supervise-child"),
        "what is of no use to people is not offered"
    );
    let server = completions.join("gradwire-server");
    assert_eq!(offered(&server, &["gradwire-server", "--transport", "s"]), "shm\n");
    for (shell, place) in
        [("zsh", "zsh/vendor-completions/_gradwire"), ("fish", "fish/vendor_completions.d/gradwire.fish")]
    {
        // Where they are here: nothing of ours needs them.
        if Command::new(shell).arg("--version").output().is_ok() {
            done(Command::new(shell).arg("-n").arg(at.join("share").join(place)));
        }
    }
}

/// The crates of Cargo.lock, with their checksums.
fn locked() -> BTreeMap<String, Option<String>> {
    let lock: toml::Table = fs::read_to_string(repository().join("Cargo.lock")).unwrap().parse().unwrap();
    let of = |package: &toml::Value| {
        let field = |name: &str| package.get(name).and_then(toml::Value::as_str).map(str::to_owned);
        (format!("pkg:cargo/{}@{}", field("name").unwrap(), field("version").unwrap()), field("checksum"))
    };
    lock["package"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn the_list_of_parts_is_a_whole_cyclonedx_document() {
    let list: Value =
        serde_json::from_str(&fs::read_to_string(made("gradwire-", ".cdx.json")).unwrap()).unwrap();
    assert_eq!((list["bomFormat"].as_str(), list["specVersion"].as_str()), (Some("CycloneDX"), Some("1.5")));
    assert!(list["serialNumber"].as_str().unwrap().starts_with("urn:uuid:"));
    assert!(list["metadata"]["timestamp"].as_str().unwrap().ends_with('Z'));
    let locked = locked();
    let mut refs = vec!["gradwire".to_owned()];
    for part in list["components"].as_array().unwrap() {
        let purl = part["purl"].as_str().unwrap();
        let checksum = locked.get(purl).unwrap_or_else(|| panic!("{purl} is not in Cargo.lock"));
        assert_eq!(part["hashes"][0]["content"].as_str(), checksum.as_deref(), "{purl}");
        let licence = part["licenses"][0]["expression"].as_str().unwrap_or_default();
        assert!(!licence.is_empty() && !licence.contains('/'), "{purl}: {licence}");
        for field in ["type", "name", "version", "bom-ref", "scope"] {
            assert!(part[field].as_str().is_some_and(|text| !text.is_empty()), "{purl} has no {field}");
        }
        refs.push(part["bom-ref"].as_str().unwrap().to_owned());
    }
    for name in ["tokio", "rustls", "ring", "gradwire-server", "clap_mangen"] {
        assert!(refs.iter().any(|each| each.starts_with(&format!("pkg:cargo/{name}@"))), "{name}");
    }
    assert!(
        !refs.iter().any(|each| each.starts_with("pkg:cargo/proptest@")),
        "tests' crates are in no program"
    );
    let needs = list["dependencies"].as_array().unwrap();
    assert_eq!(needs.len(), refs.len());
    let named = needs.iter().flat_map(|each| each["dependsOn"].as_array().unwrap());
    named.for_each(|need| assert!(refs.iter().any(|each| each == need.as_str().unwrap()), "{need}"));
}
