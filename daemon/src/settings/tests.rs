//! Sources and their order, aliases, and errors that name what is wrong.

use super::*;
use clap::Parser;
use proto_common::mode::Mode;
use proto_common::plan::PlacementPolicy;
use proto_common::transport::Policy;

fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn nowhere() -> &'static Path {
    Path::new("/nonexistent")
}

fn load(pairs: &[(&str, &str)], overrides: &[Override]) -> Result<Loaded, SettingsError> {
    load_from(nowhere(), Role::Worker, &env(pairs), None, overrides)
}

#[test]
fn without_any_source_the_defaults_stand() {
    assert_eq!(load(&[], &[]).unwrap().settings, Settings::default());
}

#[test]
fn each_layer_overrides_the_one_below() {
    let job = tempfile::tempdir().unwrap();
    let port = |pairs: &[(&str, &str)], flags: &[Override]| {
        let loaded = load_from(job.path(), Role::Worker, &env(pairs), None, flags).unwrap();
        (loaded.settings.scheduler.port, loaded.files.len())
    };
    assert_eq!(port(&[], &[]), (9092, 0));
    std::fs::write(job.path().join("gradwire.toml"), "[scheduler]\nport = 2\n").unwrap();
    assert_eq!(port(&[], &[]), (2, 1));
    let alias = ("DMLC_PS_ROOT_PORT", "3");
    assert_eq!(port(&[alias], &[]), (3, 1));
    let ours = ("GRADWIRE_SCHEDULER__PORT", "4");
    assert_eq!(port(&[ours, alias], &[]), (4, 1));
    assert_eq!(port(&[ours, alias], &[Override::new("--port", "scheduler.port", "5")]), (5, 1));
    let named = job.path().join("other.toml");
    std::fs::write(&named, "job = 7\n").unwrap();
    let by_variable = [("GRADWIRE_CONFIG", named.to_str().unwrap())];
    assert_eq!(port(&by_variable, &[]), (9092, 1), "a named file replaces the job's");
}

/// A host whose units have settings: whoever starts a job of their own there has none of them.
#[test]
fn the_files_of_units_are_read_where_they_are_named_only() {
    assert_eq!(service_file(Role::Worker), Path::new("/etc/gradwire/worker.toml"));
    let units = tempfile::tempdir().unwrap();
    for role in ["scheduler", "server", "worker"] {
        std::fs::write(units.path().join(format!("{role}.toml")), "job = 9\n").unwrap();
    }
    let of = |pairs: &[(&str, &str)]| load_from(units.path(), Role::Worker, &env(pairs), None, &[]).unwrap();
    assert_eq!(of(&[]).files, Vec::<PathBuf>::new());
    let named = units.path().join("worker.toml");
    assert_eq!(of(&[(CONFIG_VARIABLE, named.to_str().unwrap())]).settings.job.0, 9);
}

#[test]
fn text_becomes_every_type() {
    let loaded = load(
        &[
            ("GRADWIRE_JOB", "18446744073709551615"),
            ("GRADWIRE_CLUSTER__DETERMINISTIC", "false"),
            ("GRADWIRE_CLUSTER__MODE", "bounded:3"),
            ("GRADWIRE_TRANSPORT__SHM", "require"),
            ("GRADWIRE_NODE__RANK", "3"),
            ("GRADWIRE_NODE__HTTP", ""),
            ("GRADWIRE_DIE_WITH_PARENT", "1"),
        ],
        &[],
    );
    let settings = loaded.unwrap().settings;
    assert_eq!(settings.job.0, u64::MAX);
    assert!(!settings.cluster.deterministic);
    assert_eq!(settings.cluster.mode, Mode::Bounded(3));
    assert_eq!((settings.transport.shm, settings.node.rank), (Policy::Require, Some(3)));
    assert_eq!(settings.node.http, "");
}

