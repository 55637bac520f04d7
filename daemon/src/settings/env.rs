//! The environment as settings: `GRADWIRE_SECTION__NAME`, and under it the names that ps-lite's users have.
//! It must not read the process's environment: pairs are passed in.

use super::SettingsError;
use super::interface;
use super::layer::Layer;
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
/// Variables with ps-lite's prefix that belong to someone else (procps).
const NOT_PS_LITE: [&str; 4] = ["PS_FORMAT", "PS_PERSONALITY", "PS_SYSTEM_MAP", "PS_COLORS"];

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

/// `DMLC_*` as aliases, and warnings for `PS_*` names that change nothing here.
pub(super) fn aliases(role: Role, env: &[(String, String)]) -> Result<(Layer, Vec<String>), SettingsError> {
    let mut layer = Layer::default();
    if let Some(said) = value_of(env, "DMLC_ROLE") {
        check_role(role, said)?;
    }
    const PLAIN: [(&str, &str); 4] = [
        ("DMLC_PS_ROOT_URI", "scheduler.host"),
        ("DMLC_PS_ROOT_PORT", "scheduler.port"),
        ("DMLC_NUM_WORKER", "cluster.workers"),
        ("DMLC_NUM_SERVER", "cluster.servers"),
    ];
    for (name, key) in PLAIN {
        if let Some(value) = value_of(env, name) {
            layer.set(name, key, value.to_owned())?;
        }
    }
    let node = match (value_of(env, "DMLC_NODE_HOST"), value_of(env, "DMLC_INTERFACE")) {
        (Some(host), _) => Some(("DMLC_NODE_HOST", host.to_owned())),
        (None, Some(name)) => Some(("DMLC_INTERFACE", interface::ipv4_of(name)?.to_string())),
        (None, None) => None,
    };
    if let Some((name, host)) = node {
        layer.set(name, "node.bind", host.clone())?;
        layer.set(name, "node.advertise", host)?;
    }
    let warnings = env
        .iter()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("PS_") && !NOT_PS_LITE.contains(&name.as_str()))
        .map(|name| format!("{name} is a ps-lite variable that has no effect on Gradwire; unset it"))
        .collect();
    Ok((layer, warnings))
}

fn check_role(role: Role, said: &str) -> Result<(), SettingsError> {
    if said == role.to_string() {
        return Ok(());
    }
    Err(SettingsError::Source {
        name: "DMLC_ROLE".into(),
        value: said.to_owned(),
        fix: format!("this process is a {role}; start the program of that role, or unset DMLC_ROLE"),
    })
}
