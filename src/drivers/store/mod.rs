//! The state directory: everything that the agent keeps on the box.
//!
//! Invariants: whoever writes holds the kernel lock on `lock`; every file is a whole old or a whole new one; what
//! cannot be read as what it should be is set aside, told, and never in the way of the next tick. Values of secrets
//! go from here to the vault and back, and nowhere else.

pub mod disk;
mod files;
mod releases;

use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::vault::{Secret, Slot, Vault, Wiped};
use crate::effects::local::{GrantFacts, LocalFacts};
use crate::effects::report::Report;
use crate::effects::state::{State, TokenSource};
use crate::effects::{GrantName, Lease, Scrubbed, Stamp, StoreFault};
use crate::plain;
use disk::{Disk, Real};
pub use files::Fail;
use files::{Doing, refuse};
pub use releases::{ENV, OVERRIDE};

const LOCK: &str = "lock";
const STATE: &str = "state.json";
const TOKEN: &str = "token.json";
const GRANT: &str = "grant.json";
const BOOTSTRAP: &str = "bootstrap.jwt";
const OUTBOX: &str = "outbox";
const DOCKER: &str = "docker";
const RECORDINGS: &str = "recordings";
const CURRENT: &str = "current";
const NEXT: &str = "next";
/// The folders of the state directory, which a tick makes.
pub const FOLDERS: [&str; 4] = ["releases", OUTBOX, DOCKER, RECORDINGS];
/// The files of the state directory that are read at the start, and set aside if they are corrupt.
pub const SET_ASIDE: [&str; 4] = [STATE, TOKEN, GRANT, BOOTSTRAP];

/// The largest file that is read as state or report (bytes).
const MAX_FILE: u64 = 16 * 1024 * 1024;
/// The largest file that is read as a token or grant (bytes).
const MAX_SECRET: u64 = 256 * 1024;

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another tick is at work.
    #[error("another tick holds the lock of {dir}{}", by.map(|pid| format!(" (process {pid})")).unwrap_or_default(), dir = dir.display())]
    Locked {
        /// Which state directory.
        dir: PathBuf,
        /// Which process, as it wrote into the lock file: for people, it may be wrong.
        by: Option<u32>,
    },
    /// The system said no.
    #[error("{0} -> look at the owner, mode and mount of the state directory")]
    System(#[from] Fail),
}

/// What was found at the start.
#[derive(Debug)]
pub struct Loaded {
    /// `state.json`, or a new one.
    pub state: State,
    /// What else is there.
    pub local: LocalFacts,
    /// What a person should know: what was set aside, tightened or ignored.
    pub notes: Vec<String>,
}

/// Reads a file's content, or says why it is not what it should be.
type Parse<T> = fn(&[u8]) -> Result<T, String>;

/// The state directory.
pub struct Store {
    dir: PathBuf,
    vault: Arc<Vault>,
    disk: Arc<dyn Disk>,
    notes: Vec<String>,
    /// Held until the store is dropped; none: only for reading. Children don't get it (CLOEXEC).
    lock: Option<File>,
}

/// `token.json`.
#[derive(Serialize, Deserialize)]
struct TokenFile {
    client_token: Zeroizing<String>,
    #[serde(default)]
    accessor: Option<String>,
    source: TokenSource,
    saved_at: Stamp,
}

/// `grant.json`.
#[derive(Serialize, Deserialize)]
struct GrantFile {
    grant: Zeroizing<String>,
    lease_id: String,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    expires_at: Option<Stamp>,
}

/// By these a state directory is known.
const MARKS: [&str; 4] = [LOCK, STATE, TOKEN, BOOTSTRAP];

/// A directory that is another user's, or that holds something else, is left as it is: a mistyped `state_dir` must not
/// cost anybody's files, and a tick as the wrong user must not leave files that the right one cannot read.
fn ours(dir: &Path) -> Result<(), Fail> {
    let Ok(found) = fs::metadata(dir) else { return Ok(()) };
    let (owner, user) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        let why = format!("it belongs to uid {owner}, and this is uid {user}: run the agent as its user");
        return refuse("use", dir, &why);
    }
    let names = if found.is_dir() { files::names(dir)? } else { Vec::new() };
    let known = names.iter().any(|name| MARKS.contains(&name.as_str()));
    if !known && names.iter().any(|name| name != "lost+found") {
        return refuse("use", dir, "it is not empty, and no state directory of this agent: name another `state_dir`");
    }
    Ok(())
}