#[test]
fn errors_name_origin_key_and_fix() {
    let said = |pairs: &[(&str, &str)]| load(pairs, &[]).unwrap_err().to_string();
    let unknown = said(&[("GRADWIRE_SCHEDULER__PROT", "1")]);
    assert_eq!(
        unknown,
        "unknown setting scheduler.prot in GRADWIRE_SCHEDULER__PROT; did you mean scheduler.port?"
    );
    let typed = said(&[("GRADWIRE_SCHEDULER__PORT", "many")]);
    assert!(typed.contains("scheduler.port") && typed.contains("GRADWIRE_SCHEDULER__PORT"), "{typed}");
    let word = said(&[("GRADWIRE_TRANSPORT__TCP", "maybe")]);
    assert!(word.contains("maybe") && word.contains("prefer"), "{word}");
    let bound = said(&[("DMLC_NUM_WORKER", "0")]);
    assert!(bound.contains("cluster.workers = 0") && bound.contains("set by DMLC_NUM_WORKER"), "{bound}");
    let bound = said(&[("GRADWIRE_VERBS__TIMEOUT", "40")]);
    assert_eq!(
        bound,
        "invalid setting verbs.timeout = 40: use a value from 1 to 31 (verbs.timeout is set by GRADWIRE_VERBS__TIMEOUT)"
    );
    let placement = said(&[("GRADWIRE_TRANSPORT__PLACEMENT", "fast")]);
    assert!(placement.contains("fast") && placement.contains("GRADWIRE_TRANSPORT__PLACEMENT"), "{placement}");
    assert!(placement.contains(&format!("use {}", PLACEMENTS.join(", "))), "{placement}");
    let mode = said(&[("GRADWIRE_CLUSTER__MODE", "bsp")]);
    assert!(mode.contains("invalid mode \"bsp\": use sync") && mode.contains("cluster.mode"), "{mode}");
    let mode = said(&[("GRADWIRE_SECURITY__MODE", "open")]);
    assert!(mode.contains("use auto, tls or off"), "{mode}");
    // A default that another setting contradicts has no source.
    let short = said(&[("GRADWIRE_DEADLINES__HEARTBEAT_MS", "86400000")]);
    assert!(short.ends_with("use at least 3 times deadlines.heartbeat_ms"), "{short}");
    let both = said(&[
        ("GRADWIRE_DEADLINES__SILENCE_MS", "86400000"),
        ("GRADWIRE_DEADLINES__HEARTBEAT_MS", "86400000"),
    ]);
    assert!(both.contains("deadlines.silence_ms = 86400000") && both.contains("SILENCE_MS)"), "{both}");
    let role = said(&[("DMLC_ROLE", "server")]);
    assert!(role.contains("this process is a worker"), "{role}");
}

#[test]
fn files_are_checked_like_everything_else() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.toml");
    let said = |text: &str| {
        std::fs::write(&file, text).unwrap();
        load_from(nowhere(), Role::Server, &[], Some(&file), &[]).unwrap_err().to_string()
    };
    assert!(said("[cluster]\nworker = 3\n").contains("did you mean cluster.workers?"));
    assert!(said("[cluster\n").contains("not valid TOML"));
    let bound = said("[verbs]\ntimeout = 40\n");
    assert!(
        bound.contains("verbs.timeout = 40") && bound.contains(&format!("set by {}", file.display())),
        "{bound}"
    );
    assert!(said("[cluster]\nworkers = \"x\"\n").contains("cluster.workers"));
    let missing = load_from(nowhere(), Role::Server, &[], Some(Path::new("/nonexistent/x.toml")), &[]);
    assert!(missing.unwrap_err().to_string().contains("--config"));
}

/// Parsers show the line that they stumble over, and errors of types the value.
#[test]
fn a_key_is_not_shown_whatever_is_wrong_around_it() {
    let pem = "-----BEGIN PRIVATE KEY-----\nMIGHsecret\nAgEGsecret\n-----END PRIVATE KEY-----\n";
    let one_line = pem.replace('\n', "\\n");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.toml");
    let said = |text: &str| {
        std::fs::write(&file, text).unwrap();
        load_from(nowhere(), Role::Worker, &[], Some(&file), &[]).unwrap_err().to_string()
    };
    for (text, place) in [
        (format!("[security]\nkey = \"{one_line}\nmode = \"tls\"\n"), "not valid TOML: line "),
        (format!("[security]\nkey = \"{pem}"), "not valid TOML: line "),
        (format!("[security]\nkey = '{one_line}\n"), "not valid TOML: line "),
        (format!("[security]\nkey = \"a\"\nkey = \"{one_line}\"\n"), "line 3, column 1: duplicate key"),
        (format!("job = \"{one_line}\"\n"), "job = (text, not shown) in "),
        (format!("security.mode = '''{pem}'''\n"), "use auto, tls or off"),
        (format!("cluster.mode = '''{pem}'''\n"), "cluster.mode = (text, not shown)"),
        (format!("\"{one_line}\" = 3\n"), "unknown setting (text, not shown)"),
        (format!("scheduler.host = '''{pem}'''\n"), "scheduler.host = (text, not shown):"),
        (format!("job = \"{}\"\n", "secret".repeat(40_000)), "job = (text, not shown) in "),
    ] {
        let told = said(&text);
        assert!(told.contains(place) && told.len() < 600 && !told.contains("secret"), "{told}");
    }
    for (name, whose) in [
        ("GRADWIRE_JOB", "in GRADWIRE_JOB"),
        ("GRADWIRE_SECURITY__MODE", "in GRADWIRE_SECURITY__MODE; use auto, tls or off"),
        ("DMLC_NUM_WORKER", "DMLC_NUM_WORKER"),
        ("DMLC_WORKER_ID", "DMLC_WORKER_ID"),
        ("DMLC_INTERFACE", "DMLC_INTERFACE"),
    ] {
        let told = load(&[(name, pem)], &[]).unwrap_err().to_string();
        assert!(told.contains("(text, not shown)") && told.contains(whose), "{told}");
        assert!(!told.contains("secret"), "{told}");
    }
    let flag = by_flags(&["--set", &format!("job={pem}")]).unwrap_err().to_string();
    assert!(flag.contains("--set job") && !flag.contains("secret"), "{flag}");
}

