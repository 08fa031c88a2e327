//! Files that are read by a name which somebody else may have put there: the configuration, a CA, a recording.
//!
//! Invariant: opening never waits. A FIFO would, for whoever writes into it, and a signal ends no such wait: what is no
//! regular file is refused.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Opens a regular file, or a link to one, to read it.
///
/// # Errors
/// The system's, and a refusal that completes "cannot be read: ".
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OFlags::NONBLOCK)
}

/// The same, and no link is followed.
///
/// # Errors
/// As [`open`].
pub fn open_here(path: &Path) -> io::Result<File> {
    open_with(path, OFlags::NONBLOCK | OFlags::NOFOLLOW)
}

/// What a regular file holds, of at most `max` bytes.
///
/// # Errors
/// As [`open`], and `FileTooLarge`.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    content(open(path)?, max)
}

/// What an open file holds, of at most `max` bytes.
///
/// # Errors
/// The system's, and `FileTooLarge`.
pub fn content(file: File, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {max} bytes")));
    }
    Ok(bytes)
}

fn open_with(path: &Path, flags: OFlags) -> io::Result<File> {
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let found = match &opened {
        Ok(file) => file.metadata()?.file_type(),
        // A socket cannot even be opened; the system has no good word for it.
        Err(_) => match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => found.file_type(),
            _ => return opened,
        },
    };
    match found {
        found if found.is_file() => opened,
        found if found.is_dir() => Err(Errno::ISDIR.into()),
        found => Err(refusal(found)),
    }
}

/// A thing of a kind that is not read.
pub fn refusal(found: FileType) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is {}, and no file", kind(found)))
}

/// What something is, in words.
pub fn kind(found: FileType) -> &'static str {
    match found {
        found if found.is_file() => "a file",
        found if found.is_dir() => "a directory",
        found if found.is_symlink() => "a link",
        found if found.is_fifo() => "a FIFO (a named pipe)",
        found if found.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_is_no_file_is_refused_at_once_and_told_as_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        fs::write(at("file"), "12345").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        let said = |name: &str| open(&at(name)).unwrap_err().to_string();
        assert_eq!(said("fifo"), "it is a FIFO (a named pipe), and no file");
        assert_eq!(said("socket"), "it is a socket, and no file");
        assert_eq!(open(Path::new("/dev/null")).unwrap_err().to_string(), "it is a device, and no file");
        assert_eq!(open(dir.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(open(&at("nothing")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(read(&at("link"), 5).unwrap(), b"12345");
        assert_eq!(read(&at("file"), 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert!(open_here(&at("link")).is_err() && open_here(&at("file")).is_ok());
    }
}