/// What a name of the state directory has to be for a tick to do its work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    File,
    Folder,
    /// Anything that can be replaced by one rename.
    NoFolder,
}

/// Every name that a tick does not put right by itself, and what has to be there if anything is. What holds state, a
/// token, a grant or a report is not among them: it is set aside.
const NEEDS: [(&str, Needs); 8] = [
    (LOCK, Needs::File),
    ("releases", Needs::Folder),
    (OUTBOX, Needs::Folder),
    (DOCKER, Needs::Folder),
    (RECORDINGS, Needs::Folder),
    (CURRENT, Needs::NoFolder),
    (NEXT, Needs::NoFolder),
    ("docker/config.json", Needs::NoFolder),
];

/// Something of the wrong kind in the state directory: every tick fails until somebody moves it away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Where.
    pub path: PathBuf,
    /// What it is, and what is needed there: completes the sentence that begins with the path.
    pub why: String,
}

impl Misfit {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        let at = self.path.display();
        format!("sudo mv {at} {at}.aside")
    }
}

/// Everything of the wrong kind among the names that a tick uses. Only looks.
pub fn misfits(dir: &Path) -> Vec<Misfit> {
    let look = |(name, needs): &(&str, Needs)| {
        let path = dir.join(name);
        let found = fs::symlink_metadata(&path).ok()?.file_type();
        let (fits, needed) = match needs {
            Needs::File => (found.is_file(), "a file"),
            // A link to one is as good.
            Needs::Folder => (path.is_dir(), "a directory"),
            Needs::NoFolder => (!found.is_dir(), if [CURRENT, NEXT].contains(name) { "a link" } else { "a file" }),
        };
        let is = if found.is_symlink() && !path.exists() { "a link to nothing" } else { plain::kind(found) };
        (!fits).then(|| Misfit { why: format!("is {is}, and the agent needs {needed} there"), path })
    };
    NEEDS.iter().filter_map(look).collect()
}

/// Whether nothing ever ran here: what a tick leaves is not there.
pub fn is_new(dir: &Path) -> bool {
    [LOCK, STATE, TOKEN].iter().all(|name| fs::symlink_metadata(dir.join(name)).is_err())
}

/// What was set aside and lies there still, with what was lost by it; in order.
pub fn set_aside(dir: &Path) -> Vec<(PathBuf, &'static str)> {
    let lost = |name: &str| match name.split_once(".corrupt-")? {
        (STATE, _) => Some("what was applied and tried: what is desired was deployed again"),
        (TOKEN, _) => Some("the saved token: the agent logged in again, or has to"),
        (GRANT, _) => Some("a grant that may have lived: the agent asked for another one, or has to"),
        (BOOTSTRAP, _) => Some("the bootstrap grant: without a token, ask tenancy for a new one"),
        _ => None,
    };
    let mut all = Vec::new();
    for name in files::names(dir).unwrap_or_default() {
        all.extend(lost(&name).map(|lost| (dir.join(&name), lost)));
    }
    for name in files::names(&dir.join(OUTBOX)).unwrap_or_default() {
        if name.contains(".corrupt-") {
            all.push((dir.join(OUTBOX).join(name), "a report: tenancy does not get it"));
        }
    }
    all
}

/// Room for a token, a grant, a report, and the small files of a release.
const ROOM: u64 = 64 << 10;
/// So many new files a tick writes at least.
const ROOM_FILES: u64 = 8;

/// No room is left where the state is kept for what a tick has to write down: then nothing is begun that it would forget.
fn is_full(dir: &Path) -> bool {
    // The state is written beside the old one, several times.
    let needed = ROOM + 2 * fs::metadata(dir.join(STATE)).map_or(0, |state| state.len());
    rustix::fs::statvfs(dir).is_ok_and(|disk| {
        let bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        (disk.f_blocks > 0 && bytes < needed) || (disk.f_files > 0 && disk.f_favail < ROOM_FILES)
    })
}

impl Drop for Store {
    fn drop(&mut self) {
        // Closing is not enough: a child that another thread is just starting holds the lock until it runs its program.
        let _ = self.lock.as_ref().map(File::unlock);
    }
}

