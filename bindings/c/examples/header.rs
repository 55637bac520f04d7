//! Writes include/gradwire.h anew. Run it after a change of the C functions, the update rules or the element types; a test compares.

use proto_common::element::Dtype;
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
    config.after_includes = Some([dtypes(), rules()].join("\n"));
    let mut made = Vec::new();
    cbindgen::generate_with_config(here, config)?.write(&mut made);
    Ok(made)
}

/// Numbers and constants of all update rules, from their registry.
fn rules() -> String {
    let shown = || KINDS.iter().enumerate().filter(|(_, kind)| !kind.is_internal);
    let numbers = shown().map(|(number, kind)| (kind.name, number, kind.about.to_owned()));
    let numbers = enumeration("Rule", "The update rule on the servers.", numbers);
    let structures: String = shown().filter(|(_, kind)| !kind.parameters.is_empty()).map(structure).collect();
    format!(
        "{numbers}

/**
 * The constants of each rule.
 */
typedef union {{
    /* Constants of any rule in their order. */
    float values[{CONSTANTS_MAX}];
{structures}}} GradwireConstants;"
    )
}

/// The numbers of all element types, from their table.
fn dtypes() -> String {
    let numbers =
        Dtype::ALL.into_iter().map(|dtype| (dtype.name(), dtype as usize, dtype.about().to_owned()));
    enumeration("Dtype", "Element types.", numbers)
}

/// An enumeration as cbindgen writes one: names, numbers, and what is said of them.
fn enumeration<'a>(
    name: &str,
    about: &str,
    numbers: impl Iterator<Item = (&'a str, usize, String)>,
) -> String {
    let prefix = name.to_uppercase();
    let numbers: String = numbers
        .map(|(name, number, about)| {
            format!(
                "    /**\n     * {about}\n     */\n    GRADWIRE_{prefix}_{} = {number},\n",
                name.to_uppercase()
            )
        })
        .collect();
    format!(
        "
/**
 * {about}
 */
enum Gradwire{name}
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {{
{numbers}}};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum Gradwire{name} Gradwire{name};
#else
typedef int32_t Gradwire{name};
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus"
    )
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
