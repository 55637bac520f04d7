//! The header that is committed is the one that the sources make, the registry of update rules among them.

#[path = "../examples/header.rs"]
#[allow(dead_code, reason = "its main writes the header")]
mod header;

#[test]
fn the_header_is_what_the_sources_say() -> Result<(), Box<dyn std::error::Error>> {
    assert!(
        header::made()? == std::fs::read(header::path())?,
        "include/gradwire.h is out of date; run: cargo run -p gradwire-c --example header"
    );
    Ok(())
}
