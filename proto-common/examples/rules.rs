//! Writes the classes of the update rules for Python from their registry. Run it after a change of the rules; a test compares.

use proto_common::optimizer::{Form, KINDS, Kind, LEARNING_RATE, Parameter};
use std::path::{Path, PathBuf};

/// The line that ends what people write.
const MARK: &str =
    "# From here on, this file is written by: cargo run -p gradwire-proto-common --example rules\n";

fn main() -> std::io::Result<()> {
    std::fs::write(path(), made()?)
}

/// The module with the classes.
pub(crate) fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../bindings/python/python/gradwire/optimizers.py")
}

/// The module with the classes of today's rules.
pub(crate) fn made() -> std::io::Result<String> {
    let text = std::fs::read_to_string(path())?;
    let written = text.split(MARK).next().unwrap_or_default();
    let base = format!(
        "

@dataclass(frozen=True)
class _Stepping(Optimizer):
    learning_rate: float = {LEARNING_RATE}
    weight_decay: float = 0.0
    schedule: Schedule = CONSTANT
    average: bool = True
"
    );
    let shown = || KINDS.iter().filter(|kind| !kind.is_internal);
    let classes: String = shown().map(class).collect();
    let names: String = shown().map(|kind| format!("    \"{}\",\n", kind.class)).collect();
    Ok(format!("{written}{MARK}{base}{classes}\n\n__all__ += [\n{names}]\n"))
}

fn class(kind: &Kind) -> String {
    let Kind { name, class, about, parameters, .. } = kind;
    let usual = kind.usual();
    let constants = parameters.iter().zip(usual.values());
    let lines: Vec<String> = parameters.iter().map(line).collect();
    let mut doc = vec![wrapped(about)];
    doc.extend((!lines.is_empty()).then(|| lines.join("\n    ")));
    let arrays = usual.arrays(Form::Published);
    if !arrays.is_empty() {
        doc.push(wrapped(&format!("State of each element: {}.", arrays.join(", "))));
    }
    let (base, average) =
        if kind.steps { ("_Stepping", "") } else { ("Optimizer", "    average: bool = False\n") };
    let fields: String = constants.map(|(parameter, usual)| field(parameter, usual)).collect();
    let listed: String = parameters.iter().map(|parameter| format!("\"{}\", ", parameter.name)).collect();
    let listed = match listed.trim_end() {
        "" => String::new(),
        names => format!("    _constants = ({names})\n"),
    };
    let body = format!("{average}{fields}");
    let gap = if body.is_empty() { "" } else { "\n" };
    format!(
        "

@dataclass(frozen=True)
class {class}({base}):
    \"\"\"{}\"\"\"

{body}{gap}    _name = \"{name}\"
{listed}",
        doc.join("\n\n    ")
    )
}

fn line(parameter: &Parameter) -> String {
    let Parameter { name, about, .. } = parameter;
    wrapped(&format!("- `{name}`: {about} It is {}.", parameter.words())).replace("\n    ", "\n      ")
}

fn field(parameter: &Parameter, usual: f32) -> String {
    let name = parameter.name;
    match (parameter.is_switch, usual) {
        (true, usual) => format!("    {name}: bool = {}\n", if usual == 0.0 { "False" } else { "True" }),
        (false, usual) => format!("    {name}: float = {usual:?}\n"),
    }
}

/// In lines of a docstring.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut width = 4;
    for word in text.split(' ') {
        let gap = match out.is_empty() {
            true => "",
            false if width + 1 + word.len() > 118 => {
                width = 3;
                "\n    "
            }
            false => " ",
        };
        out.extend([gap, word]);
        width += 1 + word.len();
    }
    out
}
