//! The classes of the update rules for Python are those of the registry.

#[path = "../examples/rules.rs"]
#[allow(dead_code, reason = "its main writes the classes")]
mod rules;

#[test]
fn python_has_the_rules_of_the_registry() -> std::io::Result<()> {
    assert!(
        rules::made()? == std::fs::read_to_string(rules::path())?,
        "optimizers.py is out of date; run: cargo run -p gradwire-proto-common --example rules"
    );
    Ok(())
}
