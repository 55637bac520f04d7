//! An authority for tests: certificates of any kind, also such as no careful one would issue.

use super::Security;
use super::authority::{self, Pair, Validity};
use proto_common::config::{Hidden, SecuritySettings, Settings};
use proto_common::ids::{JobId, Role};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};

pub(crate) struct Authority(authority::Authority);

impl Authority {
    pub(crate) fn new(label: &str) -> Self {
        Self(authority::Authority::new(label, Validity::days(1)).unwrap())
    }

    pub(crate) fn certificate(&self) -> &str {
        &self.0.pair().certificate
    }

    /// For these names, valid from so many seconds from now until so many.
    pub(crate) fn issue(&self, names: &[&str], from_s: i64, until_s: i64) -> Pair {
        let now_s = Validity::days(0).until_s;
        let names: Vec<_> = names.iter().map(|name| name.parse().unwrap()).collect();
        self.0.issue("x", &names, Validity { from_s: now_s + from_s, until_s: now_s + until_s }).unwrap()
    }

    /// For a worker of job 7, and for one end of connections only.
    pub(crate) fn issue_for(&self, usage: ExtendedKeyUsagePurpose) -> Pair {
        let (own, key) = (self.0.pair(), KeyPair::generate().unwrap());
        let signer =
            Issuer::from_ca_cert_pem(&own.certificate, KeyPair::from_pem(&own.key).unwrap()).unwrap();
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![usage];
        params.subject_alt_names = vec![SanType::URI("gradwire://7/worker".try_into().unwrap())];
        let certificate = params.signed_by(&key, &signer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }

    /// The settings of a process that holds it.
    pub(crate) fn settings(&self, job: u64, held: &Pair) -> Settings {
        let security = SecuritySettings {
            ca: Some(self.certificate().to_owned()),
            certificate: Some(held.certificate.clone()),
            key: Some(Hidden(held.key.clone())),
            ..SecuritySettings::default()
        };
        Settings { job: JobId(job), security, ..Settings::default() }
    }

    /// What a process of job 7 holds.
    pub(crate) fn of(&self, role: Role) -> Security {
        let held = self.issue(&[&format!("gradwire://7/{role}")], -60, 3600);
        Security::open(&self.settings(7, &held), Some(role)).unwrap()
    }
}
