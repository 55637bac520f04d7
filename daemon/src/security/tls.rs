//! The two ends of mutual TLS 1.3, as rustls wants them told: both show a certificate of the cluster's authority, none is resumed,
//! so that every connection is checked anew. Names of hosts are not compared: see `identity`.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, PeerIncompatible, RootCertStore, ServerConfig,
    SignatureScheme,
};
use std::sync::Arc;
use std::time::Duration;

/// What both sides must say that they speak, so that no other TLS service is mistaken for ours.
const PROTOCOL: &[u8] = b"gradwire";

/// Configurations of both ends.
#[derive(Clone)]
pub(super) struct Ends {
    pub(super) accepting: Arc<ServerConfig>,
    pub(super) dialling: Arc<ClientConfig>,
}

/// Has one of these authorities signed this chain? What peers will ask, asked of our own. Some processes only dial and some only
/// accept: a certificate need not be good for both.
pub(super) fn verify(roots: RootCertStore, chain: &[CertificateDer<'_>], now_s: i64) -> Result<(), Error> {
    let [own, intermediates @ ..] = chain else { return Err(Error::NoCertificatesPresented) };
    let provider = ring::default_provider();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now_s).unwrap_or(0)));
    let (parsed, algorithms) =
        (ParsedCertificate::try_from(own)?, provider.signature_verification_algorithms.all);
    let accepting =
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, intermediates, now, algorithms);
    let Err(why) = accepting else { return Ok(()) };
    let dialling = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider))
        .build()
        .map_err(|error| Error::General(error.to_string()))?;
    dialling.verify_client_cert(own, intermediates, now).map(|_| ()).map_err(|_| why)
}

/// Makes them of one authority and one certificate.
pub(super) fn ends(
    roots: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Ends, Error> {
    let (roots, provider) = (Arc::new(roots), Arc::new(ring::default_provider()));
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(|error| Error::General(error.to_string()))?;
    let mut accepting = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())?;
    accepting.session_storage = Arc::new(NoServerSessionStorage {});
    accepting.send_tls13_tickets = 0;
    accepting.alpn_protocols = vec![PROTOCOL.to_vec()];
    let verifier = Arc::new(AnyHost { roots, algorithms: provider.signature_verification_algorithms });
    let mut dialling = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(chain, key)?;
    dialling.resumption = rustls::client::Resumption::disabled();
    dialling.enable_sni = false;
    dialling.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Ends { accepting: Arc::new(accepting), dialling: Arc::new(dialling) })
}

/// Checks everything about a server's certificate but its host's name.
#[derive(Debug)]
struct AnyHost {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // Only 1.3 is offered.
        Err(Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
