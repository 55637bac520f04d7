//! Settings from a file, the environment and flags: refused with a message, or within their bounds; never a
//! panic. The input is split at zero bytes: the file's text, then `NAME=VALUE` for the environment and flags.

use daemon::settings::{Override, load_from, reference, variable_of};
use proto_common::config::Settings;
use proto_common::ids::Role;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Written anew for each input; on a memory file system where there is one.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let directory = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    directory.join(format!("gradwire-fuzz-settings-{}.toml", std::process::id()))
});
static KEYS: LazyLock<Vec<String>> = LazyLock::new(|| reference().into_iter().map(|line| line.key).collect());
const ALIASES: [&str; 6] = [
    "DMLC_ROLE",
    "DMLC_PS_ROOT_URI",
    "DMLC_PS_ROOT_PORT",
    "DMLC_NUM_WORKER",
    "DMLC_NUM_SERVER",
    "DMLC_NODE_HOST",
];

crate::target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    let role = [Role::Scheduler, Role::Server, Role::Worker][usize::from(choice % 3)];
    let mut pieces = bytes.split(|byte| *byte == 0);
    let text = pieces.next().unwrap_or_default();
    let (mut env, mut flags) = (Vec::new(), Vec::new());
    for piece in pieces.take(8) {
        let Some((choice, value)) = piece.split_first() else { continue };
        let value = String::from_utf8_lossy(value).into_owned();
        let key = &KEYS[usize::from(choice >> 2) % KEYS.len()];
        match choice & 3 {
            0 => env.push((variable_of(key), value)),
            1 => flags.push(Override::new("--set", key.as_str(), value)),
            2 => env.push((ALIASES[usize::from(choice >> 2) % ALIASES.len()].to_owned(), value)),
            _ => env.extend(value.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))),
        }
    }
    // What these name belongs to the machine that fuzzes.
    env.retain(|(name, _)| name != "GRADWIRE_CONFIG" && name != "DMLC_INTERFACE");
    let file = (!text.is_empty()).then(|| {
        std::fs::write(&*FILE, table(text)).expect("the memory file system takes a few bytes");
        FILE.as_path()
    });
    let loaded = load_from(Path::new("/nonexistent"), role, &env, file, &flags);
    if let Some(file) = file {
        std::fs::remove_file(file).expect("written above");
    }
    match loaded {
        Ok(loaded) => check(&loaded.settings, role),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});

/// Text that begins with a byte above 127 stands for `KEY = TEXT`, so that keys need not be guessed.
fn table(text: &[u8]) -> Vec<u8> {
    match text.split_first() {
        Some((choice @ 128.., value)) => {
            let key = KEYS[usize::from(choice - 128) % KEYS.len()].as_bytes();
            [key, b" = ", value].concat()
        }
        _ => text.to_vec(),
    }
}

fn check(settings: &Settings, role: Role) {
    assert_eq!(settings.validate(), Ok(()));
    assert!(role != Role::Scheduler || settings.validate_scheduler().is_ok());
    let shape = settings.shape();
    assert!(shape.workers > 0 && shape.servers > 0 && shape.lanes > 0);
}
