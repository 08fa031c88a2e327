//! The one door through which the state directory is changed.
//!
//! Invariant: nothing else in `store/` changes a disk, and every function here is a row of [`Change`]s, between any two
//! of which the power may fail. So whoever holds the door can stop it anywhere: `tests/crash.rs` does, at every change.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};

/// One change. What it does to names and content is there at once for whoever looks; it outlives a loss of power only
/// after the file ([`Change::SyncFile`]) and the directory that names it ([`Change::SyncDir`]) were synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// An empty file, where none was (the lock's may have been).
    Create(&'a Path),
    /// What a file holds from now on.
    Write(&'a Path, &'a [u8]),
    /// The mode of a file or directory.
    Mode(&'a Path, u32),
    /// The content of a file becomes durable.
    SyncFile(&'a Path),
    /// The names in a directory become durable.
    SyncDir(&'a Path),
    /// A new directory.
    MakeDir(&'a Path),
    /// A symbolic link, and what it says.
    Link(&'a Path, &'a Path),
    /// Another name, over whatever had it.
    Rename(&'a Path, &'a Path),
    /// Another name, over nothing.
    RenameNew(&'a Path, &'a Path),
    /// Two names change places.
    Exchange(&'a Path, &'a Path),
    /// A file or link is gone.
    RemoveFile(&'a Path),
    /// A directory is gone, with all that is in it: one after the other.
    RemoveTree(&'a Path),
}

/// Whoever holds the door.
pub trait Disk: Send + Sync {
    /// Lets a change be carried out, or fails in its place.
    fn change(&self, change: &Change<'_>, carry_out: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()>;
}

/// The disk of the box: everything is carried out.
pub struct Real;

impl Disk for Real {
    fn change(&self, _change: &Change<'_>, carry_out: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
        carry_out()
    }
}

/// Writes a file that must not be there, to the disk. Its name is durable after [`sync_dir`].
pub(super) fn new_file(disk: &dyn Disk, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let mut file = open(disk, path, &options)?;
    disk.change(&Change::Write(path, bytes), &mut || file.write_all(bytes))?;
    // The umask takes part in `open`; here it does not.
    disk.change(&Change::Mode(path, mode), &mut || file.set_permissions(Permissions::from_mode(mode)))?;
    disk.change(&Change::SyncFile(path), &mut || file.sync_all())
}

/// Opens the lock's file, which is made if need be.
pub(super) fn lock_file(disk: &dyn Disk, path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Not to wait for what a FIFO here would hold.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    options.read(true).write(true).mode(0o600).custom_flags(flags);
    match options.open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => open(disk, path, options.create(true)),
        found => found,
    }
}

/// Says in the lock's file who holds it. It is for people, so it need not outlive anything.
pub(super) fn mark(disk: &dyn Disk, path: &Path, mut file: &File, text: &str) -> io::Result<()> {
    disk.change(&Change::Write(path, text.as_bytes()), &mut || {
        file.set_len(0)?;
        file.write_all(text.as_bytes())
    })
}

fn open(disk: &dyn Disk, path: &Path, options: &OpenOptions) -> io::Result<File> {
    let mut made = None;
    disk.change(&Change::Create(path), &mut || {
        made = Some(options.open(path)?);
        Ok(())
    })?;
    made.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

/// Makes what was done to a directory's names durable.
pub(super) fn sync_dir(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    disk.change(&Change::SyncDir(dir), &mut || File::open(dir).and_then(|dir| dir.sync_all()))
}

/// Makes a directory for this user alone.
pub(super) fn make_dir(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    disk.change(&Change::MakeDir(dir), &mut || DirBuilder::new().mode(0o700).create(dir))
}

/// Sets the mode of a file or directory.
pub(super) fn set_mode(disk: &dyn Disk, path: &Path, mode: u32) -> io::Result<()> {
    disk.change(&Change::Mode(path, mode), &mut || fs::set_permissions(path, Permissions::from_mode(mode)))
}

/// Makes a symbolic link.
pub(super) fn link(disk: &dyn Disk, path: &Path, target: &Path) -> io::Result<()> {
    disk.change(&Change::Link(path, target), &mut || symlink(target, path))
}

/// Renames, over whatever has the name.
pub(super) fn rename(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
    disk.change(&Change::Rename(from, to), &mut || fs::rename(from, to))
}

/// Renames, over nothing.
pub(super) fn rename_new(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
    disk.change(&Change::RenameNew(from, to), &mut || with_flags(from, to, RenameFlags::NOREPLACE))
}

/// Lets two names change places.
pub(super) fn exchange(disk: &dyn Disk, one: &Path, other: &Path) -> io::Result<()> {
    disk.change(&Change::Exchange(one, other), &mut || with_flags(one, other, RenameFlags::EXCHANGE))
}

fn with_flags(from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
    Ok(renameat_with(CWD, from, CWD, to, flags)?)
}

/// Removes a file or link.
pub(super) fn remove_file(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    disk.change(&Change::RemoveFile(path), &mut || fs::remove_file(path))
}

/// Removes a directory with all that is in it. The library's function follows no link, whoever may put one there
/// meanwhile: a container may write where a release is mounted.
pub(super) fn remove_tree(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    disk.change(&Change::RemoveTree(path), &mut || fs::remove_dir_all(path))
}
