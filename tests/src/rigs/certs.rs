//! Certificates for clusters of tests, good and bad, and strangers that show them over TLS of their own: whatever rustls does
//! not keep a client from doing. Built on rustls directly, so that nothing of ours looks at what is sent.

use super::control::ControlPeer;
use daemon::security::authority::{Authority, Pair, Validity};
use proto_common::message::Message;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned};
use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// How long a stranger waits for anything.
const ANSWER: Duration = Duration::from_secs(20);
const HOUR_S: i64 = 3600;

/// An authority, and the files of those that it has signed for.
pub struct Certs {
    authority: Authority,
    directory: TempDir,
}

impl Default for Certs {
    fn default() -> Self {
        Self::new()
    }
}

impl Certs {
    /// A new authority.
    #[must_use]
    pub fn new() -> Self {
        let authority = Authority::new("test", Validity::days(2)).expect("an authority");
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(directory.path().join("ca.pem"), &authority.pair().certificate).expect("a file");
        Self { authority, directory }
    }

    /// A certificate with this name, such as `gradwire://0/worker`.
    #[must_use]
    pub fn issue(&self, name: &str) -> Pair {
        self.issue_between(name, -HOUR_S, HOUR_S)
    }

    /// One that is good from and until so many seconds from now.
    #[must_use]
    pub fn issue_between(&self, name: &str, from_s: i64, until_s: i64) -> Pair {
        let now_s = Validity::days(0).until_s;
        let validity = Validity { from_s: now_s + from_s, until_s: now_s + until_s };
        self.authority.issue("test", &[name.parse().expect("a name")], validity).expect("a certificate")
    }

    /// Where a file of ours is.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a pair where renewed ones are to be.
    pub fn put(&self, file: &str, pair: &Pair) {
        for (kind, text) in [("key", &pair.key), ("pem", &pair.certificate)] {
            let next = self.path("next");
            std::fs::write(&next, text).expect("a file");
            std::fs::set_permissions(&next, Permissions::from_mode(0o600)).expect("a file of ours");
            std::fs::rename(&next, self.path(&format!("{file}.{kind}"))).expect("a file");
        }
    }

    /// Flags of a daemon that holds a certificate with this name, for an hour.
    #[must_use]
    pub fn flags(&self, name: &str) -> Vec<String> {
        self.flags_until(name, HOUR_S)
    }

    /// Those of one whose certificate is good until so many seconds from now.
    #[must_use]
    pub fn flags_until(&self, name: &str, until_s: i64) -> Vec<String> {
        let file = name.trim_start_matches("gradwire://").replace('/', "-");
        self.put(&file, &self.issue_between(name, -HOUR_S, until_s));
        let setting = |key: &str, file: &str| {
            let value: &Path = &self.path(file);
            ["--set".to_owned(), format!("security.{key}={}", value.display())]
        };
        [
            setting("ca", "ca.pem"),
            setting("certificate", &format!("{file}.pem")),
            setting("key", &format!("{file}.key")),
        ]
        .concat()
    }
}

/// A client that believes every server.
#[derive(Debug)]
struct Believer;

impl ServerCertVerifier for Believer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A stranger's end of a TLS connection.
pub struct Stranger(StreamOwned<ClientConnection, TcpStream>);

impl Stranger {
    /// Connects, to show this certificate or none.
    #[must_use]
    pub fn connect(address: &str, shown: Option<&Pair>) -> Self {
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Believer));
        let mut config = match shown {
            None => config.with_no_client_auth(),
            Some(pair) => {
                let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes());
                let chain = chain.collect::<Result<_, _>>().expect("PEM");
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("PEM");
                config.with_client_auth_cert(chain, key).expect("a pair")
            }
        };
        config.alpn_protocols = vec![b"gradwire".to_vec()];
        let name = ServerName::try_from("anybody").expect("a name");
        let tls = ClientConnection::new(Arc::new(config), name).expect("a client");
        let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        stream.set_read_timeout(Some(ANSWER)).expect("a socket option");
        stream.set_write_timeout(Some(ANSWER)).expect("a socket option");
        Self(StreamOwned::new(tls, stream))
    }

    /// Sends a message and takes the answer, or why there is none.
    pub fn ask<T: Message>(&mut self, message: &impl Message) -> Result<T, String> {
        let said = |error: std::io::Error| error.to_string();
        self.0.write_all(&ControlPeer::frame(message)).map_err(said)?;
        let mut length = [0; 4];
        self.0.read_exact(&mut length).map_err(said)?;
        let mut body = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut body).map_err(said)?;
        proto_common::message::decode(&body).map_err(|error| error.to_string())
    }
}
