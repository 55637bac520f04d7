//! The header that is committed is the one that the sources make.

#[test]
fn the_header_is_what_the_sources_say() -> Result<(), Box<dyn std::error::Error>> {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml"))?;
    let mut made = Vec::new();
    cbindgen::generate_with_config(here, config)?.write(&mut made);
    let committed = std::fs::read(here.join("include/gradwire.h"))?;
    assert!(
        made == committed,
        "include/gradwire.h is out of date; run: cargo run -p gradwire-c --example header"
    );
    Ok(())
}