impl Store {
    /// Opens the state directory for a tick: makes it and its folders if need be, takes the lock, and sweeps away what
    /// a tick that died had not finished. Its parent must be there.
    pub fn open(dir: &Path, vault: Arc<Vault>) -> Result<Store, StoreError> {
        Store::open_on(Arc::new(Real), dir, vault)
    }

    /// The same on a disk that somebody else holds the door of.
    pub fn open_on(disk: Arc<dyn Disk>, dir: &Path, vault: Arc<Vault>) -> Result<Store, StoreError> {
        let mut notes = Vec::new();
        ours(dir)?;
        notes.extend(files::private_dir(&*disk, dir)?);
        // A lock that this user closed to itself would keep it out for ever.
        if fs::symlink_metadata(dir.join(LOCK)).is_ok_and(|found| found.is_file() && closed_to_its_owner(&found)) {
            notes.extend(files::tighten(&*disk, &dir.join(LOCK), 0o600)?);
        }
        let lock = lock(&*disk, dir)?;
        for folder in FOLDERS {
            notes.extend(files::private_dir(&*disk, &dir.join(folder))?);
        }
        let mut store = Store { dir: dir.to_owned(), vault, disk, notes, lock: Some(lock) };
        // A container that runs as root may have left in a release what this user cannot remove: no reason to stop.
        let left = store.sweep().into_iter().map(|fail| format!("{fail}; it is in nobody's way: sudo rm -rf it"));
        store.notes.extend(left);
        store.close_plugins()?;
        Ok(store)
    }

    /// Opens the state directory to look at it: without the lock, and nothing is made, moved or removed. A directory
    /// that is not there is an empty one.
    pub fn open_read_only(dir: &Path, vault: Arc<Vault>) -> Store {
        Store { dir: dir.to_owned(), vault, disk: Arc::new(Real), notes: Vec::new(), lock: None }
    }

    fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// The state directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder for `DOCKER_CONFIG`.
    pub fn docker_config_dir(&self) -> PathBuf {
        self.dir.join(DOCKER)
    }

    /// Reads everything; secrets go to the vault. What is corrupt is set aside under the time `now` (when only
    /// looking: ignored), with a note.
    pub fn load_state(&self, now: Stamp) -> Result<Loaded, StoreError> {
        let mut notes = self.notes.clone();
        self.close(&mut notes)?;
        let state = self.load(&self.dir, STATE, MAX_FILE, now, &mut notes, read_state)?.unwrap_or_default();
        let local = LocalFacts {
            token: self.load_secret(TOKEN, Slot::SavedToken, now, &mut notes, |bytes| {
                let file: TokenFile = json(bytes)?;
                Ok((value(&file.client_token)?, file.source))
            })?,
            grant: self.load_secret(GRANT, Slot::LeaseGrant, now, &mut notes, |bytes| {
                let file: GrantFile = json(bytes)?;
                Ok((value(&file.grant)?, GrantFacts { expires_at: file.expires_at, role: file.role }))
            })?,
            bootstrap: self
                .load_secret(BOOTSTRAP, Slot::BootstrapGrant, now, &mut notes, |bytes| {
                    Ok((value(std::str::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?)?, ()))
                })?
                .is_some(),
            releases: self.complete()?,
            current: self.current(),
            outbox: self.outbox(now, &mut notes)?,
            disk_full: is_full(&self.dir),
        };
        Ok(Loaded { state, local, notes })
    }

    /// Reads a file with a secret into the vault; what else is known of it comes back.
    fn load_secret<T>(
        &self,
        name: &str,
        slot: Slot,
        now: Stamp,
        notes: &mut Vec<String>,
        parse: Parse<(Secret, T)>,
    ) -> Result<Option<T>, Fail> {
        Ok(self.load(&self.dir, name, MAX_SECRET, now, notes, parse)?.map(|(secret, facts)| {
            self.vault.put(slot, secret);
            facts
        }))
    }

    /// Writes `state.json`.
    pub fn save_state(&self, state: &State) -> Result<(), StoreFault> {
        self.writing(|| self.write_json(&self.dir, STATE, state))
    }

    /// Writes the vault's candidate to `token.json`; it is the saved token then, and the one before it the replaced.
    pub fn save_token(&self, source: TokenSource, accessor: Option<&str>, now: Stamp) -> Result<(), StoreFault> {
        self.writing(|| {
            let file = self.vault.with(&Slot::Candidate, |token| TokenFile {
                client_token: Zeroizing::new(token.to_owned()),
                accessor: accessor.map(str::to_owned),
                source,
                saved_at: now,
            });
            let Some(file) = file else { return refuse("write", &self.dir.join(TOKEN), "there is no new token") };
            self.write_json(&self.dir, TOKEN, &file)?;
            self.vault.candidate_was_saved();
            Ok(())
        })
    }

