//! What held a secret and was dropped holds it no more: nowhere in the memory of this process.
//!
//! Invariant: a canary is known to this file only in disguise, so whatever is found of it was left behind.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use monky_deployd::drivers::docker::cli::{Call, Docker, Environment, Keep, RunError};
use monky_deployd::drivers::vault::{Secret, Slot, Vault, Wiped};
use monky_deployd::effects::Scrub as _;

/// So many bytes of a canary in one piece are a find: what an allocator writes into freed memory hides fewer.
const PIECE: usize = 16;

/// The same memory is searched by each.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What stands for a letter, and the other way round: rot13, as `tr` can do it too.
fn turned(byte: u8) -> u8 {
    match byte {
        b'a'..=b'z' => (byte - b'a' + 13) % 26 + b'a',
        other => other,
    }
}

/// A canary, as long as a token or much longer, in disguise. No two of them have a piece in common.
fn disguised(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut letter = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b'a' + u8::try_from(state % 26).unwrap()
    };
    (0..length).map(|_| letter()).collect()
}

/// How often a piece of a canary is in the memory that this process may write to.
fn found(disguised: &[u8]) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut memory = File::open("/proc/self/mem").unwrap();
    let mut count = 0;
    // Read in one buffer that is turned at once, so that the search does not find what it read itself.
    let mut buffer = vec![0; 1 << 20];
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        if !rights.starts_with("rw") || line.ends_with("[vvar]") {
            continue;
        }
        let (from, to) = range.split_once('-').unwrap();
        let (mut at, to) = (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap());
        while at < to {
            let length = buffer.len().min(usize::try_from(to - at).unwrap());
            memory.seek(SeekFrom::Start(at)).unwrap();
            // A mapping may be gone by now.
            let Ok(read) = memory.read(&mut buffer[..length]) else { break };
            if read == 0 {
                break;
            }
            for byte in &mut buffer[..read] {
                *byte = turned(*byte);
            }
            count += pieces(disguised).filter(|piece| buffer[..read].windows(PIECE).any(|part| part == *piece)).count();
            buffer[..read].fill(0);
            at += u64::try_from(read).unwrap();
        }
    }
    count
}

/// A few pieces of it, from its beginning to its end.
fn pieces(disguised: &[u8]) -> impl Iterator<Item = &[u8]> {
    let last = disguised.len() - PIECE;
    [0, last / 3, last / 2, last].into_iter().map(|at| &disguised[at..at + PIECE])
}

#[test]
fn what_a_buffer_outgrew_is_wiped() {
    let _alone = alone();
    let canary = disguised(1, 4000);
    let mut buffer = Wiped::default();
    for byte in &canary {
        buffer.write_all(&[turned(*byte)]).unwrap();
    }
    assert!(found(&canary) > 0, "the search finds nothing");
    drop(buffer);
    assert_eq!(found(&canary), 0);
}

#[test]
fn what_was_cut_from_the_front_is_wiped_too() {
    let _alone = alone();
    let canary = disguised(2, 4000);
    let mut buffer = Wiped::default();
    for byte in &canary {
        buffer.extend(&[turned(*byte)]);
    }
    buffer.keep_last(10);
    drop(buffer);
    assert_eq!(found(&canary), 0);
}

#[test]
fn a_vault_takes_every_form_of_its_values_with_it() {
    let _alone = alone();
    // In lines, and with what JSON and URLs write otherwise.
    let canary: Vec<u8> = [disguised(3, 64), disguised(4, 64), disguised(5, 64)].join(&b"\n</ &>"[..]);
    let vault = Vault::default();
    let mut value = String::with_capacity(canary.len());
    value.extend(canary.iter().map(|byte| char::from(turned(*byte))));
    vault.put(Slot::Env("P".to_owned()), Secret::new(value));
    let text: Wiped = {
        let mut text = Wiped::default();
        text.extend(b"before ");
        canary.iter().for_each(|byte| text.extend(&[turned(*byte)]));
        text
    };
    assert_eq!(vault.scrub(std::str::from_utf8(&text).unwrap()), "before [secret:P]");
    assert!(found(&canary[..64]) > 0, "the search finds nothing");
    drop((vault, text));
    for part in canary.split(|byte| !byte.is_ascii_lowercase()).filter(|part| !part.is_empty()) {
        assert_eq!(found(part), 0);
    }
}

/// A `docker` that says a canary and then some.
fn says(folder: &Path, canary: &[u8], then: &str) -> Docker {
    let bin = folder.join("docker");
    let turn = format!("printf %s {} | tr a-z n-za-m", std::str::from_utf8(canary).unwrap());
    // Written by a child: a file that someone may still write cannot be executed.
    let mut child = Command::new("/bin/sh")
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(&bin)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = format!("#!/bin/sh\n{turn}\n{turn} >&2\n{then}\n");
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let environment = Environment::from_own(folder, &|name| std::env::var_os(name));
    Docker::new(&bin, folder, "p", environment, Arc::new(AtomicBool::new(false)))
}

#[test]
fn what_a_child_said_is_wiped_however_it_ended() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let call = || Call {
        stdout: Keep::First(1000),
        stderr: Some(Keep::Last(1 << 16)),
        ..Call::new(["x"], Duration::from_secs(2))
    };
    for (seed, then) in [(6, "exit 0"), (7, "exit 1"), (8, "exec sleep 60")] {
        let canary = disguised(seed, 3000);
        let ran = says(dir.path(), &canary, then).run(&call());
        match &ran {
            Ok(output) => {
                assert!(output.stdout.cut);
                assert_eq!(output.stderr.text().len(), canary.len());
            }
            Err(RunError::TimedOut { said, .. }) => assert_eq!(said.bytes.len(), canary.len()),
            Err(other) => panic!("{other}"),
        }
        assert!(found(&canary) > 0, "the search finds nothing");
        drop(ran);
        assert_eq!(found(&canary), 0, "{then}");
    }
}
