//! The state directory: whose it is, how closed it is, who holds its lock, and how much room there is.
//!
//! Invariant: only looks. The lock is never taken, not even for a moment: a tick that begins just then must get it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};

use super::super::words::moment;
use super::line::Line;
use crate::config::Config;
use crate::drivers::store::{ENV, FOLDERS, Loaded, Misfit, OVERRIDE, SET_ASIDE, Store, StoreError, misfits, set_aside};
use crate::effects::Stamp;
use crate::effects::state::State;

/// Names of a directory are looked at up to so many; a state directory has a few hundred.
const MOST: usize = 20_000;

/// What was found of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    /// Its owner, and who asks.
    owner: u32,
    asks: u32,
    mode: u32,
    /// Of the wrong kind.
    misfits: Vec<Misfit>,
    /// Below it, of other owners: what a tick cannot do without, and what it can.
    strangers: Vec<String>,
    harmless: Vec<String>,
    /// Files and folders that others may open, with what would be right.
    open: Vec<(String, u32)>,
    /// Folders, itself among them, in which their owner may not write; and what the next tick mends of that kind.
    shut: Vec<String>,
    ajar: Vec<String>,
    /// Nothing can be written there by anybody.
    read_only: bool,
    /// Why it could not be read to its end.
    trouble: Option<String>,
}

/// How the lock is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lock {
    Free,
    /// By this process, for so many seconds.
    Held(u32, i64),
    Unknown(String),
}

/// Its lines, and its content if this user may use it.
pub fn look(config: &Config, store: &Store, now: Stamp) -> (Vec<Line>, Option<Loaded>) {
    let dir = &config.state_dir;
    let mut lines = Vec::new();
    let Ok(at) = fs::metadata(dir) else {
        let parent = existing(dir);
        lines.push(missing(dir, parent == dir.parent().unwrap_or(dir) && access(&parent, Access::WRITE_OK).is_ok()));
        lines.push(room("disk", &parent, &space(&parent), STATE_ROOM));
        return (lines, store.load_state(now).ok());
    };
    let mut found = Found {
        owner: at.uid(),
        asks: rustix::process::geteuid().as_raw(),
        mode: at.mode() & 0o7777,
        read_only: statvfs(dir).is_ok_and(|disk| disk.f_flag.contains(StatVfsMountFlags::RDONLY)),
        ..Found::default()
    };
    if found.mode & 0o700 != 0o700 {
        // To know it for its own, a tick has to list it.
        let list = if found.mode & 0o400 != 0 { &mut found.ajar } else { &mut found.shut };
        list.push(dir.display().to_string());
    }
    let ours = found.owner == found.asks;
    if ours && at.is_dir() {
        found.misfits = misfits(dir);
        walk(dir, found.owner, &mut found);
    } else if ours {
        found.trouble = Some("it is no directory".to_owned());
    }
    lines.push(directory(dir, &found, user(found.owner).as_deref()));
    if !ours || found.trouble.is_some() {
        for fact in ["lock", "state"] {
            lines.push(Line::unchecked(fact, "this user cannot use the state directory", "mend `state_dir` first"));
        }
        lines.push(room("disk", dir, &space(dir), STATE_ROOM));
        return (lines, None);
    }
    let settings = &config.settings;
    lines.push(lock(&lock_of(&dir.join("lock"), now), super::longest_tick_s(settings)));
    let loaded = store.load_state(now);
    lines.push(state(&loaded));
    lines.extend(lost(&set_aside(dir)));
    lines.extend(loaded.iter().flat_map(|loaded| remembered(&loaded.state)));
    lines.push(room("disk", dir, &space(dir), STATE_ROOM));
    (lines, loaded.ok())
}

/// The directory itself, or the nearest one above it that is there.
fn existing(dir: &Path) -> PathBuf {
    dir.ancestors().find(|above| above.exists()).unwrap_or(dir).to_owned()
}