    /// Writes the vault's leased grant to `grant.json`.
    pub fn save_grant(&self, lease: &Lease) -> Result<(), StoreFault> {
        self.writing(|| {
            let file = self.vault.with(&Slot::LeaseGrant, |grant| GrantFile {
                grant: Zeroizing::new(grant.to_owned()),
                lease_id: lease.lease_id.clone(),
                role: lease.role.clone(),
                expires_at: lease.expires_at,
            });
            let Some(file) = file else { return refuse("write", &self.dir.join(GRANT), "there is no new grant") };
            self.write_json(&self.dir, GRANT, &file)
        })
    }

    /// Forgets a grant, on disk and in the vault.
    pub fn drop_grant(&self, grant: GrantName) -> Result<(), StoreFault> {
        let (name, slot) = match grant {
            GrantName::Bootstrap => (BOOTSTRAP, Slot::BootstrapGrant),
            GrantName::Lease => (GRANT, Slot::LeaseGrant),
        };
        self.writing(|| {
            files::remove(self.disk(), &self.dir, name)?;
            drop(self.vault.take(&slot));
            Ok(())
        })
    }

    /// Stores the one-time bootstrap grant, trimmed. It must be one printable word.
    pub fn save_bootstrap(&self, text: &str) -> Result<(), StoreFault> {
        self.writing(|| match value(text) {
            Err(why) => refuse("write", &self.dir.join(BOOTSTRAP), &format!("the grant is {why}")),
            Ok(secret) => {
                files::write(self.disk(), &self.dir, BOOTSTRAP, secret.expose().as_bytes())?;
                self.vault.put(Slot::BootstrapGrant, secret);
                Ok(())
            }
        })
    }

    /// Puts a report into the outbox.
    pub fn save_report(&self, report: &Report) -> Result<(), StoreFault> {
        self.writing(|| self.write_json(&self.dir.join(OUTBOX), &report_name(&report.report_id)?, report))
    }

    /// Takes a report out of the outbox; one that is not there is fine.
    pub fn drop_report(&self, report_id: &str) -> Result<(), StoreFault> {
        self.writing(|| {
            let name = report_name(report_id)?;
            files::remove(self.disk(), &self.dir.join(OUTBOX), &name)
        })
    }

    /// A report of the outbox; none if it is not there (or corrupt, which the next start sets aside).
    pub fn load_report(&self, report_id: &str) -> Result<Option<Report>, StoreFault> {
        self.fallible(|| {
            let bytes = files::read(&self.dir.join(OUTBOX).join(report_name(report_id)?), MAX_FILE)?;
            Ok(bytes.and_then(|bytes| json(&bytes).ok()))
        })
    }

    /// Writes `docker/config.json`. Docker runs what lies in `cli-plugins` beside it, so nothing may.
    pub fn write_docker_config(&self, text: &str) -> Result<(), StoreFault> {
        self.writing(|| {
            self.close_plugins()?;
            files::write(self.disk(), &self.docker_config_dir(), "config.json", text.as_bytes())
        })
    }

    /// Keeps a recording; of all recordings only the last `keep` by name stay, so names start with a time.
    pub fn save_recording(&self, name: &str, bytes: &[u8], keep: usize) -> Result<(), StoreFault> {
        let dir = self.dir.join(RECORDINGS);
        self.writing(|| {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            if name.is_empty() || name.starts_with('.') || !name.chars().all(fits) {
                return refuse("write", &dir.join(name), "no name for a recording");
            }
            files::write(self.disk(), &dir, name, bytes)?;
            let mut names = files::names(&dir)?;
            names.retain(|name| !name.starts_with('.'));
            let old = names.len().saturating_sub(keep.max(1));
            names.iter().take(old).try_for_each(|name| files::remove_any(self.disk(), &dir.join(name)))
        })
    }

    /// Removes a recording; one that is not there is fine.
    pub fn drop_recording(&self, name: &str) -> Result<(), StoreFault> {
        self.writing(|| files::remove(self.disk(), &self.dir.join(RECORDINGS), name))
    }