#[test]
fn numbers_beyond_toml_say_so() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.toml");
    std::fs::write(&file, "job = 99999999999999999999999\n").unwrap();
    let error = load_from(nowhere(), Role::Worker, &[], Some(&file), &[]).unwrap_err().to_string();
    assert!(error.contains("not valid TOML: ") && error.contains("too large"), "{error}");
}

#[test]
fn dmlc_names_work_and_ps_names_are_refused_aloud() {
    let loaded = load(
        &[
            ("DMLC_ROLE", "worker"),
            ("DMLC_PS_ROOT_URI", "127.0.0.2"),
            ("DMLC_NUM_WORKER", "4"),
            ("DMLC_NUM_SERVER", "2"),
            ("DMLC_INTERFACE", "lo"),
            ("PS_RESEND", "1"),
            ("PS_FORMAT", "pid"),
        ],
        &[],
    )
    .unwrap();
    let settings = &loaded.settings;
    assert_eq!((settings.cluster.workers, settings.cluster.servers), (4, 2));
    assert_eq!(settings.scheduler.host, "127.0.0.2");
    assert_eq!(
        (settings.node.bind.as_str(), settings.node.advertise.as_deref()),
        ("127.0.0.1", Some("127.0.0.1"))
    );
    assert_eq!(loaded.warnings.len(), 1);
    assert!(loaded.warnings[0].contains("PS_RESEND"));
}

#[test]
fn local_workers_of_machines_become_ranks() {
    let settings = |pairs: &[(&str, &str)]| load(pairs, &[]).unwrap().settings;
    let machines = [("DMLC_NUM_WORKER", "3"), ("DMLC_WORKER_ID", "2")];
    let one = settings(&machines);
    assert_eq!((one.cluster.workers, one.node.rank), (3, Some(2)));
    let local = [("BYTEPS_LOCAL_SIZE", "4"), ("BYTEPS_LOCAL_RANK", "1")];
    let four = settings(&[&machines[..], &local[..]].concat());
    assert_eq!((four.cluster.workers, four.node.rank), (12, Some(9)));
    let without_rank = settings(&[&machines[..], &local[..1]].concat());
    assert_eq!(without_rank.node.rank, None, "four workers cannot all be the machine's first");
    assert_eq!(settings(&[("DMLC_RANK", "5"), ("DMLC_WORKER_ID", "2")]).node.rank, Some(5));
    let ours = ("GRADWIRE_CLUSTER__WORKERS", "7");
    assert_eq!(settings(&[&machines[..], &local[..], &[ours]].concat()).cluster.workers, 7);

    let server = |pairs: &[(&str, &str)]| load_from(nowhere(), Role::Server, &env(pairs), None, &[]).unwrap();
    assert_eq!(server(&[("DMLC_SERVER_ID", "1"), ("DMLC_WORKER_ID", "2")]).settings.node.rank, Some(1));
    let said = |pairs: &[(&str, &str)]| load(pairs, &[]).unwrap_err().to_string();
    assert!(
        said(&[("BYTEPS_LOCAL_SIZE", "2"), ("BYTEPS_LOCAL_RANK", "2")]).contains("below BYTEPS_LOCAL_SIZE")
    );
    assert!(said(&[("BYTEPS_LOCAL_SIZE", "0")]).contains("1 at least"));
    assert!(said(&[("DMLC_WORKER_ID", "-1")]).contains("whole number"));
    assert!(said(&[("DMLC_NUM_WORKER", "two")]).contains("DMLC_NUM_WORKER"));
}

