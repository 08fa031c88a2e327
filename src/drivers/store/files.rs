//! Files that are whole: temp, fsync, rename, fsync of the directory.
//!
//! Invariant: after a failure or a crash at any point the old file or the new one is there, and what else may be left
//! is a name that starts with [`TEMP`], which the next tick sweeps away.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::disk::{self, Disk};
use crate::effects::Stamp;
use crate::plain;

/// How the name of a file that is not finished starts.
pub(super) const TEMP: &str = ".tmp-";

/// What was being done to which path when the system said no.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {path}: {source}", path = path.display())]
pub struct Fail {
    /// E.g. `write`.
    pub doing: &'static str,
    /// To this.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

impl Fail {
    /// Whether space or quota ran out.
    pub fn disk_full(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

/// Says what an error happened to.
pub(super) trait Doing<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, Fail>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, Fail> {
        self.map_err(|source| Fail { doing, path: path.to_owned(), source: source.into() })
    }
}

/// A refusal of ours, in the same form as the system's.
pub(super) fn refuse<T>(doing: &'static str, path: &Path, why: &str) -> Result<T, Fail> {
    Err(io::Error::new(io::ErrorKind::InvalidInput, why.to_owned())).doing(doing, path)
}

/// Makes what was done to a directory's names durable.
pub(super) fn sync_dir(disk: &dyn Disk, dir: &Path) -> Result<(), Fail> {
    disk::sync_dir(disk, dir).doing("sync", dir)
}

/// Writes `dir/name` whole, mode 0600. Only the holder of the lock writes, so the temporary name is nobody else's.
pub(super) fn write(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), Fail> {
    let (path, temp) = (dir.join(name), dir.join(format!("{TEMP}{name}")));
    remove_any(disk, &temp)?;
    let written = disk::new_file(disk, &temp, bytes, 0o600).and_then(|()| disk::rename(disk, &temp, &path));
    if written.is_err() {
        // Half of a secret is a secret too. If this fails as well, the next tick sweeps.
        let _ = remove_any(disk, &temp);
    }
    written.doing("write", &path)?;
    sync_dir(disk, dir)
}

/// Writes a file of a folder that nobody else knows yet; it must not be there.
pub(super) fn write_new(disk: &dyn Disk, path: &Path, bytes: &[u8], mode: u32) -> Result<(), Fail> {
    disk::new_file(disk, path, bytes, mode).doing("write", path)
}

/// The content of a file of at most `max` bytes; none if there is none. Links are not followed, and what is no file (a
/// pipe, a device) is not read.
pub(super) fn read(path: &Path, max: u64) -> Result<Option<Vec<u8>>, Fail> {
    match plain::open_here(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.and_then(|file| plain::content(file, max)).map(Some).doing("read", path),
    }
}

/// Removes a file, durably; one that is not there is fine.
pub(super) fn remove(disk: &dyn Disk, dir: &Path, name: &str) -> Result<(), Fail> {
    let path = dir.join(name);
    match disk::remove_file(disk, &path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        done => done.doing("remove", &path)?,
    }
    sync_dir(disk, dir)
}

/// Removes whatever is there, a link itself and not what it points to; nothing there is fine.
pub(super) fn remove_any(disk: &dyn Disk, path: &Path) -> Result<(), Fail> {
    let gone = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => disk::remove_tree(disk, path),
        Ok(_) => disk::remove_file(disk, path),
        Err(e) => Err(e),
    };
    match gone {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        gone => gone.doing("remove", path),
    }
}

/// Moves a file that cannot be used to `NAME.corrupt-<seconds>`, over nothing else; gives the new name.
pub(super) fn set_aside(disk: &dyn Disk, dir: &Path, name: &str, now: Stamp) -> Result<String, Fail> {
    let from = dir.join(name);
    for attempt in 0..1000 {
        let more = if attempt == 0 { String::new() } else { format!(".{attempt}") };
        let aside = format!("{name}.corrupt-{}{more}", now.0.div_euclid(1000));
        let to = dir.join(&aside);
        let moved = match disk::rename_new(disk, &from, &to) {
            // Some network file systems know no flags. Only this process moves files here: looking first is enough.
            Err(e) if unsupported(&e) && fs::symlink_metadata(&to).is_err() => disk::rename(disk, &from, &to),
            Err(e) if unsupported(&e) => continue,
            moved => moved,
        };
        match moved {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            moved => {
                moved.doing("set aside", &from)?;
                return sync_dir(disk, dir).map(|()| aside);
            }
        }
    }
    refuse("set aside", &from, "a thousand files of this name and second are there already")
}

/// Whether a file system does not know a flag of `renameat2`.
pub(super) fn unsupported(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

/// Makes a directory for this user alone, durably. One that is there is tightened if it is ours; gives a note when it
/// was wider.
pub(super) fn private_dir(disk: &dyn Disk, dir: &Path) -> Result<Option<String>, Fail> {
    match fs::metadata(dir) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(io::Error::from(io::ErrorKind::NotADirectory)).doing("use", dir),
        Err(e) if e.kind() == io::ErrorKind::NotFound => match disk::make_dir(disk, dir) {
            // Another tick may have been faster.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                made.doing("make the directory", dir)?;
                // What is kept in it is as durable as its name. Above the state directory we may not be allowed to look.
                let _ = dir.parent().map(|above| disk::sync_dir(disk, above));
            }
        },
        Err(e) => return Err(e).doing("look at", dir),
    }
    tighten(disk, dir, 0o700)
}

