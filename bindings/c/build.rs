//! Tells the shared library's linker its name. The symbols' versions come with `shared.sh`: the compiler gives the linker a
//! list of symbols of its own, beside which no other can have versions.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgradwire.so.1");
}
