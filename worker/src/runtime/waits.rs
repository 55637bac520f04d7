//! Warnings about waits for members that are alive but busy. It must not decide how long they are waited for.

use crate::subject::waited;
use std::io::Write as _;

/// The warning's text. `left_out` is how many other waits it stands for.
pub(crate) fn waiting(operation: &str, waited_ms: u64, on: &str, why: &str, left_out: u64) -> String {
    let others = match left_out {
        0 => String::new(),
        1 => " (as does one other operation)".into(),
        many => format!(" (as do {many} other operations)"),
    };
    format!(
        "{operation} has waited {} for {on} {why}{others}. Members that are alive are waited for (deadlines.busy_ms)",
        waited(waited_ms)
    )
}

/// Logs a warning. A program without logging, such as most scripts in Python, gets it on stderr.
pub(crate) fn warn(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{text}");
    } else {
        // There is nobody to report a failure to.
        let _ = writeln!(std::io::stderr(), "gradwire: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_operation_members_and_setting() {
        let text =
            |left_out| waiting("a push of tensor \"w\"", 30_000, "workers 0, 2", "to contribute", left_out);
        assert_eq!(
            text(0),
            "a push of tensor \"w\" has waited 30 s for workers 0, 2 to contribute. Members that are alive are waited for (deadlines.busy_ms)"
        );
        assert!(text(1).contains("to contribute (as does one other operation). "));
        assert!(text(7).contains("to contribute (as do 7 other operations). "));
    }
}
