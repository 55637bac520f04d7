//! Writing what `gradwire certs` makes: whole files, that take the places of others without changing who can read what lies there,
//! and lists of authorities that lose none. It must not make certificates.

use anyhow::Context as _;
use daemon::exit::{Failure, WithCode as _};
use daemon::security::{Certificate, NotACertificate};
use daemon::small_file;
use proto_common::error::ExitCode;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::{Path, PathBuf};

/// Who may read what is secret.
pub(super) const OWNER_ONLY: u32 = 0o600;
pub(super) const EVERYBODY: u32 = 0o644;
/// Bits of a file's mode that say who may do what.
const PERMISSIONS: u32 = 0o777;

pub(super) fn make(directory: &Path, mode: u32) -> Result<(), Failure> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(directory)
        .with_context(|| format!("cannot create the directory {}", directory.display()))
        .code(ExitCode::Io)
}

/// A whole file. In place of another one it has that one's owner, group and mode: daemons that read a key by their group read
/// the renewed one as well. Where there is none, it has `mode`.
pub(super) fn put(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let mut next = path.as_os_str().to_owned();
    next.push(format!(".{}", std::process::id()));
    let next = PathBuf::from(next);
    write(&next, path, text, mode).inspect_err(|_| {
        // What is left of it is of no use.
        let _ = fs::remove_file(&next);
    })
}

fn write(next: &Path, path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let cannot = || format!("cannot write {}", path.display());
    let before = match fs::metadata(path) {
        Ok(before) => Some(before),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(cannot).code(ExitCode::Io),
    };
    // Until its group is right nobody else reads it.
    let first = if before.is_some() { OWNER_ONLY } else { mode };
    let opened = OpenOptions::new().write(true).create_new(true).mode(first).open(next);
    let mut file = opened.with_context(cannot).code(ExitCode::Io)?;
    if let Some(before) = before {
        let (user, group) = (before.uid(), before.gid());
        let fix = || {
            format!(
                "{} is user {user}'s and group {group}'s, and its renewal cannot be given to them; it is left as it is: run this \
                 as root, or give another --out and copy the files",
                path.display()
            )
        };
        give(&file, &before).with_context(fix).code(ExitCode::Io)?;
    }
    let mut fill = || {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(next, path)
    };
    fill().with_context(cannot).code(ExitCode::Io)
}

/// To the owner and the group of another file, with its mode.
fn give(file: &File, like: &Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (like.uid(), like.gid()) {
        fchown(file, Some(like.uid()), Some(like.gid()))?;
    }
    file.set_permissions(Permissions::from_mode(like.mode() & PERMISSIONS))
}

/// Has this authority trusted, beside those that are trusted there already: while one takes the place of another, both are. What
/// is to be said of it, if anything.
pub(super) fn trust(path: &Path, authority: &str) -> Result<Option<String>, Failure> {
    let name = path.display();
    let there = match small_file::read_text(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return put(path, authority, EVERYBODY).map(|()| None);
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {name}")).code(ExitCode::Io),
    };
    let known = fingerprints(&there)
        .with_context(|| format!("{name} is there, and is no list of authorities; remove it"))
        .code(ExitCode::BadData)?;
    let own = fingerprints(authority).code(ExitCode::BadData)?;
    if own.iter().all(|own| known.contains(own)) {
        return Ok(None);
    }
    put(path, &format!("{}\n{authority}", there.trim_end()), EVERYBODY)?;
    Ok(Some(format!(
        "{name} trusts this authority and those that were there before: take them out when nobody shows a certificate of theirs \
         any more"
    )))
}

fn fingerprints(pem: &str) -> Result<Vec<String>, NotACertificate> {
    Ok(Certificate::all_of_pem(pem.as_bytes())?.into_iter().map(|one| one.fingerprint).collect())
}
