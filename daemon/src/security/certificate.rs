//! A certificate for people and for the checks that rustls leaves to us: whom it speaks for, from when to when. It judges no
//! signature.

use super::identity::Identity;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// What is no certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a certificate: {0}")]
pub struct NotACertificate(pub String);

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Whom it speaks for.
    pub identity: Identity,
    /// Its subject, for people.
    pub subject: String,
    /// Who has signed it, for people.
    pub issuer: String,
    /// Serial number, hexadecimal.
    pub serial: String,
    /// Seconds since 1970 before which it is not valid.
    pub not_before_s: i64,
    /// Seconds since 1970 after which it is not valid any more.
    pub not_after_s: i64,
    /// May it sign others?
    pub is_authority: bool,
    /// SHA-256 of all its bytes, hexadecimal.
    pub fingerprint: String,
}

impl Certificate {
    /// Reads one.
    pub fn of(der: &[u8]) -> Result<Self, NotACertificate> {
        let (_, parsed) =
            X509Certificate::from_der(der).map_err(|error| NotACertificate(error.to_string()))?;
        let names = parsed.subject_alternative_name().ok().flatten();
        let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        let uris = names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
        Ok(Self {
            identity: Identity::of(uris),
            subject: parsed.subject().to_string(),
            issuer: parsed.issuer().to_string(),
            serial: parsed.raw_serial_as_string(),
            not_before_s: parsed.validity().not_before.timestamp(),
            not_after_s: parsed.validity().not_after.timestamp(),
            is_authority: parsed.is_ca(),
            fingerprint: hexadecimal(ring::digest::digest(&ring::digest::SHA256, der).as_ref()),
        })
    }

    /// All of a PEM file.
    pub fn all_of_pem(pem: &[u8]) -> Result<Vec<Self>, NotACertificate> {
        certificates(pem)?.iter().map(|der| Self::of(der)).collect()
    }
}

/// All certificates of a PEM file, which has one at least.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, NotACertificate> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| NotACertificate(error.to_string()))?;
    if all.is_empty() { Err(NotACertificate("it has no PEM section CERTIFICATE".into())) } else { Ok(all) }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::rig::Authority;
    use super::*;
    use proto_common::ids::{JobId, Role};

    #[test]
    fn what_a_certificate_says() {
        let authority = Authority::new("cluster");
        let issued = authority.issue(&["gradwire://7/worker"], 0, 3600);
        let all = Certificate::all_of_pem(issued.certificate.as_bytes()).unwrap();
        let [said] = &all[..] else { panic!("{all:?}") };
        assert!(said.identity.permits(JobId(7), Role::Worker).is_ok());
        assert!(said.identity.permits(JobId(7), Role::Server).is_err());
        assert!(said.issuer.contains("cluster") && !said.is_authority);
        assert_eq!((said.not_after_s - said.not_before_s, said.fingerprint.len()), (3600, 64));
        let own = Certificate::all_of_pem(authority.certificate().as_bytes()).unwrap();
        assert!(own[0].is_authority && own[0].identity == Identity::default());
    }

    #[test]
    fn what_is_none_is_refused() {
        for bytes in [&b""[..], b"x", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(Certificate::all_of_pem(bytes).is_err(), "{bytes:?}");
        }
        assert!(Certificate::of(&[0x30, 0x82, 0xFF, 0xFF]).is_err());
    }
}
