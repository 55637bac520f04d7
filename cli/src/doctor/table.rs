//! What a visit came to, as a table for people and as JSON. Text from values; no I/O.

use super::pair::{Outcome, Visit};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A table with a sentence above it.
pub(super) fn render(visit: &Visit) -> String {
    let mut text = format!("peer {}: ", visit.peer);
    // Writing to a string cannot fail.
    let _ = match (&visit.broken, &visit.choice) {
        (Some((why, fix, _)), _) => writeln!(text, "FAIL: {why}; {fix}"),
        (None, Ok(choice)) => {
            writeln!(text, "a worker here and a server there would use {} ({})", choice.driver, choice.why)
        }
        (None, Err(why)) => writeln!(text, "FAIL: no transport satisfies both sides: {why}"),
    };
    if !visit.rows.is_empty() {
        let _ =
            writeln!(text, "  {:<11} {:<6} {:>11} {:>9}  WHY NOT", "DRIVER", "WORKS", "ROUND TRIP", "MB/S");
    }
    for row in &visit.rows {
        let (works, trip, rate, why) = match &row.outcome {
            Outcome::Works { round_trip_us, megabytes_per_s } => {
                ("yes", format!("{round_trip_us:.1} µs"), format!("{megabytes_per_s:.0}"), "")
            }
            Outcome::Fails { why } => ("NO", "-".into(), "-".into(), why.as_str()),
            Outcome::Skipped { why } => ("-", "-".into(), "-".into(), why.as_str()),
        };
        let line = format!("  {:<11} {works:<6} {trip:>11} {rate:>9}  {why}", row.trial);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// The same for programs.
pub(super) fn to_json(visit: &Visit) -> Value {
    let row = |row: &super::pair::Row| {
        let (works, why) = match &row.outcome {
            Outcome::Works { .. } => (json!(true), json!(null)),
            Outcome::Fails { why } => (json!(false), json!(why)),
            Outcome::Skipped { why } => (json!(null), json!(why)),
        };
        let (trip, rate) = match row.outcome {
            Outcome::Works { round_trip_us, megabytes_per_s } => {
                (json!(round_trip_us), json!(megabytes_per_s))
            }
            _ => (json!(null), json!(null)),
        };
        json!({
            "trial": row.trial, "driver": row.driver, "works": works, "why": why,
            "round_trip_us": trip, "megabytes_per_s": rate,
        })
    };
    let (chosen, why) = match &visit.choice {
        Ok(choice) => (json!(choice.driver), &choice.why),
        Err(why) => (json!(null), why),
    };
    let broken = visit.broken.as_ref().map(|(why, fix, _)| json!({ "why": why, "fix": fix }));
    json!({
        "peer": visit.peer, "chosen": chosen, "why": why, "broken": broken, "code": visit.code() as u8,
        "trials": visit.rows.iter().map(row).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::pair::Row;
    use proto_common::error::ExitCode;
    use proto_common::transport::{Choice, Driver};

    fn row(trial: &str, driver: Driver, outcome: Outcome) -> Row {
        Row { trial: trial.into(), driver, outcome }
    }

    fn visit() -> Visit {
        Visit {
            peer: "10.0.0.2:9094".into(),
            choice: Ok(Choice { driver: Driver::Tcp, why: "tcp: no shm (different hosts)".into() }),
            rows: vec![
                row("shm", Driver::Shm, Outcome::Skipped { why: "different hosts".into() }),
                row("verbs", Driver::Verbs, Outcome::Fails { why: "blocked".into() }),
                row("tcp", Driver::Tcp, Outcome::Works { round_trip_us: 83.25, megabytes_per_s: 2100.4 }),
            ],
            broken: None,
        }
    }

    #[test]
    fn a_page_tells_what_would_be_used_and_each_way() {
        let page = render(&visit());
        let lines: Vec<_> = page.lines().collect();
        assert!(lines[0].contains("would use tcp (tcp: no shm (different hosts))"), "{page}");
        assert_eq!(lines[2], "  shm         -                -         -  different hosts");
        assert_eq!(lines[3], "  verbs       NO               -         -  blocked");
        assert_eq!(lines[4], "  tcp         yes        83.2 µs      2100");
        let json = to_json(&visit());
        assert_eq!((&json["chosen"], &json["code"]), (&json!("tcp"), &json!(0)));
        assert_eq!(json["trials"][1]["works"], json!(false));
    }

    #[test]
    fn what_is_chosen_has_to_work() {
        let mut broken = visit();
        assert_eq!(broken.code(), ExitCode::Ok);
        broken.rows[2].outcome = Outcome::Fails { why: "x".into() };
        assert_eq!(broken.code(), ExitCode::Transport);
        broken.broken = Some(("silence".into(), "open the port".into(), ExitCode::Deadline));
        assert_eq!(broken.code(), ExitCode::Deadline);
        assert!(render(&broken).contains("FAIL: silence; open the port"));
        let mut none = visit();
        none.choice = Err("no tcp (off)".into());
        assert_eq!(none.code(), ExitCode::Transport);
        assert!(render(&none).contains("no transport satisfies both"));
    }
}