    /// The recordings that are kept, oldest first.
    pub fn recordings(&self) -> Result<Vec<PathBuf>, StoreError> {
        let dir = self.dir.join(RECORDINGS);
        let names = files::names(&dir)?;
        Ok(names.iter().filter(|name| !name.starts_with('.')).map(|name| dir.join(name)).collect())
    }

    /// Runs something that may fail, and tells it in the machine's words.
    fn fallible<T>(&self, run: impl FnOnce() -> Result<T, Fail>) -> Result<T, StoreFault> {
        run().map_err(|fail| StoreFault {
            disk_full: fail.disk_full(),
            detail: Scrubbed::new(self.vault.as_ref(), &fail.to_string()),
        })
    }

    /// Runs something that writes, which only the holder of the lock may.
    fn writing<T>(&self, run: impl FnOnce() -> Result<T, Fail>) -> Result<T, StoreFault> {
        self.fallible(|| match self.lock {
            Some(_) => run(),
            None => refuse("write", &self.dir, "the state directory was opened to look at it only"),
        })
    }

    fn write_json(&self, dir: &Path, name: &str, content: &impl Serialize) -> Result<(), Fail> {
        let text = Wiped::json(content, true).map_err(io::Error::from).doing("write", &dir.join(name))?;
        files::write(self.disk(), dir, name, &text)
    }

    /// Reads a file as what it should be. What is none is set aside.
    fn load<T>(
        &self,
        dir: &Path,
        name: &str,
        max: u64,
        now: Stamp,
        notes: &mut Vec<String>,
        parse: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<Option<T>, Fail> {
        let corrupt = match files::read(&dir.join(name), max) {
            Ok(None) => return Ok(None),
            Ok(Some(bytes)) => match parse(&Zeroizing::new(bytes)) {
                Ok(content) => return Ok(Some(content)),
                Err(why) => why,
            },
            // A folder, a link or a monster where the file should be is as corrupt as nonsense in it.
            Err(fail) => match fs::symlink_metadata(dir.join(name)) {
                Ok(found) if !found.is_file() => format!("{}, and no file", plain::kind(found.file_type())),
                // The next tick gives its own files back to itself.
                Ok(found) if self.lock.is_none() && closed_to_its_owner(&found) => {
                    let shown = dir.join(name).display().to_string();
                    notes.push(format!(
                        "{shown} has mode {:04o}; the next tick makes it readable",
                        found.mode() & 0o7777
                    ));
                    return Ok(None);
                }
                _ if fail.source.kind() == io::ErrorKind::FileTooLarge => fail.source.to_string(),
                _ => return Err(fail),
            },
        };
        let shown = dir.join(name).display().to_string();
        if self.lock.is_none() {
            notes.push(format!("{shown} is {corrupt}; the next tick sets it aside"));
        } else {
            let aside = files::set_aside(self.disk(), dir, name, now)?;
            notes.push(format!("{shown} is {corrupt}: set aside as {aside}, going on without it"));
        }
        Ok(None)
    }

    /// Takes every file that is nobody else's business away from others, and gives it back to this user. Content of releases is theirs who mount it.
    fn close(&self, notes: &mut Vec<String>) -> Result<(), Fail> {
        if self.lock.is_none() {
            return Ok(());
        }
        let mut paths: Vec<PathBuf> =
            [LOCK, STATE, TOKEN, GRANT, BOOTSTRAP].iter().map(|name| self.dir.join(name)).collect();
        for folder in [OUTBOX, DOCKER, RECORDINGS] {
            let folder = self.dir.join(folder);
            paths.extend(files::names(&folder)?.iter().map(|name| folder.join(name)));
        }
        for sha in self.staged()? {
            paths.extend([ENV, OVERRIDE].iter().map(|name| self.release_dir(&sha).join(name)));
        }
        for path in paths.iter().filter(|path| fs::symlink_metadata(path).is_ok_and(|found| found.is_file())) {
            notes.extend(files::tighten(self.disk(), path, 0o600)?);
        }
        Ok(())
    }

    fn outbox(&self, now: Stamp, notes: &mut Vec<String>) -> Result<Vec<String>, Fail> {
        let dir = self.dir.join(OUTBOX);
        let mut waiting = Vec::new();
        for name in files::names(&dir)? {
            let Some(id) = name.strip_suffix(".json").filter(|id| !id.starts_with('.')) else { continue };
            let report = self.load(&dir, &name, MAX_FILE, now, notes, |bytes| {
                let report: Report = json(bytes)?;
                let named = report_name(&report.report_id).is_ok() && report.report_id == id;
                if named { Ok(report) } else { Err("a report with another id than its name".to_owned()) }
            })?;
            waiting.extend(report.map(|report| (report.at, report.report_id)));
        }
        waiting.sort();
        Ok(waiting.into_iter().map(|(_, id)| id).collect())
    }

    /// Removes what dead ticks left unfinished; gives what could not be removed.
    fn sweep(&self) -> Vec<Fail> {
        let temp = |name: &str| name.starts_with(files::TEMP);
        // In a release any other name may be the bundle's.
        let ours = |name: &str| [ENV, OVERRIDE].iter().any(|ours| name.strip_prefix(files::TEMP) == Some(ours));
        let mut left = files::sweep(self.disk(), &self.dir, temp);
        left.extend(FOLDERS.iter().flat_map(|folder| files::sweep(self.disk(), &self.dir.join(folder), temp)));
        match self.staged() {
            Ok(staged) => {
                left.extend(staged.iter().flat_map(|sha| files::sweep(self.disk(), &self.release_dir(sha), ours)));
            }
            Err(fail) => left.push(fail),
        }
        left
    }

    fn close_plugins(&self) -> Result<(), Fail> {
        files::remove_any(self.disk(), &self.docker_config_dir().join("cli-plugins"))
    }
}

/// Whether a file is this user's, and this user may not read or write it.
fn closed_to_its_owner(found: &fs::Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o600 != 0o600
}

/// Takes the kernel's lock. The file stays for ever: what was locked and then removed would lock nobody out.
fn lock(disk: &dyn Disk, dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK);
    let file = disk::lock_file(disk, &path).doing("open", &path)?;
    let found = file.metadata().doing("look at", &path)?.file_type();
    if !found.is_file() {
        return Err(Fail { doing: "use", path, source: plain::refusal(found) }.into());
    }
    match file.try_lock() {
        Ok(()) => {
            // Who it is, for people; the lock itself does not depend on it, so a full disk is no obstacle.
            let _ = disk::mark(disk, &path, &file, &format!("{}\n", std::process::id()));
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let read = file.take(32).read_to_string(&mut text);
            Err(StoreError::Locked { dir: dir.to_owned(), by: read.ok().and_then(|_| text.trim().parse().ok()) })
        }
        Err(TryLockError::Error(source)) => Err(Fail { doing: "lock", path, source }.into()),
    }
}

