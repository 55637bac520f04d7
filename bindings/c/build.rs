//! What the shared library's linker is told: its name, and which symbols it shows under which version.
fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rerun-if-changed=gradwire.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgradwire.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={here}/gradwire.map");
}