fn walk(dir: &Path, owner: u32, found: &mut Found) {
    // Of a release only these two are closed: containers of any user read what they mount. Beside the credential Docker's
    // client keeps what it likes.
    let (releases, docker) = (dir.join("releases"), dir.join("docker"));
    let mut folders = vec![dir.to_owned()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            // It has its own line already, as a stranger's or as shut.
            Err(_) if folder != dir => continue,
            Err(error) => {
                found.trouble = Some(format!("{} cannot be read: {error}", folder.display()));
                return;
            }
        };
        for entry in entries.flatten() {
            seen += 1;
            let path = entry.path();
            let Ok(at) = fs::symlink_metadata(&path) else { continue };
            if at.uid() != owner {
                let list = if is_needed(dir, &path, &at) { &mut found.strangers } else { &mut found.harmless };
                list.push(path.display().to_string());
            }
            let name = entry.file_name();
            let among = |closed: &[&str]| closed.iter().any(|closed| name == *closed);
            let content = (folder == releases)
                || (folder.starts_with(&releases) && !among(&[ENV, OVERRIDE]))
                || (folder.starts_with(&docker) && !among(&["config.json"]));
            if !content && !at.is_symlink() && at.mode() & 0o077 != 0 {
                found.open.push((path.display().to_string(), if at.is_dir() { 0o700 } else { 0o600 }));
            }
            let own = at.uid() == owner;
            if own && !content && at.is_file() && at.mode() & 0o600 != 0o600 {
                found.ajar.push(path.display().to_string());
            }
            if at.is_dir() {
                if own && at.mode() & 0o700 != 0o700 {
                    let mended = folder == dir && FOLDERS.iter().any(|known| name == *known);
                    let list = if mended { &mut found.ajar } else { &mut found.shut };
                    list.push(path.display().to_string());
                }
                folders.push(path);
            }
        }
        if seen > MOST {
            return;
        }
    }
}

/// Whether a tick cannot do without a thing of another user: it could not use a folder of its own, or read what it must.
fn is_needed(dir: &Path, path: &Path, at: &fs::Metadata) -> bool {
    let Ok(below) = path.strip_prefix(dir) else { return false };
    let all = Access::READ_OK | Access::WRITE_OK;
    let may = |access_: Access| access(path, access_).is_ok();
    let name = below.to_str().unwrap_or_default();
    match (name, name.split_once('/')) {
        ("lock", _) => !may(all),
        (name, None) if FOLDERS.contains(&name) => !may(all | Access::EXEC_OK),
        (name, None) if SET_ASIDE.contains(&name) => at.is_file() && !may(Access::READ_OK),
        (_, Some(("outbox", name))) => name.ends_with(".json") && at.is_file() && !may(Access::READ_OK),
        (_, Some(("releases", name))) => !name.contains('/') && at.is_dir() && !may(all | Access::EXEC_OK),
        _ => false,
    }
}

