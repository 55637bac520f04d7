//! A cluster's certificate authority: makes its own certificate and those of processes. Keys are P-256. It writes no file, and
//! daemons are built without it (feature `authority`).

use super::Name;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};
use thiserror::Error;
use time::OffsetDateTime;

/// Clocks differ: what is issued is valid from a little earlier on.
const SKEW_S: i64 = 3600;
const DAY_S: i64 = 86_400;

/// Why there is no certificate.
#[derive(Debug, Error)]
pub enum AuthorityError {
    /// What was kept of an authority is none.
    #[error("{what} cannot be used: {why}")]
    Kept {
        /// The part.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// No calendar has such a time.
    #[error("invalid expiry: {0} seconds after 1970 is beyond the calendar; use fewer days")]
    Time(i64),
    /// Making it failed.
    #[error("cannot create a certificate: {0}")]
    Made(#[from] rcgen::Error),
}

/// From when to when a certificate is good, in seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    /// Not before.
    pub from_s: i64,
    /// Not after.
    pub until_s: i64,
}

impl Validity {
    /// From a little before now on, for so many days.
    #[must_use]
    pub fn days(days: u32) -> Self {
        // A clock before 1970 issues what is over.
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        Self { from_s: now_s - SKEW_S, until_s: now_s + i64::from(days) * DAY_S }
    }
}

/// A certificate and its private key, as PEM.
#[derive(Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl fmt::Debug for Pair {
    /// Keys stay out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pair(..)")
    }
}

/// Who signs.
pub struct Authority {
    pair: Pair,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority(..)")
    }
}

impl Authority {
    /// A new one.
    pub fn new(label: &str, validity: Validity) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = params(label, validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.pem();
        let pair = Pair { certificate, key: key.serialize_pem() };
        Ok(Self { pair, issuer: Issuer::new(params, key) })
    }

    /// One that was made before.
    pub fn open(pair: Pair) -> Result<Self, AuthorityError> {
        let kept = |what| move |error: rcgen::Error| AuthorityError::Kept { what, why: error.to_string() };
        let key = KeyPair::from_pem(&pair.key).map_err(kept("its private key"))?;
        let issuer = Issuer::from_ca_cert_pem(&pair.certificate, key).map_err(kept("its certificate"))?;
        Ok(Self { pair, issuer })
    }

    /// Its certificate, which everybody gets, and its key, which nobody else does.
    #[must_use]
    pub fn pair(&self) -> &Pair {
        &self.pair
    }

    /// A certificate for processes of these kinds.
    pub fn issue(&self, label: &str, names: &[Name], validity: Validity) -> Result<Pair, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = params(label, validity)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Servers dial each other, so every process is at either end.
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let uri = |name: &Name| Ok(SanType::URI(name.to_string().as_str().try_into()?));
        params.subject_alt_names = names.iter().map(uri).collect::<Result<_, rcgen::Error>>()?;
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Pair { certificate, key: key.serialize_pem() })
    }
}

fn params(label: &str, validity: Validity) -> Result<CertificateParams, AuthorityError> {
    let time =
        |seconds| OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| AuthorityError::Time(seconds));
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (time(validity.from_s)?, time(validity.until_s)?);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, label);
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::Certificate;
    use proto_common::ids::{JobId, Role};

    #[test]
    fn an_authority_that_was_kept_issues_as_a_new_one_does() {
        let new = Authority::new("cluster", Validity::days(10)).unwrap();
        let kept = Authority::open(new.pair().clone()).unwrap();
        for authority in [&new, &kept] {
            let name = Name { job: Some(JobId(7)), role: Some(Role::Worker) };
            let issued = authority.issue("node", &[name], Validity::days(3)).unwrap();
            let said = &Certificate::all_of_pem(issued.certificate.as_bytes()).unwrap()[0];
            assert!(said.identity.permits(JobId(7), Role::Worker).is_ok());
            assert!(said.identity.permits(JobId(7), Role::Server).is_err());
            assert_eq!((said.subject.as_str(), said.issuer.as_str()), ("CN=node", "CN=cluster"));
            assert_eq!(said.not_after_s - said.not_before_s, 3 * DAY_S + SKEW_S);
        }
        assert_eq!(kept.pair().certificate, new.pair().certificate);
    }

    #[test]
    fn what_cannot_be_is_said_and_keys_are_not() {
        assert!(matches!(Authority::new("x", Validity::days(u32::MAX)), Err(AuthorityError::Time(_))));
        let good = Authority::new("x", Validity::days(1)).unwrap();
        let bad = |pair| Authority::open(pair).unwrap_err().to_string();
        assert!(bad(Pair { key: "no key".into(), ..good.pair().clone() }).contains("private key"));
        assert!(bad(Pair { certificate: "none".into(), ..good.pair().clone() }).contains("its certificate"));
        assert!(!format!("{:?} {good:?}", good.pair()).contains("BEGIN"));
    }
}