/// The name of a report's file. An id is letters, digits and dashes.
fn report_name(id: &str) -> Result<String, Fail> {
    let fits = (1..=64).contains(&id.len()) && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if fits { Ok(format!("{id}.json")) } else { refuse("use", Path::new(OUTBOX), "no id of a report") }
}

/// JSON, or why not. Nothing of the content is in the words: it may be a secret.
fn json<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T, String> {
    if bytes.is_empty() {
        return Err("empty".to_owned());
    }
    // From text, as recordings are: what reads a state from text is in the binary already.
    let text = std::str::from_utf8(bytes).map_err(|_| "not whole JSON (it is not UTF-8)".to_owned())?;
    serde_json::from_str(text).map_err(|e| {
        let what = if e.is_data() { "not what it should hold" } else { "not whole JSON" };
        format!("{what} (line {}, column {})", e.line(), e.column())
    })
}

/// A token or grant: one printable word.
fn value(text: &str) -> Result<Secret, String> {
    match text.trim() {
        "" => Err("empty".to_owned()),
        word if word.chars().any(|c| c.is_control() || c.is_whitespace()) => {
            Err("more than one printable word".to_owned())
        }
        word => Ok(Secret::new(word.to_owned())),
    }
}

fn read_state(bytes: &[u8]) -> Result<State, String> {
    #[derive(Deserialize)]
    struct Format {
        format: Option<u64>,
    }
    // First the format: a newer one is not even looked at.
    match json::<Format>(bytes)?.format {
        None => Err("without a format, which every agent writes".to_owned()),
        Some(format) if format > u64::from(State::FORMAT) => {
            Err(format!("of format {format}, written by a newer agent (this one knows {})", State::FORMAT))
        }
        Some(_) => json(bytes).map(|state| State { format: State::FORMAT, ..state }),
    }
}

#[cfg(test)]
mod tests;