#[test]
fn peers_words_are_settings_below_ours() {
    let pairs = [
        ("PS_HEARTBEAT_INTERVAL", "1"),
        ("PS_HEARTBEAT_TIMEOUT", "7"),
        ("PS_VERBOSE", "1"),
        ("BYTEPS_PARTITION_BYTES", "4096000"),
        ("BYTEPS_SERVER_ENGINE_THREAD", "3"),
        ("DMLC_ENABLE_RDMA", "ibverbs"),
        ("GRADWIRE_LOG__FILTER", "warn"),
    ];
    let loaded = load(&pairs, &[]).unwrap();
    let settings = loaded.settings;
    assert_eq!((settings.deadlines.heartbeat_ms, settings.deadlines.silence_ms), (1000, 7000));
    assert_eq!((settings.cluster.chunk_bytes, settings.cluster.lanes), (4_096_000, 3));
    assert_eq!((settings.transport.verbs, settings.transport.tcp), (Policy::Require, Policy::Off));
    assert_eq!((settings.log.filter.as_str(), loaded.warnings.len()), ("warn", 0));
    let said = |pair| load(&[pair], &[]).unwrap_err().to_string();
    let van = said(("DMLC_PS_VAN_TYPE", "fabric"));
    assert!(van.contains("DMLC_PS_VAN_TYPE = \"fabric\" is wrong: use ibverbs"), "{van}");
    let lanes = said(("BYTEPS_SERVER_ENGINE_THREAD", "65"));
    assert!(lanes.contains("cluster.lanes is set by BYTEPS_SERVER_ENGINE_THREAD"), "{lanes}");
    let short = said(("PS_HEARTBEAT_TIMEOUT", "1"));
    assert!(short.contains("3 times deadlines.heartbeat_ms"), "{short}");
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    common: CommonArgs,
}

fn by_flags(flags: &[&str]) -> Result<Settings, SettingsError> {
    let cli = Cli::parse_from(std::iter::once(&"x").chain(flags));
    load_from(nowhere(), Role::Worker, &[], None, &cli.common.overrides()?).map(|loaded| loaded.settings)
}

#[test]
fn flags_set_what_they_say() {
    let flags = ["--scheduler", "[::1]:7", "--transport", "tcp", "--http", "off", "--job", "9", "--log-json"];
    let settings = by_flags(&[&flags[..], &["--placement", "rendezvous-read"]].concat()).unwrap();
    assert_eq!(settings.transport.placement, PlacementPolicy::RendezvousRead);
    for word in PLACEMENTS {
        assert!(by_flags(&["--placement", word]).is_ok(), "{word}");
    }
    assert!(by_flags(&["--set", "transport.placement=everywhere"]).is_err());
    assert_eq!((settings.scheduler.host.as_str(), settings.scheduler.port), ("::1", 7));
    let transport = settings.transport;
    assert_eq!((transport.tcp, transport.shm, transport.verbs), (Policy::Require, Policy::Off, Policy::Off));
    assert!(settings.node.http.is_empty() && settings.log.json && settings.job.0 == 9);
    assert_eq!(by_flags(&["--set", "cluster.lanes=3"]).unwrap().cluster.lanes, 3);
    assert!(by_flags(&["--set", "lanes"]).unwrap_err().to_string().contains("KEY=VALUE"));
    assert!(by_flags(&["--scheduler", "host"]).unwrap_err().to_string().contains("HOST:PORT"));
}

/// Messages say which flag a setting came from.
#[test]
fn text_of_a_key_is_not_repeated_as_where_it_came_from() {
    let key = "security.key=-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----";
    let cli = Cli::parse_from(["x", "--set", key, "--set", "security.ca=ca.pem"]);
    let origins: Vec<_> = cli.common.overrides().unwrap().into_iter().map(|flag| flag.origin).collect();
    assert_eq!(origins, ["--set security.key", "--set security.ca=ca.pem"]);
    let misspelt = key.replace("security.key", "security.kee");
    let told = by_flags(&["--set", &misspelt]).unwrap_err().to_string();
    assert!(told.contains("did you mean security.key") && !told.contains("secret"), "{told}");
}
