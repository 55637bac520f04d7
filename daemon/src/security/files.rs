//! Certificates and keys as the settings name them: read, checked against each other and against what this process is, and
//! read again when the files change, so that renewed certificates need no restart.

use super::certificate::{Certificate, certificates};
use super::fault::own_fault;
use super::tls::{self, Ends};
use crate::small_file;
use proto_common::config::{SecuritySettings, is_pem};
use proto_common::ids::{JobId, Role};
use rustls::RootCertStore;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// A certificate that ends sooner than this is warned of.
const SOON_S: i64 = 14 * 24 * 3600;
/// Bits of a file's mode by which others than its owner and group read it.
const OTHERS: u32 = 0o007;

/// Certificates or a key that cannot be used. Processes end with `ExitCode::Config`.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum SecurityError {
    /// A file cannot be read.
    #[error("cannot read {key} = {}: {cause}; `gradwire certs issue` makes it, and this process's user must be able to read it", path.display())]
    Read { key: &'static str, path: PathBuf, cause: io::Error },
    /// It is there, and it is not what it should be.
    #[error("{key} = {name} cannot be used: {why}")]
    Wrong { key: &'static str, name: String, why: String },
}

/// A file, or its text itself.
#[derive(Clone)]
pub(super) enum Source {
    File(PathBuf),
    Text(String),
}

/// When a file was changed, and which one it is: a replaced file has another number.
type Stamp = Option<(i64, i64, u64)>;

impl Source {
    fn of(setting: Option<&str>) -> Self {
        let setting = setting.unwrap_or_default();
        match is_pem(setting) {
            true => Self::Text(setting.to_owned()),
            false => Self::File(PathBuf::from(setting)),
        }
    }

    fn stamp(&self) -> Stamp {
        let Self::File(path) = self else { return None };
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.mtime(), metadata.mtime_nsec(), metadata.ino()))
    }

    fn read(&self, key: &'static str) -> Result<Vec<u8>, SecurityError> {
        let path = match self {
            Self::Text(text) => return Ok(text.clone().into_bytes()),
            Self::File(path) => path,
        };
        small_file::read(path).map_err(|cause| SecurityError::Read { key, path: path.clone(), cause })
    }

    fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Text(_) => "the given text".to_owned(),
        }
    }
}

/// The three, and what their holder is.
pub(super) struct Files {
    ca: Source,
    certificate: Source,
    key: Source,
    /// What this process is; tools are nothing.
    own: Option<(JobId, Role)>,
}

/// What was read.
pub(super) struct Loaded {
    pub(super) ends: Ends,
    pub(super) own: Certificate,
    stamps: [Stamp; 3],
}

impl Files {
    pub(super) fn new(settings: &SecuritySettings, own: Option<(JobId, Role)>) -> Self {
        let key = settings.key.as_ref().map(|key| key.0.as_str());
        let (ca, certificate) =
            (Source::of(settings.ca.as_deref()), Source::of(settings.certificate.as_deref()));
        Self { ca, certificate, key: Source::of(key), own }
    }

    fn stamps(&self) -> [Stamp; 3] {
        [self.ca.stamp(), self.certificate.stamp(), self.key.stamp()]
    }

    /// Has none of them changed since?
    pub(super) fn are_as(&self, loaded: &Loaded) -> bool {
        self.stamps() == loaded.stamps
    }

    /// Reads and checks them.
    pub(super) fn load(&self) -> Result<Loaded, SecurityError> {
        // Before they are read: what changes meanwhile is read again.
        let stamps = self.stamps();
        let of = |key: &'static str, source: &Source| {
            let (name, pem) = (source.name(), source.read(key)?);
            let all = certificates(&pem).map_err(|error| wrong(key, &name, error))?;
            Ok::<_, SecurityError>((name, all))
        };
        let (name, authorities) = of("security.ca", &self.ca)?;
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(|error| wrong("security.ca", &name, error))?;
        }
        let (name, chain) = of("security.certificate", &self.certificate)?;
        let own = chain.first().map_or(&[][..], |first| first.as_ref());
        let own = Certificate::of(own).map_err(|error| wrong("security.certificate", &name, error))?;
        self.check(&own, &name)?;
        tls::verify(roots.clone(), &chain, now_s())
            .map_err(|error| wrong("security.certificate", &name, own_fault(&error)))?;
        let key_name = self.key.name();
        let key = self.key.read("security.key")?;
        let key = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|error| wrong("security.key", &key_name, format!("not a private key: {error}")))?;
        let ends =
            tls::ends(roots, chain, key).map_err(|error| wrong("security.certificate", &name, error))?;
        Ok(Loaded { ends, own, stamps })
    }

    /// Is it for this process, and for now?
    fn check(&self, own: &Certificate, name: &str) -> Result<(), SecurityError> {
        let refuse = |why: String| Err(wrong("security.certificate", name, why));
        if let Some((job, role)) = self.own
            && let Err(error) = own.identity.permits(job, role)
        {
            let held = error.held;
            return refuse(format!(
                "it is for {held}, but this process is a {role} of job {job}; issue one for it: gradwire certs issue \
                 --job {job} --role {role}"
            ));
        }
        let now_s = now_s();
        if now_s > own.not_after_s {
            let since = match (now_s - own.not_after_s) / 86_400 {
                0 => "less than a day ago".into(),
                1 => "1 day ago".into(),
                days => format!("{days} days ago"),
            };
            return refuse(format!("it expired {since}; issue a new one with `gradwire certs issue`"));
        }
        if now_s < own.not_before_s {
            return refuse("it is not valid yet; check this host's clock".into());
        }
        Ok(())
    }

    /// What is not wrong, but should be known.
    pub(super) fn warnings(&self, loaded: &Loaded) -> Vec<String> {
        let mut warnings = Vec::new();
        let left_s = loaded.own.not_after_s - now_s();
        if left_s < SOON_S {
            let (name, hours) = (self.certificate.name(), left_s / 3600);
            warnings.push(format!(
                "security.certificate {name} expires in {hours} hours; renew it with `gradwire certs issue`"
            ));
        }
        if let Source::File(path) = &self.key
            && is_open(path)
        {
            warnings.push(format!(
                "security.key {0} is readable by all users of this host; run chmod o= {0}",
                path.display()
            ));
        }
        warnings
    }
}

fn is_open(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & OTHERS != 0)
}

fn wrong(key: &'static str, name: &str, why: impl ToString) -> SecurityError {
    SecurityError::Wrong { key, name: name.to_owned(), why: why.to_string() }
}

fn now_s() -> i64 {
    // A clock before 1970 finds every certificate not valid yet.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}