/// Takes a file or directory of this user's away from all others, and gives it back to this user; with a note of what
/// was wrong.
pub(super) fn tighten(disk: &dyn Disk, path: &Path, mode: u32) -> Result<Option<String>, Fail> {
    let found = fs::metadata(path).doing("look at", path)?;
    let was = found.mode() & 0o7777;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    let (open, shut) = (was & 0o077 != 0, own && was & mode != mode);
    if !open && !shut {
        return Ok(None);
    }
    let shown = path.display();
    if !own {
        return Ok(Some(format!("{shown} belongs to uid {} and has mode {was:04o}; make it {mode:04o}", found.uid())));
    }
    disk::set_mode(disk, path, mode).doing("tighten", path)?;
    let how = if open { "open to others" } else { "closed to its own user" };
    Ok(Some(format!("{shown} had mode {was:04o}, {how}; it is {mode:04o} now")))
}

/// The names in a directory, in order; those that are not UTF-8 are not ours and left out. No directory: no names, also
/// if something else is there, which [`super::misfits`] tells.
pub(super) fn names(dir: &Path) -> Result<Vec<String>, Fail> {
    let found = match fs::read_dir(dir) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(Vec::new()),
        found => found.doing("list", dir)?,
    };
    let mut names = Vec::new();
    for entry in found {
        names.extend(entry.doing("list", dir)?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// Removes what a dead tick left unfinished in a directory: the names that `unfinished` knows. What cannot be removed is
/// told and passed over, for it is in nobody's way. Only for the holder of the lock.
pub(super) fn sweep(disk: &dyn Disk, dir: &Path, unfinished: impl Fn(&str) -> bool) -> Vec<Fail> {
    let names = match names(dir) {
        Ok(names) => names,
        Err(fail) => return vec![fail],
    };
    let unfinished = names.iter().filter(|name| unfinished(name));
    unfinished.filter_map(|name| remove_any(disk, &dir.join(name)).err()).collect()
}

/// A name that nothing has: this one, cleared, or one like it if what has it cannot be removed.
pub(super) fn free_name(disk: &dyn Disk, path: &Path) -> Result<PathBuf, Fail> {
    let mut last = match remove_any(disk, path) {
        Ok(()) => return Ok(path.to_owned()),
        Err(fail) => fail,
    };
    for n in 1..100 {
        let mut other = path.as_os_str().to_owned();
        other.push(format!(".{n}"));
        match remove_any(disk, Path::new(&other)) {
            Ok(()) => return Ok(other.into()),
            Err(fail) => last = fail,
        }
    }
    Err(last)
}
