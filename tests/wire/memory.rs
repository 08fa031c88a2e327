//! What is left of secrets outside of the process: no core, no trace of the HTTP library.
//!
//! Invariant: the process that is looked at is a real tick that waits for a server with a token in its memory.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use super::boxes::{Box, Ran};
use super::proxy::{Call, Does};

/// A user that is nobody.
const NOBODY: u32 = 65534;

#[test]
fn a_tick_cannot_leave_a_core_and_its_memory_is_closed_to_its_own_user() {
    let mut one = Box::new(600);
    one.will_call(Call::Read);
    one.goes_wrong(Call::Read, Does::Silence, usize::MAX);
    let mut command = one.command(&["tick"]);
    let root = rustix::process::geteuid().is_root();
    if root {
        // Root's processes belong to root either way.
        given_to(one.stand.dir(), NOBODY);
        command.uid(NOBODY).gid(NOBODY);
    }
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    for _ in 0..3000 {
        if one.bao.count(Call::Read) > 0 {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    let proc = Path::new("/proc").join(child.id().to_string());
    let limits = fs::read_to_string(proc.join("limits")).unwrap();
    // The system gives what a process keeps to itself to root.
    let owner = fs::metadata(proc.join("environ")).unwrap().uid();
    let status = fs::read_to_string(proc.join("status")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(one.bao.count(Call::Read) > 0, "it did not get that far");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().collect::<Vec<_>>()[4..6], ["0", "0"], "{core}");
    let user = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    assert!(!user.split_whitespace().any(|uid| uid == "0"), "{user}");
    assert_eq!(owner, 0, "its memory can be read by every process of its user");
}

fn given_to(dir: &Path, user: u32) {
    chown(dir, Some(user), Some(user)).unwrap();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            given_to(&path, user);
        } else if meta.is_file() {
            chown(&path, Some(user), Some(user)).unwrap();
        }
    }
}

#[test]
fn the_finest_log_says_nothing_of_the_http_library_and_no_secret() {
    let mut one = Box::new(60);
    for call in [Call::Lease, Call::Revoke, Call::Renew] {
        one.will_call(call);
        let ran = Ran::of(&mut one.command(&["--log-level", "TRACE", "tick"]));
        assert_eq!(ran.status, Some(0), "{ran:?}");
        assert!(ran.stderr.contains("asks for"), "not the finest log: {ran:?}");
        for secret in one.secrets() {
            assert!(!ran.stderr.contains(&secret), "{ran:?}");
        }
        for word in ["ureq", "rustls", "x-vault-token", "X-Vault-Token", "Authorization", "HTTP/1.1", "client_token"] {
            assert!(!ran.stderr.contains(word), "{word}: {ran:?}");
        }
    }
}
