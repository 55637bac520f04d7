//! What each setting means: the documentation of its field, as the type's schema has it.

use proto_common::config::Settings;
use schemars::generate::SchemaSettings;
use serde_json::Value;
use std::collections::BTreeMap;

/// By dotted name.
pub(super) fn of_all() -> BTreeMap<String, String> {
    fn walk(prefix: &str, schema: &Value, found: &mut BTreeMap<String, String>) {
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
        for (name, schema) in properties {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            let meaning = schema.get("description").and_then(Value::as_str).unwrap_or_default();
            // Links of the documentation lead nowhere here.
            found.insert(path.clone(), meaning.replace("[`", "`").replace("`]", "`").replace('\n', " "));
            walk(&path, schema, found);
        }
    }
    let settings = SchemaSettings::default().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<Settings>();
    let mut found = BTreeMap::new();
    walk("", schema.as_value(), &mut found);
    found
}
