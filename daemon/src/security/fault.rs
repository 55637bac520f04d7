//! What goes wrong between two processes that should trust each other, told so that whoever reads one side's log knows what to
//! do. rustls' errors become these words here and nowhere else.

use super::identity::NotPermitted;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
use thiserror::Error;

/// Why a connection is not secure.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// Plain bytes where TLS should be.
    #[error(
        "the peer does not use TLS, which this process requires: set security.ca, security.certificate and security.key at the peer, and check that it is a Gradwire process"
    )]
    Plain,
    /// TLS where plain bytes should be.
    #[error(
        "the peer uses TLS and this process does not: set security.ca, security.certificate and security.key here as well"
    )]
    Tls,
    /// It closed while certificates were being shown.
    #[error(
        "the peer closed the connection during the TLS handshake: check its log for the reason; it may run with security.mode = \"off\", or without certificates"
    )]
    Closed,
    /// The peer's certificate is not accepted here.
    #[error("this process rejects the peer's certificate: {0}")]
    Theirs(String),
    /// Ours is not accepted there.
    #[error("the peer rejects this process's certificate: {0}")]
    Ours(String),
    /// A good certificate, for something else.
    #[error("the peer's certificate does not permit its role: {0}")]
    Claim(#[from] NotPermitted),
    /// Anything else.
    #[error("TLS: {0}")]
    Other(String),
}

impl Fault {
    /// What kind it is, for a metric's label.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Plain | Self::Tls | Self::Closed | Self::Other(_) => "tls",
            Self::Theirs(_) | Self::Ours(_) | Self::Claim(_) => "certificate",
        }
    }

    /// The fault within an error of reading or writing, where there is one.
    #[must_use]
    pub fn within(error: &std::io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref::<Error>().map(Self::of)
    }

    fn of(error: &Error) -> Self {
        match error {
            Error::AlertReceived(alert) => of_alert(*alert),
            Error::InvalidCertificate(why) => Self::Theirs(of_certificate(why)),
            Error::NoCertificatesPresented => Self::Theirs(
                "it presented none; set security.certificate and security.key at the peer".into(),
            ),
            Error::InvalidMessage(
                InvalidMessage::InvalidContentType
                | InvalidMessage::UnknownProtocolVersion
                | InvalidMessage::InvalidEmptyPayload
                | InvalidMessage::MessageTooLarge,
            ) => Self::Plain,
            other => Self::Other(other.to_string()),
        }
    }
}

/// Why a process's own certificate would be refused by everybody who trusts what it trusts.
pub(super) fn own_fault(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!("no authority in security.ca has signed it: {OTHER_AUTHORITY}")
        }
        Error::InvalidCertificate(why) => of_certificate(why),
        other => other.to_string(),
    }
}

const ISSUE: &str = "issue a new one with `gradwire certs issue`";
const OTHER_AUTHORITY: &str = "another authority has signed it; both sides need certificates of the same authority, and that authority's certificate in security.ca";

fn of_alert(alert: AlertDescription) -> Fault {
    match alert {
        AlertDescription::CertificateExpired => {
            Fault::Ours(format!("it has expired, or the clocks differ; {ISSUE}"))
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => Fault::Ours(OTHER_AUTHORITY.into()),
        AlertDescription::CertificateRequired => {
            Fault::Ours("none was presented; set security.certificate and security.key".into())
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => Fault::Ours(format!("{alert:?}; {ISSUE}")),
        other => Fault::Other(format!("the peer ended the handshake ({other:?}); are both of one release?")),
    }
}

fn of_certificate(why: &CertificateError) -> String {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("it has expired, or the clocks differ; {ISSUE}")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet: the clocks of the two hosts differ; set them by NTP".into()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => OTHER_AUTHORITY.into(),
        other => format!("{other}; {ISSUE}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_is_told_whose_certificate_it_is_and_why() {
        let theirs = |why| Fault::of(&Error::InvalidCertificate(why)).to_string();
        assert!(theirs(CertificateError::Expired).contains("expired"));
        assert!(theirs(CertificateError::NotValidYet).contains("NTP"));
        assert!(theirs(CertificateError::UnknownIssuer).contains("another authority"));
        let ours = |alert| Fault::of(&Error::AlertReceived(alert));
        assert!(
            matches!(ours(AlertDescription::CertificateExpired), Fault::Ours(why) if why.contains("expired"))
        );
        assert!(matches!(ours(AlertDescription::UnknownCA), Fault::Ours(why) if why.contains("authority")));
        assert!(
            matches!(ours(AlertDescription::CertificateRequired), Fault::Ours(why) if why.contains("none"))
        );
        assert!(matches!(ours(AlertDescription::ProtocolVersion), Fault::Other(_)));
        assert_eq!(Fault::of(&Error::InvalidMessage(InvalidMessage::InvalidContentType)), Fault::Plain);
        assert!(matches!(Fault::of(&Error::NoCertificatesPresented), Fault::Theirs(_)));
    }

    #[test]
    fn errors_of_the_network_are_no_faults() {
        assert_eq!(Fault::within(&std::io::Error::other("x")), None);
        let tls = std::io::Error::new(std::io::ErrorKind::InvalidData, Error::NoCertificatesPresented);
        assert!(Fault::within(&tls).is_some());
    }
}
