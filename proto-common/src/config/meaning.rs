//! What each setting means, for `gradwire env`, manual pages and samples of settings files. The text is the documentation of the
//! setting's field in this module; `meanings.tsv` is a copy of it, because programs do not carry their sources. A test compares both.
//! The meaning of a transport's policy is in the table of transports.

use crate::transport::Driver;

/// One line a setting: its dotted name, a tab, its meaning.
const MEANINGS: &str = include_str!("meanings.tsv");

/// What a setting or section means, by its dotted name; none for an unknown name.
#[must_use]
pub fn meaning(key: &str) -> Option<&'static str> {
    let copied = MEANINGS.lines().find_map(|line| line.split_once('\t').filter(|(name, _)| *name == key));
    let of_transport = || Driver::ALL.into_iter().find(|driver| driver.setting() == key).map(Driver::about);
    copied.map(|(_, text)| text).or_else(of_transport)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "the test reads and writes a file of the sources")]
    use super::*;
    use crate::config::Settings;
    use schemars::generate::SchemaSettings;
    use serde_json::Value;
    use std::fmt::Write as _;
    use std::path::Path;

    /// Adds a line for each field below this one.
    fn walk(prefix: &str, schema: &Value, lines: &mut String) {
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
        for (name, schema) in properties {
            let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
            // Links of the documentation have no target outside it.
            let text = text.replace("[`", "`").replace("`]", "`").replace(['\n', '\t'], " ");
            match Driver::ALL.into_iter().find(|driver| driver.setting() == key) {
                Some(driver) => assert_eq!(driver.about(), text),
                None => writeln!(lines, "{key}\t{text}").unwrap(),
            }
            walk(&key, schema, lines);
        }
    }

    fn of_sources() -> String {
        let settings = SchemaSettings::default().with(|settings| settings.inline_subschemas = true);
        let schema = settings.into_generator().into_root_schema_for::<Settings>();
        let mut lines = String::new();
        walk("", schema.as_value(), &mut lines);
        lines
    }

    #[test]
    fn the_copy_is_what_the_fields_say() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config/meanings.tsv");
        let wanted = of_sources();
        if std::env::var_os("GRADWIRE_ACCEPT").is_some() {
            std::fs::write(&file, &wanted).unwrap();
        }
        let fix = "run: GRADWIRE_ACCEPT=1 cargo test -p gradwire-proto-common meaning";
        assert!(std::fs::read_to_string(&file).unwrap_or_default() == wanted, "meanings.tsv is stale; {fix}");
    }

    #[test]
    fn a_meaning_is_found_by_its_whole_name() {
        assert!(meaning("cluster.lanes").unwrap().contains("threads"));
        assert_eq!((meaning("cluster.lane"), meaning("lanes"), meaning("")), (None, None, None));
    }
}
