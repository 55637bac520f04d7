//! The settings of mutual TLS. The `daemon` crate reads the certificates.

use super::error::{SettingError, wrong};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How peers are authenticated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SecurityMode {
    /// Mutual TLS if certificates are set. Without certificates, loopback addresses only.
    #[default]
    Auto,
    /// Mutual TLS, also on loopback.
    Tls,
    /// No authentication, on any address. The process logs a warning.
    Off,
}

impl fmt::Display for SecurityMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Tls => "tls",
            Self::Off => "off",
        })
    }
}

/// Text that logs and messages never show.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Hidden(pub String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(..)")
    }
}

/// Authentication and encryption.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SecuritySettings {
    /// `auto`: mutual TLS if certificates are set; without certificates, loopback addresses only. `tls`: always mutual TLS.
    /// `off`: no authentication, for networks on which every process is trusted.
    pub mode: SecurityMode,
    /// Certificate of the cluster's certificate authority (a PEM file). A peer must present a certificate that this authority
    /// has signed for this job and the peer's role. Here and below, PEM text may be given instead of a file name.
    pub ca: Option<String>,
    /// This process's certificate (a PEM file). `gradwire certs issue` creates it.
    pub certificate: Option<String>,
    /// The private key of this process's certificate (a PEM file). Only this process's user or group may be able to read it.
    pub key: Option<Hidden>,
    /// Also encrypt tensor data that the tcp transport carries between hosts. RDMA cannot encrypt and is then not used. Both
    /// peers must set it.
    pub encrypt_data: bool,
}

const FIX: &str = "set all of security.ca, security.certificate and security.key; `gradwire certs issue` creates the three files";

impl SecuritySettings {
    /// Returns whether control connections use mutual TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        match self.mode {
            SecurityMode::Off => false,
            SecurityMode::Tls => true,
            SecurityMode::Auto => self.ca.is_some() || self.certificate.is_some() || self.key.is_some(),
        }
    }

    /// The names of the certificate settings that are set.
    #[must_use]
    pub fn certificates(&self) -> Vec<&'static str> {
        self.named().into_iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name).collect()
    }

    fn named(&self) -> [(&'static str, Option<&String>); 3] {
        let key = self.key.as_ref().map(|key| &key.0);
        [
            ("security.ca", self.ca.as_ref()),
            ("security.certificate", self.certificate.as_ref()),
            ("security.key", key),
        ]
    }

    /// Checks that settings that need each other are set together.
    pub(super) fn validate(&self) -> Result<(), SettingError> {
        if !self.is_tls() && self.encrypt_data {
            let fix = "it requires certificates (security.ca, security.certificate, security.key), because the keys of data connections are exchanged over control connections";
            return wrong("security.encrypt_data", true, fix);
        }
        if !self.is_tls() {
            return Ok(());
        }
        match self.named().iter().find(|(_, value)| value.is_none_or(String::is_empty)) {
            Some((key, _)) => wrong(key, "\"\"", FIX),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> SecuritySettings {
        SecuritySettings {
            mode: SecurityMode::Auto,
            ca: Some("ca.pem".into()),
            certificate: Some("certificate.pem".into()),
            key: Some(Hidden("key.pem".into())),
            encrypt_data: true,
        }
    }

    #[test]
    fn certificates_turn_tls_on_and_off_turns_it_off() {
        assert!(!SecuritySettings::default().is_tls());
        assert!(whole().is_tls());
        assert!(!SecuritySettings { mode: SecurityMode::Off, ..whole() }.is_tls());
        assert!(SecuritySettings { mode: SecurityMode::Tls, ..SecuritySettings::default() }.is_tls());
    }

    #[test]
    fn what_lacks_is_named() {
        assert_eq!(whole().validate(), Ok(()));
        let lacking = |settings: SecuritySettings| settings.validate().unwrap_err().key;
        assert_eq!(lacking(SecuritySettings { ca: None, ..whole() }), "security.ca");
        assert_eq!(lacking(SecuritySettings { certificate: None, ..whole() }), "security.certificate");
        assert_eq!(lacking(SecuritySettings { key: Some(Hidden(String::new())), ..whole() }), "security.key");
        let bare = SecuritySettings { mode: SecurityMode::Tls, ..SecuritySettings::default() };
        assert_eq!(lacking(bare), "security.ca");
    }

    #[test]
    fn data_is_not_encrypted_with_keys_that_everybody_reads() {
        let bare = SecuritySettings { encrypt_data: true, ..SecuritySettings::default() };
        assert_eq!(bare.validate().unwrap_err().key, "security.encrypt_data");
        let off = SecuritySettings { mode: SecurityMode::Off, ..whole() };
        assert_eq!(off.validate().unwrap_err().key, "security.encrypt_data");
    }

    #[test]
    fn keys_stay_out_of_logs() {
        assert!(!format!("{:?}", whole()).contains("key.pem"));
    }
}
