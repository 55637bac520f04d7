//! Writes include/gradwire.h anew. Run it after a change of the C functions; a test compares.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml"))?;
    cbindgen::generate_with_config(here, config)?.write_to_file(here.join("include/gradwire.h"));
    Ok(())
}
