//! The environment as settings: `GRADWIRE_SECTION__NAME`, and under it the names that users of other systems have.
//! It must not read the process's environment: pairs are passed in.

use super::SettingsError;
use super::interface;
use super::layer::Layer;
use super::peers;
use crate::process::DIE_WITH_PARENT;
use proto_common::ids::Role;
use std::path::PathBuf;

/// Variables with this prefix are settings.
pub const PREFIX: &str = "GRADWIRE_";
/// Names the settings file, as `--config` does.
pub const CONFIG_VARIABLE: &str = "GRADWIRE_CONFIG";
/// Names a directory where other languages look for our programs.
const PROGRAMS_VARIABLE: &str = "GRADWIRE_PROGRAMS";
/// Variables with our prefix that are no settings.
const NOT_SETTINGS: [&str; 3] = [CONFIG_VARIABLE, DIE_WITH_PARENT, PROGRAMS_VARIABLE];

fn value_of<'a>(env: &'a [(String, String)], name: &str) -> Option<&'a str> {
    env.iter().find(|(n, v)| n == name && !v.is_empty()).map(|(_, value)| value.as_str())
}

/// The settings file that the environment names.
pub(super) fn config_file(env: &[(String, String)]) -> Option<PathBuf> {
    value_of(env, CONFIG_VARIABLE).map(PathBuf::from)
}

/// `GRADWIRE_*`: two underscores part section and name.
pub(super) fn ours(env: &[(String, String)]) -> Result<Layer, SettingsError> {
    let mut layer = Layer::default();
    for (name, value) in env {
        let Some(path) = name.strip_prefix(PREFIX).filter(|_| !NOT_SETTINGS.contains(&name.as_str())) else {
            continue;
        };
        layer.set(name, &path.to_ascii_lowercase().replace("__", "."), value.clone())?;
    }
    Ok(layer)
}

/// What the environment says in the words of ps-lite, BytePS, MXNet and dmlc-submit, and warnings for what of it changes
/// nothing here. The table of them is `peers`; here are those that mean something only together.
pub(super) fn aliases(role: Role, env: &[(String, String)]) -> Result<(Layer, Vec<String>), SettingsError> {
    let mut layer = Layer::default();
    if let Some(said) = value_of(env, "DMLC_ROLE") {
        check_role(role, said)?;
    }
    let warnings = peers::apply(&mut layer, env)?;
    let node = match (value_of(env, "DMLC_NODE_HOST"), value_of(env, "DMLC_INTERFACE")) {
        (Some(host), _) => Some(("DMLC_NODE_HOST", host.to_owned())),
        (None, Some(name)) => Some(("DMLC_INTERFACE", interface::ipv4_of(name)?.to_string())),
        (None, None) => None,
    };
    if let Some((name, host)) = node {
        layer.set(name, "node.bind", host.clone())?;
        layer.set(name, "node.advertise", host)?;
    }
    places(&mut layer, role, env)?;
    Ok((layer, warnings))
}

/// How many workers there are, and which one this is. BytePS counts machines, and the workers of each.
fn places(layer: &mut Layer, role: Role, env: &[(String, String)]) -> Result<(), SettingsError> {
    let local_workers = match count_of(env, "BYTEPS_LOCAL_SIZE")? {
        Some(0) => {
            return Err(SettingsError::source(
                "BYTEPS_LOCAL_SIZE",
                "0",
                "use how many workers this machine has, 1 at least",
            ));
        }
        workers => workers.unwrap_or(1),
    };
    if let Some(workers) = value_of(env, "DMLC_NUM_WORKER") {
        // What is no number is refused with all other settings.
        let all = workers.parse::<u64>().map(|machines| machines.saturating_mul(u64::from(local_workers)));
        let all = all.map_or_else(|_| workers.to_owned(), |all| all.to_string());
        layer.set("DMLC_NUM_WORKER", "cluster.workers", all)?;
    }
    let own = match role {
        Role::Scheduler => return Ok(()),
        Role::Server => count_of(env, "DMLC_SERVER_ID")?.map(|rank| ("DMLC_SERVER_ID", rank)),
        Role::Worker => worker_rank(env, local_workers)?.map(|rank| ("DMLC_WORKER_ID", rank)),
    };
    let given = count_of(env, "DMLC_RANK")?.map(|rank| ("DMLC_RANK", rank));
    match given.or(own) {
        Some((name, rank)) => layer.set(name, "node.rank", rank.to_string()),
        None => Ok(()),
    }
}

fn worker_rank(env: &[(String, String)], local_workers: u32) -> Result<Option<u32>, SettingsError> {
    let (machine, local) = (count_of(env, "DMLC_WORKER_ID")?, count_of(env, "BYTEPS_LOCAL_RANK")?);
    if let Some(local) = local.filter(|local| *local >= local_workers) {
        let fix = "it counts from 0 and is below BYTEPS_LOCAL_SIZE; set both";
        return Err(SettingsError::source("BYTEPS_LOCAL_RANK", &local.to_string(), fix));
    }
    let rank = |machine: u32| machine.saturating_mul(local_workers).saturating_add(local.unwrap_or(0));
    // Of several workers on a machine none has a rank without its own number.
    Ok(machine.filter(|_| local.is_some() || local_workers == 1).map(rank))
}

fn count_of(env: &[(String, String)], name: &str) -> Result<Option<u32>, SettingsError> {
    let parse = |text: &str| {
        text.parse().map_err(|_| SettingsError::source(name, text, "use a whole number, 0 or more"))
    };
    value_of(env, name).map(parse).transpose()
}

fn check_role(role: Role, said: &str) -> Result<(), SettingsError> {
    if said == role.to_string() {
        return Ok(());
    }
    let fix = format!("this process is a {role}; start the program of that role, or unset DMLC_ROLE");
    Err(SettingsError::source("DMLC_ROLE", said, fix))
}
