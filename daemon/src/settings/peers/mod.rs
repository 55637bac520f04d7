//! The variables that ps-lite, BytePS, MXNet's kvstore and dmlc-submit read, and what each does here: it is a setting
//! of ours, or a warning says why it is none. Never is one ignored in silence. `gradwire env` and
//! `docs/environment.md` print this table; nothing of it is written down twice. It must not read the environment.

mod convert;
mod table;

pub use table::{Peer, Use, Variable, variables};

use super::SettingsError;
use super::layer::Layer;

/// Names with these beginnings are the peers' own.
const PREFIXES: [&str; 4] = ["DMLC_", "PS_", "BYTEPS_", "MXNET_KVSTORE_"];
/// Variables with ps-lite's prefix that belong to someone else (procps).
const NOT_PEERS: [&str; 4] = ["PS_FORMAT", "PS_PERSONALITY", "PS_SYSTEM_MAP", "PS_COLORS"];

/// Puts what the environment says in peers' words into a layer; the result are the warnings.
pub(super) fn apply(layer: &mut Layer, env: &[(String, String)]) -> Result<Vec<String>, SettingsError> {
    let mut warnings = Vec::new();
    for (name, value) in env.iter().filter(|(_, value)| !value.is_empty()) {
        match variables().find(|variable| variable.name == name) {
            Some(Variable { does: Use::Is(setting), .. }) => layer.set(name, setting, value.clone())?,
            Some(Variable { does: Use::Becomes(_, convert), .. }) => {
                let converted = convert(value.trim());
                for (setting, text) in converted.map_err(|fix| SettingsError::source(name, value, fix))? {
                    layer.set(name, setting, text)?;
                }
            }
            Some(Variable { does: Use::Read(_), .. }) => {}
            Some(Variable { does: Use::Nothing(why), peer, .. }) => {
                warnings.push(format!("{name} is a variable of {} that has no effect here: {why}", peer.name()));
            }
            None if is_peers(name) => warnings.push(format!(
                "unknown variable {name}: neither Gradwire nor the systems that it replaces read it; check its spelling, or unset it"
            )),
            None => {}
        }
    }
    Ok(warnings)
}

fn is_peers(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !NOT_PEERS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::super::layer::known_names;
    use super::*;

    #[test]
    fn each_variable_has_one_row_in_order_of_peers_and_names() {
        let names: Vec<&str> = variables().map(|variable| variable.name).collect();
        let unique: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), unique.len(), "a name stands twice");
        let keys: Vec<_> = variables().map(|variable| (variable.peer as u8, variable.name)).collect();
        assert!(keys.is_sorted(), "sort the rows of each peer by name");
        for variable in variables() {
            let ours = is_peers(variable.name) || matches!(variable.does, Use::Read(_));
            assert!(ours, "{} would be taken from someone else", variable.name);
        }
    }

    #[test]
    fn rows_name_settings_that_exist() {
        let known = known_names();
        for variable in variables() {
            let words = variable.words();
            for quoted in words.split('`').skip(1).step_by(2).filter(|word| word.contains('.')) {
                assert!(known.iter().any(|name| name == quoted), "{}: {quoted}", variable.name);
            }
            if let Use::Is(setting) = variable.does {
                assert!(known.iter().any(|name| name == setting), "{}: {setting}", variable.name);
            }
        }
    }

    #[test]
    fn what_does_nothing_and_what_nobody_reads_is_said() {
        let env = |name: &str| vec![(name.to_owned(), "1".to_owned())];
        let warnings = |name: &str| apply(&mut Layer::default(), &env(name)).unwrap();
        for variable in variables().filter(|variable| matches!(variable.does, Use::Nothing(_))) {
            let said = warnings(variable.name);
            assert_eq!(said.len(), 1, "{}", variable.name);
            assert!(
                said[0].starts_with(variable.name) && said[0].contains("has no effect here: "),
                "{said:?}"
            );
        }
        assert!(warnings("DMLC_NUM_WROKER")[0].contains("check its spelling"));
        for name in ["PS_FORMAT", "PATH", "MXNET_ENGINE_TYPE", "DMLC_ROLE"] {
            assert_eq!(warnings(name), Vec::<String>::new(), "{name}");
        }
        let empty = [("PS_RESEND".to_owned(), String::new())];
        assert!(apply(&mut Layer::default(), &empty).unwrap().is_empty(), "an empty variable says nothing");
    }
}
