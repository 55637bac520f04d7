//! The sender's build, and what processes of different protocol versions can still say to each other. Two things have
//! the same bytes in every version, and a test freezes them: the beginning of a registration, up to the sender's
//! build, and the refusal that answers it. Everything else belongs to one version.

use super::codec::{decode, encode};
use crate::limits::PROTOCOL_VERSION;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of a build's name that are read from an unknown peer, at most.
const NAME_BYTES_READ: usize = 64;
/// No protocol version is larger: a message with a larger one is no registration.
const PROTOCOLS: std::ops::RangeInclusive<u32> = 1..=9999;

/// A build of Gradwire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// Its [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Its version; empty if it sent none.
    pub version: String,
}

impl Build {
    /// This build.
    #[must_use]
    pub fn own() -> Self {
        Self { protocol: PROTOCOL_VERSION, version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version.as_str() {
            "" => write!(f, "a build of protocol version {}", self.protocol),
            version => write!(f, "Gradwire {version} (protocol version {})", self.protocol),
        }
    }
}

/// Which of two builds must be replaced.
pub(super) fn older<'a>(theirs: &Build, ours: &Build, (they, we): (&'a str, &'a str)) -> &'a str {
    if theirs.protocol < ours.protocol { they } else { we }
}

/// The beginning of a registration: the message's number, and its first two fields.
#[derive(Deserialize, Serialize)]
pub(super) struct Opening {
    message: u32,
    protocol: u32,
    build_bytes: u64,
}

const OPENING_BYTES: usize = 16;

/// The sender of this first message, if it begins like a registration of any version. The rest of the message may be
/// unreadable.
#[must_use]
pub fn speaker_of(body: &[u8]) -> Option<Build> {
    let opening: Opening = decode(body.get(..OPENING_BYTES)?).ok()?;
    let build_bytes = usize::try_from(opening.build_bytes).ok().filter(|bytes| *bytes <= NAME_BYTES_READ)?;
    let version = str::from_utf8(body.get(OPENING_BYTES..OPENING_BYTES + build_bytes)?).ok()?;
    let is_readable = version.chars().all(|letter| letter.is_ascii_graphic());
    let is_registration = opening.message == 0 && PROTOCOLS.contains(&opening.protocol) && is_readable;
    is_registration.then(|| Build { protocol: opening.protocol, version: version.to_owned() })
}

/// The beginning of a registration of another version, followed by bytes that cannot be read. For tests.
#[must_use]
pub fn opening_of(build: &Build) -> Vec<u8> {
    let build_bytes = build.version.len() as u64;
    let opening = encode(&Opening { message: 0, protocol: build.protocol, build_bytes }).unwrap_or_default();
    [&opening[..], build.version.as_bytes(), &[0xEE; 100]].concat()
}

#[cfg(test)]
mod tests {
    use super::super::{FromScheduler, RefusalReason};
    use super::*;

    fn build(protocol: u32, version: &str) -> Build {
        Build { protocol, version: version.to_owned() }
    }

    #[test]
    fn the_refusal_has_the_same_bytes_in_every_version() {
        let (theirs, ours) = (build(7, "0.9"), build(8, "1"));
        let message = FromScheduler::Refused(RefusalReason::Protocol { theirs, ours });
        let hex: String = encode(&message).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        let wanted = [
            "01000000",
            "00000000",
            "07000000",
            "0300000000000000",
            "302e39",
            "08000000",
            "0100000000000000",
            "31",
        ];
        assert_eq!(hex, wanted.concat(), "peers of other versions read these bytes: they never change");
    }

    #[test]
    fn a_speaker_of_any_version_is_known_by_how_it_opens() {
        let other = build(9998, "12.3.4-rc1");
        assert_eq!(speaker_of(&opening_of(&other)), Some(other));
        assert_eq!(speaker_of(&opening_of(&build(1, ""))), Some(build(1, "")));
        for wrong in [build(0, "1"), build(10_000, "1"), build(9, "1 2"), build(9, &"x".repeat(65))] {
            assert_eq!(speaker_of(&opening_of(&wrong)), None, "{wrong}");
        }
        assert_eq!(
            speaker_of(&opening_of(&build(9, &"x".repeat(64)))).map(|build| build.version.len()),
            Some(64)
        );
        assert_eq!(speaker_of(&[0; 15]), None);
        assert_eq!(speaker_of(&[1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), None, "another message");
    }

    #[test]
    fn the_error_names_both_and_what_to_do() {
        let said = |theirs, ours| RefusalReason::Protocol { theirs, ours }.to_string();
        let text = said(build(7, "0.9.0"), build(8, "1.0.0"));
        let wanted = "Gradwire 0.9.0 (protocol version 7) cannot join a job whose scheduler is Gradwire 1.0.0 (protocol version 8)";
        assert!(text.contains(wanted) && text.contains("upgrade this process and restart the job"), "{text}");
        assert!(text.contains("docs/upgrading.md"), "{text}");
        assert!(said(build(9, ""), build(8, "1")).contains("upgrade the scheduler and restart the job"));
    }

    #[test]
    fn pages_say_this_version_and_these_words() {
        let row = format!("\n| {PROTOCOL_VERSION} | control messages");
        assert!(include_str!("../../../docs/protocol.md").contains(&row), "docs/protocol.md lacks {row:?}");
        let refused = RefusalReason::Protocol { theirs: build(10, "0.1.0"), ours: build(12, "0.2.0") };
        let page = include_str!("../../../docs/troubleshooting.md");
        assert!(
            page.contains(&refused.to_string()),
            "docs/troubleshooting.md has other words than {refused}"
        );
    }
}
