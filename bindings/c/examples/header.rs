//! Writes include/gradwire.h anew. Run it after a change of the C functions or of the update rules; a test compares.

use proto_common::optimizer::{CONSTANTS_MAX, KINDS, Kind, Parameter};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    std::fs::write(path(), made()?)?;
    Ok(())
}

/// Where the header is.
pub(crate) fn path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include/gradwire.h")
}

/// The header that the sources make.
pub(crate) fn made() -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(here.join("cbindgen.toml"))?;
    config.after_includes = Some(rules());
    let mut made = Vec::new();
    cbindgen::generate_with_config(here, config)?.write(&mut made);
    Ok(made)
}

/// Numbers and constants of all update rules, from their registry.
fn rules() -> String {
    let shown = || KINDS.iter().enumerate().filter(|(_, kind)| !kind.is_internal);
    let numbers: String = shown().map(number).collect();
    let structures: String = shown().filter(|(_, kind)| !kind.parameters.is_empty()).map(structure).collect();
    format!(
        "
/**
 * The update rule on the servers. The header says what each one is.
 */
enum GradwireRule
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {{
{numbers}}};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum GradwireRule GradwireRule;
#else
typedef int32_t GradwireRule;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The constants of each rule.
 */
typedef union {{
    /* Constants of any rule in their order. */
    float values[{CONSTANTS_MAX}];
{structures}}} GradwireConstants;"
    )
}

fn number((number, kind): (usize, &Kind)) -> String {
    let name = kind.name.to_uppercase();
    format!("    /* {} */\n    GRADWIRE_RULE_{name} = {number},\n", kind.about)
}

fn structure((_, kind): (usize, &Kind)) -> String {
    let usual = kind.usual().values();
    let fields = kind.parameters.iter().zip(usual).map(|(parameter, usual)| {
        let Parameter { name, about, .. } = parameter;
        let range = parameter.words();
        format!("        /* {about} It is {range}, and {usual} by default. */\n        float {name};\n")
    });
    format!("    struct {{\n{}    }} {};\n", fields.collect::<String>(), kind.name)
}