/// The name of a user, from the system's own list.
fn user(uid: u32) -> Option<String> {
    let list = fs::read_to_string("/etc/passwd").ok()?;
    list.lines().find_map(|line| {
        let mut parts = line.split(':');
        let name = parts.next()?;
        (parts.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// Whom root should run this as: whoever has the state directory. Root sees another box than the agent does.
pub fn not_for_root(dir: &Path) -> Option<String> {
    let owner = fs::metadata(dir).ok()?.uid();
    let root = rustix::process::geteuid().is_root();
    (root && owner != 0).then(|| user(owner).unwrap_or_else(|| format!("'#{owner}'")))
}

fn missing(dir: &Path, can_be_made: bool) -> Line {
    let what = format!("{} is not there", dir.display());
    if can_be_made {
        return Line::warning("state_dir", what, "nothing, if this box is new: the first tick makes it");
    }
    let remedy = format!(
        "sudo install -d -m 0700 -o monky-deployd -g monky-deployd {}; and run this as `sudo -u monky-deployd monky-deployd check`",
        dir.display()
    );
    Line::failure("state_dir", what, &remedy)
}

fn directory(dir: &Path, found: &Found, owner: Option<&str>) -> Line {
    let shown = dir.display();
    let fact = "state_dir";
    let Found { owner: uid, asks, mode, misfits, strangers, harmless, open, shut, ajar, read_only, trouble } = found;
    let name = owner.map_or_else(|| uid.to_string(), str::to_owned);
    let for_sudo = owner.map_or_else(|| format!("'#{uid}'"), str::to_owned);
    if uid != asks {
        let what = format!("{shown} belongs to {name} (uid {uid}), and this is uid {asks}");
        let remedy = if *uid == 0 {
            // Nobody runs the agent as root on purpose.
            format!("give it back to the agent's user: sudo chown -hR monky-deployd: {shown}")
        } else {
            format!("run it as that user: sudo -u {for_sudo} monky-deployd check")
        };
        return Line::failure(fact, what, &remedy);
    }
    if *read_only {
        let what = format!("{shown} is on a file system that is mounted read-only: nothing can be written there");
        return Line::failure(fact, what, "look why (`findmnt -T`, the kernel's log), and mount it writable");
    }
    if !misfits.is_empty() {
        let what: Vec<String> =
            misfits.iter().map(|misfit| format!("{} {}", misfit.path.display(), misfit.why)).collect();
        let remedy: Vec<String> = misfits.iter().map(Misfit::remedy).collect();
        return Line::failure(
            fact,
            what.join("; "),
            &format!("{}; the next tick makes what it needs", remedy.join("; ")),
        );
    }
    if let Some(first) = shut.first() {
        let what = format!("{first} is closed to its own user: nothing can be written there");
        return Line::failure(fact, what, &format!("chmod u+rwx {first}"));
    }
    if let Some(why) = trouble {
        return Line::failure(
            fact,
            format!("{shown}: {why}"),
            &format!("sudo chown -hR {name}: {shown}, if it is the agent's; else name another `state_dir`"),
        );
    }
    if let Some(first) = strangers.first() {
        let what = format!(
            "{} in {shown} belong to another user, such as {first}: somebody ran the agent as that user",
            strangers.len()
        );
        return Line::failure(fact, what, &format!("sudo chown -hR {name}: {shown}"));
    }
    if mode & 0o077 != 0 {
        let what = format!("{shown} is open to others (mode {mode:04o}); secrets are below it");
        return Line::warning(fact, what, &format!("nothing: the next tick closes it; at once: chmod 0700 {shown}"));
    }
    if let Some(first) = ajar.first() {
        let what = format!("{} in {shown} are closed to their own user, such as {first}", ajar.len());
        return Line::warning(fact, what, &format!("nothing: the next tick mends it; at once: chmod u+rwX {first}"));
    }
    if let Some(first) = harmless.first() {
        let what =
            format!("{} in {shown} belong to another user, such as {first}: ticks go on without them", harmless.len());
        return Line::warning(fact, what, &format!("sudo chown -hR {name}: {shown}"));
    }
    if let Some((first, right)) = open.first() {
        let what = format!("{} in {shown} are open to others, such as {first}", open.len());
        return Line::warning(fact, what, &format!("chmod {right:04o} {first}"));
    }
    Line::ok(fact, format!("{shown} belongs to {name}, closed to others"))
}

/// Whose the kernel's lock on a file is, from its list of all locks.
fn lock_of(path: &Path, now: Stamp) -> Lock {
    let Ok(at) = fs::metadata(path) else { return Lock::Free };
    match fs::read_to_string("/proc/locks") {
        Ok(list) => match holder(&list, at.ino()) {
            // The holder writes its id into the file as soon as it has the lock.
            Some(pid) => Lock::Held(pid, now.0.div_euclid(1000).saturating_sub(at.mtime()).max(0)),
            None => Lock::Free,
        },
        Err(error) => Lock::Unknown(format!("/proc/locks cannot be read: {error}")),
    }
}

/// Since when somebody holds the lock (whole seconds); none: nobody does.
pub fn held_since(path: &Path) -> Option<Stamp> {
    let held = matches!(lock_of(path, Stamp(0)), Lock::Held(..));
    // Whoever has it has written into it.
    fs::metadata(path).ok().filter(|_| held).map(|at| Stamp(at.mtime().saturating_mul(1000)))
}

/// The process in a line like `1: FLOCK  ADVISORY  WRITE 705 08:02:12345 0 EOF` for this inode. A waiting one has `->`.
fn holder(list: &str, inode: u64) -> Option<u32> {
    list.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (["FLOCK", _, "WRITE", pid, file, ..], false) = (words.get(1..)?, words.contains(&"->")) else {
            return None;
        };
        (file.rsplit(':').next()?.parse() == Ok(inode)).then(|| pid.parse().ok())?
    })
}

/// What the last tick left word of: a hold, a deploy that failed, and what was in its way. Of what there is not there is
/// no line.
pub fn remembered(state: &State) -> Vec<Line> {
    let hold = state.hold.iter().map(|hold| {
        let what = format!("tenancy said hold at {}: {}", moment(hold.since), hold.reason);
        Line::warning("hold", what, "nothing on this box: nothing is deployed until tenancy takes it back")
    });
    let failed = state.last_error.iter().map(|error| {
        let what =
            format!("the last one failed, {} at {}: {}", error.code, moment(error.at), error.code.bare(&error.detail));
        Line::warning("deploy", what, error.code.remedy())
    });
    let troubles = state.troubles().map(|trouble| {
        let what = format!("{} since {}: {}", trouble.code, moment(trouble.at), trouble.code.bare(&trouble.detail));
        Line::warning("trouble", what, trouble.code.remedy())
    });
    hold.chain(failed).chain(troubles).collect()
}

fn lock(lock: &Lock, longest_s: u64) -> Line {
    match lock {
        Lock::Free => Line::ok("lock", "free: no tick is at work".to_owned()),
        Lock::Held(pid, seconds) if *seconds > i64::try_from(longest_s).unwrap_or(i64::MAX) => {
            let what = format!("held by process {pid} for {seconds} s, longer than a tick takes ({longest_s} s)");
            Line::warning(
                "lock",
                what,
                "look at that process; `systemctl stop monky-deployd` ends it. Never remove the file",
            )
        }
        Lock::Held(pid, seconds) => {
            Line::ok("lock", format!("held by process {pid} for {seconds} s: a tick is at work"))
        }
        Lock::Unknown(why) => Line::unchecked("lock", why, "nothing: a tick tells if it finds it held"),
    }
}

fn state(loaded: &Result<Loaded, StoreError>) -> Line {
    match loaded {
        Err(error) => Line::failure("state", error.to_string(), "mend what the system says of that file"),
        Ok(Loaded { notes, .. }) if !notes.is_empty() => {
            let lost_state = notes.iter().any(|note| note.contains("/state.json ") && note.ends_with("sets it aside"));
            let remedy = if lost_state {
                "look at the disk; the next tick goes on without it, and deploys again what is desired"
            } else {
                "look at the disk; the next tick goes on"
            };
            Line::warning("state", notes.join("; "), remedy)
        }
        Ok(Loaded { state, .. }) => Line::ok(
            "state",
            match state.applied() {
                Some(applied) => format!("readable; {} is applied", applied.sha.short()),
                None => "readable; nothing is applied yet".to_owned(),
            },
        ),
    }
}

/// What was set aside once, until somebody removes it: it may tell why, and it is not in any other line.
fn lost(aside: &[(PathBuf, &'static str)]) -> Option<Line> {
    let told: Vec<String> = aside.iter().map(|(path, lost)| format!("{} ({lost})", path.display())).collect();
    (!told.is_empty()).then(|| {
        let what = format!("set aside, because it could not be read: {}", told.join("; "));
        Line::warning("set_aside", what, "look at the disk and at what they hold; then remove them (`rm`)")
    })
}

/// Room on a disk: bytes that this user may still write, and files it may still make (none: there is no such limit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    bytes: u64,
    files: Option<u64>,
}

/// Below the first it fails, below the second somebody should look (bytes).
pub type Room = (u64, u64);
/// The state is small; a bundle is at most 16 MiB.
const STATE_ROOM: Room = (64 << 20, 512 << 20);
/// Images are not.
pub const DOCKER_ROOM: Room = (512 << 20, 4 << 30);
/// The same for files.
const FILES: Room = (1_000, 20_000);

/// The room where a path is.
pub fn space(path: &Path) -> Result<Space, String> {
    let disk = statvfs(path).map_err(|error| error.to_string())?;
    let files = (disk.f_files > 0).then_some(disk.f_favail);
    Ok(Space { bytes: disk.f_bavail.saturating_mul(disk.f_frsize), files })
}

/// Whether there is enough of it.
pub fn room(fact: &str, path: &Path, space: &Result<Space, String>, (least, fair): Room) -> Line {
    let shown = path.display();
    let space = match space {
        Ok(space) => space,
        Err(why) => return Line::unchecked(fact, &format!("{shown}: {why}"), "look with `df`"),
    };
    let files = space.files.unwrap_or(u64::MAX);
    let left = space.files.map(|files| format!(" and {files} files")).unwrap_or_default();
    let what = format!("{shown} has room for {} MiB{left}", space.bytes >> 20);
    // Images lie where Docker keeps them.
    let how = if fact == "disk" {
        "look what fills it (`du -xh`)"
    } else {
        "`monky-deployd tick --prune` removes images that no kept release needs"
    };
    if space.bytes < least || files < FILES.0 {
        Line::failure(fact, what, &format!("free space: {how}"))
    } else if space.bytes < fair || files < FILES.1 {
        Line::warning(fact, what, &format!("free space before a deploy needs it: {how}"))
    } else {
        Line::ok(fact, what)
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::Level;
    use super::*;
    use crate::effects::failure::Code;
    use crate::effects::local::LocalFacts;
    use crate::effects::state::{Hold, LastError};

    fn found() -> Found {
        Found { owner: 7, asks: 7, mode: 0o700, ..Found::default() }
    }

    fn judged(found: &Found) -> (Level, String) {
        let line = directory(Path::new("state"), found, Some("agent"));
        (line.level, line.remedy.unwrap_or_default())
    }

    #[test]
    fn the_wrong_user_is_told_how_to_run_it() {
        let (level, remedy) = judged(&Found { asks: 0, ..found() });
        assert_eq!(
            (level, remedy.as_str()),
            (Level::Failure, "run it as that user: sudo -u agent monky-deployd check")
        );
        let nameless = directory(Path::new("state"), &Found { asks: 0, ..found() }, None);
        assert!(nameless.remedy.unwrap().contains("sudo -u '#7' "));
        let strange = Found { strangers: vec!["lock".to_owned()], ..found() };
        let nameless = directory(Path::new("state"), &strange, None);
        assert_eq!(nameless.remedy.unwrap(), "sudo chown -hR 7: state", "chown knows no #");
    }

    #[test]
    fn a_state_directory_is_closed_whole_and_of_one_owner() {
        assert_eq!(judged(&found()).0, Level::Ok);
        let (level, remedy) = judged(&Found { mode: 0o750, ..found() });
        assert!(level == Level::Warning && remedy.contains("the next tick closes it"), "{remedy}");
        assert_eq!(judged(&Found { harmless: vec!["state/x".to_owned()], ..found() }).0, Level::Warning);
        assert_eq!(judged(&Found { ajar: vec!["state/state.json".to_owned()], ..found() }).0, Level::Warning);
        let strange = Found { strangers: vec!["state/state.json".to_owned()], ..found() };
        assert_eq!(judged(&strange), (Level::Failure, "sudo chown -hR agent: state".to_owned()));
        let shut = Found { shut: vec!["state/outbox".to_owned()], mode: 0o500, ..found() };
        assert_eq!(judged(&shut), (Level::Failure, "chmod u+rwx state/outbox".to_owned()));
        assert_eq!(judged(&Found { read_only: true, ..found() }).0, Level::Failure);
        let open = Found { open: vec![("state/token.json".to_owned(), 0o600)], ..found() };
        assert_eq!(judged(&open), (Level::Warning, "chmod 0600 state/token.json".to_owned()));
        assert_eq!(judged(&Found { trouble: Some("it is no directory".to_owned()), ..found() }).0, Level::Failure);
    }

    #[test]
    fn one_that_is_not_there_is_made_by_a_tick_if_the_tick_can() {
        assert_eq!(missing(Path::new("state"), true).level, Level::Warning);
        let line = missing(Path::new("state"), false);
        assert!(line.level == Level::Failure && line.remedy.unwrap().contains("install -d -m 0700"));
    }

    #[test]
    fn a_folder_in_which_its_owner_may_not_write_is_found_wherever_it_is() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let release = state.join("releases/abc");
        fs::create_dir_all(&release).unwrap();
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
        fs::set_permissions(&release, fs::Permissions::from_mode(0o500)).unwrap();
        fs::set_permissions(state.join("releases"), fs::Permissions::from_mode(0o500)).unwrap();
        let mut found = Found::default();
        walk(&state, rustix::process::geteuid().as_raw(), &mut found);
        assert_eq!(found.shut, [release.display().to_string()]);
        assert_eq!(found.ajar, [state.join("releases").display().to_string()], "the next tick mends it");
    }

    #[test]
    fn what_of_a_release_containers_mount_is_open_and_its_variables_are_not() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let release = dir.path().join("releases/abc");
        fs::create_dir_all(&release).unwrap();
        for (name, mode) in [("web.conf", 0o644), (ENV, 0o640)] {
            fs::write(release.join(name), "").unwrap();
            fs::set_permissions(release.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        for (name, mode) in [("releases", 0o700), ("releases/abc", 0o755)] {
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let mut found = Found::default();
        walk(dir.path(), rustix::process::geteuid().as_raw(), &mut found);
        assert_eq!(found.open, [(release.join(ENV).display().to_string(), 0o600)]);
        assert!(found.strangers.is_empty());
        let mut found = Found::default();
        walk(dir.path(), u32::MAX - 1, &mut found);
        assert_eq!((found.strangers.len(), found.harmless.len()), (0, 4), "this user may use all of them");
    }

    #[test]
    fn the_holder_of_a_lock_is_read_from_the_kernels_list() {
        let list = "1: POSIX  ADVISORY  WRITE 11 08:02:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 705 08:02:77 0 EOF\n\
                    2: -> FLOCK  ADVISORY  WRITE 9 08:02:78 0 EOF\n";
        assert_eq!(holder(list, 77), Some(705));
        assert_eq!(holder(list, 78), None, "one that waits does not hold");
        assert_eq!(holder(list, 7), None);
    }

    #[test]
    fn a_lock_that_is_held_is_fine_unless_it_is_held_too_long() {
        assert_eq!(lock(&Lock::Free, 1800).level, Level::Ok);
        assert_eq!(lock(&Lock::Held(7, 1800), 1800).level, Level::Ok);
        let stuck = lock(&Lock::Held(7, 1801), 1800);
        assert!(stuck.level == Level::Warning && stuck.what.contains("process 7"), "{stuck:?}");
        assert_eq!(lock(&Lock::Unknown("x".to_owned()), 1800).level, Level::Warning);
    }

    #[test]
    fn a_lock_is_seen_and_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = fs::File::create(&path).unwrap();
        assert_eq!(lock_of(&path, Stamp(0)), Lock::Free);
        file.lock().unwrap();
        assert_eq!(lock_of(&path, Stamp(0)), Lock::Held(std::process::id(), 0));
        assert_eq!(lock_of(&dir.path().join("nothing"), Stamp(0)), Lock::Free);
    }

    #[test]
    fn a_state_that_will_be_set_aside_is_told_before_it_is() {
        let loaded = |notes: &[&str]| {
            let notes = notes.iter().map(|note| (*note).to_owned()).collect();
            Ok(Loaded { state: State::default(), local: LocalFacts::default(), notes })
        };
        assert_eq!(state(&loaded(&[])).level, Level::Ok);
        let line = state(&loaded(&["state.json is empty; the next tick sets it aside"]));
        assert!(line.level == Level::Warning && line.what.contains("state.json is empty"), "{line:?}");
    }

    #[test]
    fn a_hold_a_failed_deploy_and_every_trouble_have_a_line_of_their_own_and_nothing_has_none() {
        assert_eq!(remembered(&State::default()), []);
        let trouble = |code: Code| LastError {
            code,
            phase: "token".to_owned(),
            detail: format!("no -> {}", code.remedy()),
            at: Stamp(0),
        };
        let lines = remembered(&State {
            hold: Some(Hold { reason: "freeze".to_owned(), since: Stamp(0) }),
            last_error: Some(trouble(Code::PullFailed)),
            trouble: Some(trouble(Code::TenancyUnreachable)),
            unsolved: vec![trouble(Code::LeaseRateLimited)],
            ..State::default()
        });
        let told: Vec<(&str, Level, &str)> =
            lines.iter().map(|line| (line.fact.as_str(), line.level, line.what.as_str())).collect();
        assert_eq!(
            told,
            [
                ("hold", Level::Warning, "tenancy said hold at 1970-01-01T00:00:00Z: freeze"),
                ("deploy", Level::Warning, "the last one failed, PULL_FAILED at 1970-01-01T00:00:00Z: no"),
                ("trouble", Level::Warning, "TENANCY_UNREACHABLE since 1970-01-01T00:00:00Z: no"),
                ("trouble", Level::Warning, "LEASE_RATE_LIMITED since 1970-01-01T00:00:00Z: no"),
            ]
        );
    }

    #[test]
    fn room_is_judged_in_bytes_and_in_files() {
        let level = |bytes, files| room("disk", Path::new("d"), &Ok(Space { bytes, files }), STATE_ROOM).level;
        assert_eq!(level(1 << 30, Some(1_000_000)), Level::Ok);
        assert_eq!(level(1 << 30, None), Level::Ok, "not every file system counts files");
        assert_eq!(level(500 << 20, None), Level::Warning);
        assert_eq!(level(60 << 20, None), Level::Failure);
        assert_eq!(level(1 << 30, Some(10_000)), Level::Warning);
        assert_eq!(level(1 << 30, Some(0)), Level::Failure);
        assert_eq!(room("disk", Path::new("d"), &Err("no".to_owned()), STATE_ROOM).level, Level::Warning);
    }
}
