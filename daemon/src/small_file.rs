//! Files that people and settings name and that are read whole: settings, certificates, keys. Nobody waits for a pipe that is
//! named by mistake, or reads a device that never ends. It must not know what is in them.

use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Bytes of such a file.
pub const BYTES_MAX: u64 = 1 << 20;
/// Stands for an empty file: no settings at all.
const NOTHING: &str = "/dev/null";

/// All of it, where it is a file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe would keep who opens it until somebody writes.
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    let mut bytes = Vec::new();
    if path == Path::new(NOTHING) {
        return Ok(bytes);
    }
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file: it is a directory, a pipe or a device"));
    }
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::other("the file is larger than 1 MiB; is it the right file?"));
    }
    Ok(bytes)
}

/// The same as text.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_up_to_the_bound() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x");
        let most = vec![b'x'; BYTES_MAX as usize];
        std::fs::write(&file, &most).unwrap();
        assert_eq!(read(&file).unwrap(), most);
        std::fs::write(&file, [&most[..], b"x"].concat()).unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("larger than 1 MiB"));
        std::fs::write(&file, [0xFF]).unwrap();
        assert_eq!(read_text(&file).unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(read(&file).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_never_ends_or_never_begins_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for path in [&pipe, Path::new("/dev/zero"), directory.path()] {
            assert!(read(path).unwrap_err().to_string().contains("not a regular file"), "{}", path.display());
        }
        assert_eq!(read_text(Path::new("/dev/null")).unwrap(), "", "no settings");
    }
}
