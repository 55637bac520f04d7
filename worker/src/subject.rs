//! What an operation's error is about, in words: the operation, the tensor by the name that the user gave, ranks, times. It
//! decides nothing.

use proto_common::batch::OpKind;
use proto_common::ids::{Key, Rank};
use proto_common::tensor::label;

/// The operation that failed, as its error names it. Engines know keys only; the handle adds kind and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Which kind of operation; `None` where the error was made below the handle.
    pub kind: Option<OpKind>,
    /// The tensor's name; empty for a tensor that was declared by number.
    pub name: String,
}

impl Subject {
    /// For example `push_pull of tensor "fc1.weight"`.
    pub(crate) fn of(&self, key: Key) -> String {
        let operation = match self.kind {
            Some(OpKind::Push) => "push",
            Some(OpKind::Pull) => "pull",
            Some(OpKind::PushPull) => "push_pull",
            Some(OpKind::Init) => "init",
            Some(OpKind::Release) => "release",
            _ => "operation",
        };
        format!("{operation} of {}", label(key, &self.name))
    }
}

/// A time that was waited, for people: `30 s`, `1.2 s`, `350 ms`.
pub(crate) fn waited(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..10_000 if !(ms / 100).is_multiple_of(10) => format!("{}.{} s", ms / 1_000, (ms / 100) % 10),
        _ => format!("{} s", ms / 1_000),
    }
}

/// Ranks with their role: `worker 0`, `workers 0, 3`. `otherwise` where there are none.
pub(crate) fn ranks(role: &str, ranks: &[Rank], otherwise: &str) -> String {
    match ranks {
        [] => otherwise.to_owned(),
        [one] => format!("{role} {one}"),
        many => {
            let many: Vec<String> = many.iter().map(ToString::to_string).collect();
            format!("{role}s {}", many.join(", "))
        }
    }
}

/// The verb for so many ranks.
pub(crate) fn have(ranks: &[Rank]) -> &'static str {
    if ranks.len() == 1 { "has" } else { "have" }
}

/// As [`have`].
pub(crate) fn are(ranks: &[Rank]) -> &'static str {
    if ranks.len() == 1 { "is" } else { "are" }
}

/// Who has not answered, with the verb.
pub(crate) fn unanswered(servers: &[Rank]) -> String {
    format!("{} {}", ranks("server", servers, "the servers"), have(servers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_named_as_it_was_declared() {
        let of = |kind, name: &str| Subject { kind, name: name.into() }.of(Key(5));
        assert_eq!(of(Some(OpKind::PushPull), "fc1.weight"), "push_pull of tensor \"fc1.weight\"");
        assert_eq!(of(Some(OpKind::Pull), ""), "pull of tensor 5");
        assert_eq!(of(None, ""), "operation of tensor 5");
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        let told = [(0, "0 ms"), (999, "999 ms"), (1_000, "1 s"), (1_250, "1.2 s"), (9_999, "9.9 s")];
        for (ms, text) in told.into_iter().chain([(10_000, "10 s"), (30_012, "30 s"), (60_000, "60 s")]) {
            assert_eq!(waited(ms), text);
        }
    }

    #[test]
    fn one_rank_is_singular() {
        let of =
            |all: &[u32]| ranks("worker", &all.iter().map(|rank| Rank(*rank)).collect::<Vec<_>>(), "none");
        assert_eq!(
            (of(&[0]), of(&[2, 5]), of(&[])),
            ("worker 0".into(), "workers 2, 5".into(), "none".into())
        );
    }
}
