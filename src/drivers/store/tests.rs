//! The state directory under failure, crash and nonsense.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::effects::Sha;
use crate::effects::report::Outcome;

const NOW: Stamp = Stamp(1_700_000_000_123);

struct Box_ {
    root: tempfile::TempDir,
    vault: Arc<Vault>,
}

impl Box_ {
    fn new() -> Box_ {
        Box_ { root: tempfile::tempdir().unwrap(), vault: Arc::default() }
    }

    fn dir(&self) -> PathBuf {
        self.root.path().join("state")
    }

    fn open(&self) -> Store {
        Store::open(&self.dir(), Arc::clone(&self.vault)).unwrap()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.dir().join(name);
        fs::write(&path, content).unwrap();
        // As the agent itself writes it, or that would be told too.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn lent(&self, slot: Slot) -> Option<String> {
        self.vault.with(&slot, str::to_owned)
    }

    /// Every path below the state directory with its mode, links with their target.
    fn tree(&self) -> BTreeMap<String, String> {
        fn walk(dir: &Path, prefix: &str, out: &mut BTreeMap<String, String>) {
            for name in files::names(dir).unwrap() {
                let path = dir.join(&name);
                let found = fs::symlink_metadata(&path).unwrap();
                let what = match fs::read_link(&path) {
                    Ok(target) => format!("-> {}", target.display()),
                    Err(_) => format!("{:04o}", found.mode() & 0o7777),
                };
                out.insert(format!("{prefix}{name}"), what);
                if found.is_dir() {
                    walk(&path, &format!("{prefix}{name}/"), out);
                }
            }
        }
        let mut out = BTreeMap::new();
        walk(&self.dir(), "", &mut out);
        out
    }
}

fn sha(n: u8) -> Sha {
    Sha::of(&[n])
}

fn report(id: &str, at: i64) -> Report {
    Report {
        report_id: id.to_owned(),
        result: Outcome::Applied,
        sha: sha(1),
        code: None,
        detail: None,
        phase: "report".to_owned(),
        attempt: 1,
        rolled_back: false,
        duration_ms: 1,
        at: Stamp(at),
        agent_version: "0.2.0".to_owned(),
        containers: Vec::new(),
    }
}

fn lease() -> Lease {
    Lease { lease_id: "l-1".to_owned(), role: Some("env-plant-7".to_owned()), expires_at: Some(Stamp(5)) }
}

const FILES: &[(&str, &[u8])] =
    &[("compose.yaml", b"services: {}\n"), ("conf/a/app.ini", b"x=1\n"), ("conf/b.bin", b"\0\xff")];

fn stage(store: &Store, sha: &Sha, files: &[(&str, &[u8])]) -> Result<(), StoreFault> {
    store.stage_bundle(sha, files.iter().copied())
}

#[test]
fn a_new_state_directory_is_closed_and_empty() {
    let b = Box_::new();
    let loaded = b.open().load_state(NOW).unwrap();
    assert_eq!((loaded.state, loaded.local, loaded.notes), (State::default(), LocalFacts::default(), vec![]));
    assert_eq!(fs::metadata(b.dir()).unwrap().mode() & 0o7777, 0o700);
    let folders = ["docker", "outbox", "recordings", "releases"].map(|name| (name.to_owned(), "0700".to_owned()));
    assert_eq!(b.tree(), folders.into_iter().chain([("lock".to_owned(), "0600".to_owned())]).collect());
}

#[test]
fn a_directory_open_to_others_is_tightened_and_told() {
    let b = Box_::new();
    fs::create_dir(b.dir()).unwrap();
    fs::set_permissions(b.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let notes = b.open().load_state(NOW).unwrap().notes;
    assert!(notes.len() == 1 && notes[0].contains("had mode 0755, open to others; it is 0700 now"), "{notes:?}");
    assert_eq!(fs::metadata(b.dir()).unwrap().mode() & 0o7777, 0o700);
}

#[test]
fn a_missing_parent_or_a_file_in_the_way_is_an_error_that_names_it() {
    let b = Box_::new();
    let deep = b.dir().join("not/there");
    let said = Store::open(&deep, Arc::default()).err().unwrap().to_string();
    assert!(said.starts_with(&format!("make the directory {}: No such file", deep.display())), "{said}");
    fs::write(b.dir(), "x").unwrap();
    let said = Store::open(&b.dir(), Arc::default()).err().unwrap().to_string();
    assert!(said.contains("not a directory"), "{said}");
}

#[test]
fn one_tick_at_a_time_and_the_other_is_named() {
    let b = Box_::new();
    let first = b.open();
    match Store::open(&b.dir(), Arc::default()) {
        Err(StoreError::Locked { by, .. }) => assert_eq!(by, Some(std::process::id())),
        _ => panic!("two ticks"),
    }
    // Whoever only looks is not kept out.
    assert!(Store::open_read_only(&b.dir(), Arc::default()).load_state(NOW).is_ok());
    drop(first);
    b.open();
}

#[test]
fn a_stale_lock_file_is_harmless_and_stays() {
    let b = Box_::new();
    drop(b.open());
    b.write("lock", "4194304\nleft by a tick that died");
    let inode = fs::metadata(b.dir().join("lock")).unwrap().ino();
    let store = b.open();
    assert_eq!(fs::read_to_string(b.dir().join("lock")).unwrap(), format!("{}\n", std::process::id()));
    drop(store);
    assert_eq!(fs::metadata(b.dir().join("lock")).unwrap().ino(), inode);
}

#[test]
fn a_child_does_not_inherit_the_lock() {
    let b = Box_::new();
    let store = b.open();
    let mut child = Command::new("sleep").arg("30").spawn().unwrap();
    drop(store);
    let again = Store::open(&b.dir(), Arc::default());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(again.is_ok());
}

#[test]
fn looking_makes_moves_and_writes_nothing() {
    let b = Box_::new();
    let store = Store::open_read_only(&b.dir(), Arc::clone(&b.vault));
    assert_eq!(store.load_state(NOW).unwrap().local, LocalFacts::default());
    assert!(!b.dir().exists());

    drop(b.open());
    b.write("state.json", "");
    b.write("token.json", "{");
    let before = b.tree();
    let notes = store.load_state(NOW).unwrap().notes;
    assert!(notes.len() == 2 && notes.iter().all(|note| note.ends_with("the next tick sets it aside")), "{notes:?}");
    b.vault.put(Slot::LeaseGrant, Secret::new("grant".to_owned()));
    for refused in [
        store.save_state(&State::default()),
        store.save_grant(&lease()),
        store.save_bootstrap("x"),
        store.drop_grant(GrantName::Lease),
        store.save_report(&report("a", 1)),
        store.drop_report("a"),
        store.write_docker_config("{}"),
        store.save_recording("a", b"", 20),
        store.promote(&sha(1)),
        store.prune_releases(&[]),
        store.write_release(&sha(1), "", ""),
        stage(&store, &sha(1), FILES),
    ] {
        assert!(refused.unwrap_err().detail.as_str().contains("to look at it only"));
    }
    assert_eq!(b.tree(), before);
}

#[test]
fn what_is_saved_is_loaded_by_the_next_tick_and_closed_to_others() {
    let b = Box_::new();
    let store = b.open();
    let state = State { lease_not_before: Some(Stamp(7)), leases: vec![Stamp(1)], ..State::default() };
    store.save_state(&state).unwrap();
    store.save_bootstrap(" boot.strap.jwt\n").unwrap();
    b.vault.put(Slot::LeaseGrant, Secret::new("lease.grant.jwt".to_owned()));
    store.save_grant(&lease()).unwrap();
    b.vault.put(Slot::SavedToken, Secret::new("s.old".to_owned()));
    b.vault.put(Slot::Candidate, Secret::new("s.new".to_owned()));
    store.save_token(TokenSource::Lease, Some("acc"), NOW).unwrap();
    assert_eq!(b.lent(Slot::Replaced).as_deref(), Some("s.old"));
    store.write_docker_config("{\"auths\":{}}").unwrap();
    store.save_report(&report("b2", 10)).unwrap();
    store.save_report(&report("a1", 20)).unwrap();
    store.save_report(&report("a2", 10)).unwrap();
    drop(store);

    let tree = b.tree();
    let open = tree.iter().filter(|(path, mode)| path.contains('.') && *mode != "0600");
    assert_eq!(open.count(), 0, "{tree:?}");
    let token: serde_json::Value = serde_json::from_slice(&fs::read(b.dir().join("token.json")).unwrap()).unwrap();
    let expected =
        serde_json::json!({"client_token": "s.new", "accessor": "acc", "source": "lease", "saved_at": NOW.0});
    assert_eq!(token, expected);

    let next = Box_ { root: b.root, vault: Arc::default() };
    let store = next.open();
    let loaded = store.load_state(NOW).unwrap();
    assert_eq!((loaded.state, loaded.notes), (state, vec![]));
    let local = loaded.local;
    assert!(local.token.is_some() && local.grant.is_some() && local.bootstrap);
    assert_eq!(local.outbox, ["a2", "b2", "a1"]);
    assert_eq!(next.lent(Slot::SavedToken).as_deref(), Some("s.new"));
    assert_eq!(next.lent(Slot::LeaseGrant).as_deref(), Some("lease.grant.jwt"));
    assert_eq!(next.lent(Slot::BootstrapGrant).as_deref(), Some("boot.strap.jwt"));
    assert_eq!(store.load_report("b2").unwrap(), Some(report("b2", 10)));

    store.drop_report("b2").unwrap();
    store.drop_report("b2").unwrap();
    store.drop_grant(GrantName::Bootstrap).unwrap();
    store.drop_grant(GrantName::Lease).unwrap();
    store.drop_grant(GrantName::Lease).unwrap();
    assert_eq!(store.load_report("b2").unwrap(), None);
    let local = store.load_state(NOW).unwrap().local;
    assert!(local.grant.is_none() && !local.bootstrap && local.token.is_some());
    assert!(!next.vault.has(&Slot::LeaseGrant) && !next.vault.has(&Slot::BootstrapGrant));
}

#[test]
fn corrupt_empty_and_future_state_is_set_aside_and_rebuilt() {
    let good = serde_json::to_string(&State::default()).unwrap();
    for (content, why) in [
        (b"".to_vec(), "is empty"),
        (good.as_bytes()[..good.len() / 2].to_vec(), "is not whole JSON"),
        (b"{\"format\": 2, \"good\": \"moved\"}".to_vec(), "is of format 2, written by a newer agent"),
        (b"{\"format\": 1, \"good\": 3}".to_vec(), "is not what it should hold"),
        (b"\xff\xfe".to_vec(), "is not whole JSON"),
        (b"null".to_vec(), "is not what it should hold"),
        (format!("{good}{good}").into_bytes(), "is not whole JSON"),
        (vec![0; 4096], "is not whole JSON"),
        ("[".repeat(100_000).into_bytes(), "is not"),
    ] {
        let b = Box_::new();
        let store = b.open();
        b.write("state.json", &content);
        let loaded = store.load_state(NOW).unwrap();
        assert_eq!(loaded.state, State::default());
        assert!(loaded.notes.len() == 1 && loaded.notes[0].contains(why), "{why}: {:?}", loaded.notes);
        assert_eq!(fs::read(b.dir().join("state.json.corrupt-1700000000")).unwrap(), content);
        assert!(!b.dir().join("state.json").exists());
        // Once more in the same second: neither is lost.
        b.write("state.json", "again");
        store.load_state(NOW).unwrap();
        assert_eq!(fs::read(b.dir().join("state.json.corrupt-1700000000.1")).unwrap(), b"again");
        assert_eq!(fs::read(b.dir().join("state.json.corrupt-1700000000")).unwrap(), content);
        assert!(store.load_state(NOW).unwrap().notes.is_empty());
    }
}

#[test]
fn state_of_an_older_agent_is_read() {
    let b = Box_::new();
    let store = b.open();
    b.write("state.json", "{\"format\": 0, \"lease_not_before\": 3, \"a_field_that_is_gone\": true}");
    let loaded = store.load_state(NOW).unwrap();
    assert_eq!(
        (loaded.state.lease_not_before, loaded.state.format, loaded.notes),
        (Some(Stamp(3)), State::FORMAT, vec![])
    );
}

#[test]
fn folders_links_and_pipes_in_place_of_files_are_set_aside() {
    let b = Box_::new();
    let store = b.open();
    fs::create_dir(b.dir().join("state.json")).unwrap();
    b.write("elsewhere", "{\"client_token\": \"x\", \"source\": \"lease\", \"saved_at\": 1}");
    symlink(b.dir().join("elsewhere"), b.dir().join("token.json")).unwrap();
    assert!(Command::new("mkfifo").arg(b.dir().join("grant.json")).status().unwrap().success());
    let loaded = store.load_state(NOW).unwrap();
    assert_eq!((loaded.notes.len(), loaded.local), (3, LocalFacts::default()), "{:?}", loaded.notes);
    store.save_state(&State::default()).unwrap();
}

#[test]
fn corrupt_secrets_and_reports_are_set_aside_without_a_word_of_them() {
    let b = Box_::new();
    let store = b.open();
    for (name, content) in [
        ("token.json", "{\"client_token\": \"hunter2\", \"source\": \"hunter2\"}"),
        ("grant.json", "{\"grant\": \"\", \"lease_id\": \"hunter2\"}"),
        ("bootstrap.jwt", "hunter2\u{1b}[2J"),
        ("outbox/aa.json", "\"hunter2\""),
    ] {
        b.write(name, content);
    }
    let other = serde_json::to_string(&report("other", 1)).unwrap();
    b.write("outbox/bb.json", other);
    store.save_report(&report("cc", 1)).unwrap();
    let loaded = store.load_state(NOW).unwrap();
    assert_eq!(loaded.local, LocalFacts { outbox: vec!["cc".to_owned()], ..LocalFacts::default() });
    let aside: Vec<_> = b.tree().into_keys().filter(|path| path.contains(".corrupt-")).collect();
    assert_eq!(aside.len(), 5, "{aside:?}");
    let told = format!("{:?}", loaded.notes);
    assert!(!told.contains("hunter2"), "{told}");
    assert!(store.load_state(NOW).unwrap().notes.iter().all(|note| !note.contains("set aside")));
}

#[test]
fn a_secret_file_open_to_others_is_tightened_and_told() {
    let b = Box_::new();
    let store = b.open();
    b.write("bootstrap.jwt", "boot.strap.jwt\n");
    fs::set_permissions(b.dir().join("bootstrap.jwt"), fs::Permissions::from_mode(0o644)).unwrap();
    let loaded = store.load_state(NOW).unwrap();
    assert!(loaded.local.bootstrap && loaded.notes[0].contains("had mode 0644"), "{:?}", loaded.notes);
    assert_eq!(b.tree()["bootstrap.jwt"], "0600");
}

#[test]
fn whatever_file_was_opened_by_hand_is_closed_again_and_told_and_release_content_stays_readable() {
    let b = Box_::new();
    let store = b.open();
    store.save_state(&State::default()).unwrap();
    store.save_report(&report("aa", 1)).unwrap();
    store.save_recording("1.jsonl", b"{}", 2).unwrap();
    store.write_docker_config("{}").unwrap();
    stage(&store, &sha(1), FILES).unwrap();
    store.write_release(&sha(1), "A=1\n", "services: {}\n").unwrap();
    let release = format!("releases/{}", sha(1));
    let ours = [
        "lock".to_owned(),
        "state.json".to_owned(),
        "outbox/aa.json".to_owned(),
        "recordings/1.jsonl".to_owned(),
        "docker/config.json".to_owned(),
        format!("{release}/.env"),
        format!("{release}/.monky-deployd.yaml"),
    ];
    let before = b.tree();
    for path in &ours {
        fs::set_permissions(b.dir().join(path), fs::Permissions::from_mode(0o644)).unwrap();
    }
    Store::open_read_only(&b.dir(), Arc::default()).load_state(NOW).unwrap();
    assert_eq!(b.tree()["state.json"], "0644", "who only looks changes nothing");
    let notes = store.load_state(NOW).unwrap().notes;
    assert_eq!(b.tree(), before);
    assert_eq!(before[&format!("{release}/compose.yaml")], "0644");
    for path in &ours {
        let told = |note: &String| note.contains(path.as_str()) && note.contains("had mode 0644");
        assert!(notes.iter().any(told), "{path}: {notes:?}");
    }
}

#[test]
fn a_bootstrap_grant_is_one_printable_word() {
    let b = Box_::new();
    let store = b.open();
    for bad in ["", " \n", "a b", "a\0", "a\nb"] {
        assert!(store.save_bootstrap(bad).is_err(), "{bad:?}");
    }
    assert!(!b.dir().join("bootstrap.jwt").exists());
}

#[test]
fn names_that_climb_are_refused() {
    let b = Box_::new();
    let store = b.open();
    for id in ["", "../x", "a/b", ".x", "a\0", &"a".repeat(65)] {
        assert!(store.save_report(&report(id, 1)).is_err() && store.drop_report(id).is_err(), "{id:?}");
        assert!(store.save_recording(id, b"", 2).is_err() || id.len() == 65, "{id:?}");
    }
    for path in
        ["", "/etc/x", "../x", "a/../../x", "a//b", "./a", "a/", "a\\b", "a\nb", ".env", ".ENV", ".monky-deployd.yaml"]
    {
        let fault = stage(&store, &sha(1), &[("compose.yaml", b""), (path, b"")]).unwrap_err();
        assert!(fault.detail.as_str().contains("a bundle may not hold"), "{path:?} {fault:?}");
    }
    for twice in [
        &[("a", b"".as_slice()), ("a", b"")],
        &[("a", b"".as_slice()), ("a/b", b"")],
        &[("a/b", b"".as_slice()), ("a", b"")],
    ] {
        assert!(stage(&store, &sha(1), twice).is_err());
    }
    assert_eq!(files::names(&b.dir().join("releases")).unwrap(), Vec::<String>::new());
}

/// Parts of names, most of them such as somebody would try who wants out.
const PARTS: &[&str] = &[
    "a",
    "a",
    "b",
    "A",
    "compose.yaml",
    "..",
    ".",
    "",
    "/",
    "a\\b",
    "x\n",
    "\u{202e}txt",
    "~",
    "%2e%2e",
    "-rf",
    " ",
    "..a",
    ".env",
    ".ENV",
    ".tmp-.env",
    ".monky-deployd.yaml",
    "current",
    "next",
    ".tmp-0",
    "état",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_its_files_are_called_a_bundle_is_there_as_it_is_and_alone_or_not_at_all(
        paths in vec(vec(select(PARTS), 1..4), 1..4)
    ) {
        let b = Box_::new();
        let store = b.open();
        stage(&store, &sha(9), FILES).unwrap();
        let staged = format!("releases/{}/", sha(1));
        // But for the release itself, and `next`, which points to it.
        let others = || -> BTreeMap<String, String> {
            let not_it = |path: &str| !path.starts_with(staged.trim_end_matches('/')) && path != "next";
            b.tree().into_iter().filter(|(path, _)| not_it(path)).collect()
        };
        let before = (others(), files::names(b.root.path()).unwrap());
        let files: Vec<(String, Vec<u8>)> =
            paths.iter().enumerate().map(|(n, parts)| (parts.join("/"), n.to_string().into_bytes())).collect();
        let lent: Vec<(&str, &[u8])> = files.iter().map(|(path, content)| (path.as_str(), content.as_slice())).collect();
        let done = stage(&store, &sha(1), &lent);
        prop_assert_eq!((others(), files::names(b.root.path()).unwrap()), before);
        let mut found: Vec<String> =
            b.tree().into_keys().filter_map(|path| path.strip_prefix(&staged).map(str::to_owned)).collect();
        found.retain(|path| b.dir().join(&staged).join(path).is_file());
        let mut expected: Vec<&str> = match done {
            Ok(()) => lent.iter().map(|(path, _)| *path).chain([".env", ".monky-deployd.yaml"]).collect(),
            Err(_) => Vec::new(),
        };
        found.sort();
        expected.sort_unstable();
        prop_assert_eq!(&found, &expected);
        for (path, content) in lent.iter().filter(|_| done.is_ok()) {
            prop_assert_eq!(&fs::read(b.dir().join(&staged).join(path)).unwrap(), content);
        }
        let climbs = paths.iter().flatten().any(|part| matches!(*part, ".." | "" | "." | "/" | "a\\b" | "x\n"));
        prop_assert!(!(climbs && done.is_ok()), "{paths:?}");
    }
}

#[test]
fn a_staged_bundle_is_readable_to_containers_and_its_env_is_not() {
    let b = Box_::new();
    let store = b.open();
    stage(&store, &sha(1), FILES).unwrap();
    let prefix = format!("releases/{}", sha(1));
    let tree = b.tree();
    let mode = |path: &str| tree[&format!("{prefix}{path}")].as_str();
    for (path, expected) in [
        ("", "0755"),
        ("/compose.yaml", "0644"),
        ("/conf", "0755"),
        ("/conf/a", "0755"),
        ("/conf/a/app.ini", "0644"),
        ("/.env", "0600"),
        ("/.monky-deployd.yaml", "0600"),
    ] {
        assert_eq!(mode(path), expected, "{path}");
    }
    let dir = store.release_dir(&sha(1));
    assert_eq!(fs::read(dir.join("conf/b.bin")).unwrap(), b"\0\xff");
    assert_eq!(fs::read_to_string(dir.join(".env")).unwrap(), "");
    assert!(fs::read_to_string(dir.join(".monky-deployd.yaml")).unwrap().ends_with("services: {}\n"));
    assert_eq!(files::names(&b.dir().join("releases")).unwrap(), [sha(1).to_string()]);
    let releases = || store.load_state(NOW).unwrap().local.releases;
    assert_eq!(releases(), [], "a release without its secrets is none that could be brought up");

    store.write_release(&sha(1), "A=1\n", "services: {a: {}}\n").unwrap();
    assert_eq!(releases(), [sha(1)]);
    stage(&store, &sha(1), FILES).unwrap();
    assert_eq!(releases(), [sha(1)], "staged again as it is, it stays complete");
    assert_eq!(b.tree()[&format!("{prefix}/.env")], "0600");
    assert!(store.write_release(&sha(2), "", "").is_err());
}

#[test]
fn next_points_to_what_was_staged_last_and_goes_with_its_release() {
    let b = Box_::new();
    let store = b.open();
    let next = || b.tree().get("next").cloned();
    for n in [1, 2, 2, 1] {
        stage(&store, &sha(n), FILES).unwrap();
        assert_eq!(next(), Some(format!("-> releases/{}", sha(n))));
    }
    store.promote(&sha(2)).unwrap();
    store.prune_releases(&[sha(1)]).unwrap();
    assert_eq!(next(), Some(format!("-> releases/{}", sha(1))), "its release is kept");
    store.prune_releases(&[]).unwrap();
    assert_eq!((next(), b.tree()["current"].clone()), (None, format!("-> releases/{}", sha(2))));
    // Nor is one left that points to nothing.
    symlink("releases/gone", b.dir().join("next")).unwrap();
    store.prune_releases(&[]).unwrap();
    assert_eq!(next(), None);
    fs::create_dir(b.dir().join("next")).unwrap();
    let refused = stage(&store, &sha(1), FILES).unwrap_err();
    assert!(refused.detail.as_str().contains("must be a link"), "{refused:?}");
}

#[test]
fn what_a_container_put_in_a_files_place_is_neither_waited_for_nor_followed() {
    let b = Box_::new();
    let store = b.open();
    stage(&store, &sha(1), FILES).unwrap();
    store.write_release(&sha(1), "A=\"hidden\"\n", "services: {a: {}}\n").unwrap();
    store.promote(&sha(1)).unwrap();
    assert_eq!(store.load_state(NOW).unwrap().local.releases, [sha(1)]);
    let dir = store.release_dir(&sha(1));
    let content = |name: &str| FILES.iter().find(|(path, _)| *path == name).unwrap().1;
    let pipe = |at: &Path| {
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        rustix::fs::mknodat(rustix::fs::CWD, at, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    };
    let endless = |at: &Path| symlink("/dev/zero", at).unwrap();
    let puts: [&dyn Fn(&Path); 2] = [&pipe, &endless];
    for put in puts {
        for name in [OVERRIDE, ".env", "compose.yaml"] {
            fs::remove_file(dir.join(name)).unwrap();
            put(&dir.join(name));
            assert_eq!(store.load_state(NOW).unwrap().local.releases, [], "{name}");
            store.values_of_releases();
            stage(&store, &sha(1), FILES).unwrap();
            let meta = fs::symlink_metadata(dir.join(name)).unwrap();
            assert!(meta.is_file(), "{name} is a file again");
            assert_eq!(fs::read(dir.join("compose.yaml")).unwrap(), content("compose.yaml"));
            store.prune_releases(&[]).unwrap();
            store.write_release(&sha(1), "A=\"hidden\"\n", "services: {a: {}}\n").unwrap();
            assert_eq!(store.load_state(NOW).unwrap().local.releases, [sha(1)]);
        }
        put(&dir.join("env.template"));
        assert_eq!(store.values_of_releases().len(), 1, "what is there of it is known");
        stage(&store, &sha(1), FILES).unwrap();
    }
}

#[test]
fn a_folder_with_the_same_content_is_kept_and_a_torn_one_replaced_in_one_step() {
    let b = Box_::new();
    let store = b.open();
    let dir = store.release_dir(&sha(1));
    stage(&store, &sha(1), FILES).unwrap();
    store.write_release(&sha(1), "A=1\n", "services: {a: {}}\n").unwrap();
    store.promote(&sha(1)).unwrap();
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    let first = inode(&dir);
    stage(&store, &sha(1), FILES).unwrap();
    assert_eq!(inode(&dir), first);

    let tears: [&dyn Fn(); 5] = [
        &|| fs::write(dir.join("compose.yaml"), "torn").unwrap(),
        &|| fs::remove_file(dir.join("conf/b.bin")).unwrap(),
        &|| fs::write(dir.join("conf/extra"), "").unwrap(),
        &|| {
            fs::remove_file(dir.join("compose.yaml")).unwrap();
            symlink("/etc/hostname", dir.join("compose.yaml")).unwrap();
        },
        &|| {
            fs::remove_dir_all(dir.join("conf")).unwrap();
            fs::write(dir.join("conf"), "").unwrap();
        },
    ];
    for tear in tears {
        let before = inode(&dir);
        tear();
        stage(&store, &sha(1), FILES).unwrap();
        assert_ne!(inode(&dir), before);
        for (path, content) in FILES {
            assert_eq!(fs::read(dir.join(path)).unwrap(), *content);
        }
        // It is the current one: what runs from it keeps its variables.
        assert_eq!(fs::read_to_string(b.dir().join("current/.env")).unwrap(), "A=1\n");
        assert_eq!(fs::read_to_string(b.dir().join("current/.monky-deployd.yaml")).unwrap(), "services: {a: {}}\n");
        assert_eq!(files::names(&b.dir().join("releases")).unwrap(), [sha(1).to_string()]);
    }
    // A file in the folder's place goes too.
    fs::write(store.release_dir(&sha(2)), "x").unwrap();
    stage(&store, &sha(2), FILES).unwrap();
    assert!(store.release_dir(&sha(2)).join("compose.yaml").is_file());
    assert_eq!(files::names(&b.dir().join("releases")).unwrap().len(), 2);
}

#[test]
fn current_is_a_relative_link_that_switches_and_never_to_nothing() {
    let b = Box_::new();
    let store = b.open();
    for n in [1, 2] {
        stage(&store, &sha(n), FILES).unwrap();
        store.promote(&sha(n)).unwrap();
        store.promote(&sha(n)).unwrap();
        assert_eq!(b.tree()["current"], format!("-> releases/{}", sha(n)));
        assert_eq!(store.load_state(NOW).unwrap().local.current, Some(sha(n)));
    }
    assert!(store.promote(&sha(3)).unwrap_err().detail.as_str().contains("must be staged first"));
    assert_eq!(store.load_state(NOW).unwrap().local.current, Some(sha(2)));
    fs::remove_file(store.current_dir()).unwrap();
    fs::create_dir(store.current_dir()).unwrap();
    assert!(store.promote(&sha(1)).unwrap_err().detail.as_str().contains("move it away"));
    assert_eq!(store.load_state(NOW).unwrap().local.current, None);
}

#[test]
fn a_directory_that_holds_something_else_is_left_as_it_is() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("etc");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(dir.join("docker")).unwrap();
    fs::write(dir.join("docker/config.json"), "theirs").unwrap();
    let refused = Store::open(&dir, Arc::default()).err().unwrap().to_string();
    assert!(refused.contains("no state directory of this agent: name another `state_dir`"), "{refused}");
    assert_eq!(fs::read_to_string(dir.join("docker/config.json")).unwrap(), "theirs");
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o755);

    fs::remove_dir_all(dir.join("docker")).unwrap();
    fs::create_dir(dir.join("lost+found")).unwrap();
    Store::open(&dir, Arc::default()).unwrap();
}

#[test]
fn pruning_keeps_what_is_named_what_is_current_and_what_is_not_ours() {
    let b = Box_::new();
    let store = b.open();
    for n in 1..=4 {
        stage(&store, &sha(n), FILES).unwrap();
        store.write_release(&sha(n), "", "services: {}\n").unwrap();
    }
    store.promote(&sha(1)).unwrap();
    fs::create_dir(b.dir().join("releases/notes")).unwrap();
    fs::create_dir(b.dir().join("releases/.tmp-dead")).unwrap();
    store.prune_releases(&[sha(3), sha(9)]).unwrap();
    let mut left = vec![sha(1).to_string(), sha(3).to_string(), "notes".to_owned()];
    left.sort();
    assert_eq!(files::names(&b.dir().join("releases")).unwrap(), left);
    let mut shas = vec![sha(1), sha(3)];
    shas.sort();
    assert_eq!(store.load_state(NOW).unwrap().local.releases, shas);

    fs::remove_file(store.current_dir()).unwrap();
    symlink("/somewhere/else", store.current_dir()).unwrap();
    assert!(store.prune_releases(&[]).unwrap_err().detail.as_str().contains("nothing was removed"));
    assert_eq!(store.load_state(NOW).unwrap().local.releases, shas);
}

#[test]
fn what_a_dead_tick_left_is_swept_by_the_next_and_only_by_it() {
    let b = Box_::new();
    let store = b.open();
    stage(&store, &sha(1), FILES).unwrap();
    let left = [".tmp-a", "outbox/.tmp-b", "docker/.tmp-c", "recordings/.tmp-d"];
    for name in left {
        b.write(name, "half");
    }
    fs::create_dir_all(b.dir().join("releases/.tmp-e/conf")).unwrap();
    fs::write(store.release_dir(&sha(1)).join(".tmp-.env"), "half").unwrap();
    symlink("releases/x", b.dir().join(".tmp-current-x")).unwrap();
    fs::create_dir(b.dir().join("docker/cli-plugins")).unwrap();
    b.write("docker/cli-plugins/docker-compose", "#!/bin/sh\n");
    drop(store);
    let before = b.tree();
    Store::open_read_only(&b.dir(), Arc::default()).load_state(NOW).unwrap();
    assert_eq!(b.tree(), before);
    b.open();
    assert!(b.tree().keys().all(|path| !path.contains(".tmp-") && !path.contains("cli-plugins")), "{:?}", b.tree());
}

#[test]
fn a_docker_configuration_stands_alone() {
    let b = Box_::new();
    let store = b.open();
    b.write("elsewhere", "kept");
    symlink(b.dir().join("elsewhere"), b.dir().join("docker/cli-plugins")).unwrap();
    store.write_docker_config("{}").unwrap();
    assert_eq!(files::names(&store.docker_config_dir()).unwrap(), ["config.json"]);
    assert_eq!(fs::read_to_string(b.dir().join("elsewhere")).unwrap(), "kept");
}

#[test]
fn only_the_last_recordings_stay() {
    let b = Box_::new();
    let store = b.open();
    for n in 10..35 {
        store.save_recording(&format!("{n}.jsonl"), b"{}", 20).unwrap();
    }
    let kept = store.recordings().unwrap();
    assert_eq!((kept.len(), kept[0].file_name().unwrap().to_str()), (20, Some("15.jsonl")));
}

#[test]
fn a_full_disk_is_told_as_such() {
    let full = fs::write("/dev/full", "x").unwrap_err();
    let cases = [(full, true), (io::Error::from_raw_os_error(122), true), (io::Error::from_raw_os_error(13), false)];
    for (source, disk_full) in cases {
        let b = Box_::new();
        let store = b.open();
        b.vault.put(Slot::SavedToken, Secret::new("s.token".to_owned()));
        let fail = || Err::<(), _>(Fail { doing: "write", path: PathBuf::from("/x/s.token"), source });
        let fault = store.fallible(fail).unwrap_err();
        assert_eq!(fault.disk_full, disk_full);
        assert!(fault.detail.as_str().starts_with("write /x/[secret:token]: "), "{fault:?}");
    }
}

/// What the child processes below do: writes of more than its file size limit, which fail or kill in the middle.
#[test]
fn child_that_cannot_write() {
    let (Some(dir), Some(how)) = (std::env::var_os("STORE_TEST_DIR"), std::env::var_os("STORE_TEST_HOW")) else {
        return;
    };
    let vault = Arc::<Vault>::default();
    let store = Store::open(Path::new(&dir), Arc::clone(&vault)).unwrap();
    let limit = rustix::process::Rlimit { current: Some(1000), maximum: Some(1000) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    if how == "fail" {
        // With a handler the write fails; without one the signal kills in the middle of it.
        signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()).unwrap();
    }
    let long = "x".repeat(5_000);
    let state = State { earlier: vec![sha(1); 1000], ..State::default() };
    vault.put(Slot::Candidate, Secret::new(long.clone()));
    vault.put(Slot::LeaseGrant, Secret::new(long.clone()));
    let outcomes = [
        store.save_state(&state),
        store.save_token(TokenSource::Lease, None, NOW),
        store.save_grant(&lease()),
        store.save_bootstrap(&long),
        store.save_report(&Report { detail: Some(long.clone()), ..report("aa", 2) }),
        store.write_release(&sha(1), &long, &long),
        store.write_docker_config(&long),
        stage(&store, &sha(1), &[("compose.yaml", long.as_bytes())]),
        stage(&store, &sha(2), &[("a", b"a"), ("compose.yaml", long.as_bytes())]),
        store.save_recording("new", long.as_bytes(), 20),
    ];
    assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
    // What could not be saved is not taken for saved.
    assert!(vault.has(&Slot::Candidate));
}

#[test]
fn a_write_that_fails_or_dies_in_the_middle_leaves_the_old_files() {
    for how in ["fail", "die"] {
        let b = Box_::new();
        let store = b.open();
        let state = State { lease_not_before: Some(Stamp(7)), ..State::default() };
        store.save_state(&state).unwrap();
        b.vault.put(Slot::Candidate, Secret::new("s.token".to_owned()));
        store.save_token(TokenSource::Lease, None, NOW).unwrap();
        store.save_report(&report("aa", 1)).unwrap();
        stage(&store, &sha(1), FILES).unwrap();
        store.write_release(&sha(1), "A=1\n", "services: {}\n").unwrap();
        store.write_docker_config("{}").unwrap();
        drop(store);
        let before = b.tree();

        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "drivers::store::tests::child_that_cannot_write", "--test-threads", "1"])
            .env("STORE_TEST_DIR", b.dir())
            .env("STORE_TEST_HOW", how)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        match how {
            "fail" => assert_eq!(status.code(), Some(0)),
            _ => assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(signal_hook::consts::SIGXFSZ)),
        }
        if how == "die" {
            assert!(b.tree().keys().any(|path| path.contains(".tmp-")), "it did not die in the middle");
        }
        let store = b.open();
        assert_eq!(b.tree(), before);
        let loaded = store.load_state(NOW).unwrap();
        assert_eq!((loaded.state, loaded.notes), (state, vec![]));
        assert_eq!(b.lent(Slot::SavedToken).as_deref(), Some("s.token"));
        assert_eq!(store.load_report("aa").unwrap(), Some(report("aa", 1)));
        assert_eq!(fs::read_to_string(store.release_dir(&sha(1)).join(".env")).unwrap(), "A=1\n");
    }
}

/// A disk on which nothing of a container that ran as root can be removed.
struct Stubborn;

impl disk::Disk for Stubborn {
    fn change(&self, change: &disk::Change<'_>, carry_out: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
        match change {
            disk::Change::RemoveTree(path) if path.join("roots").exists() => {
                Err(io::Error::from(io::ErrorKind::PermissionDenied))
            }
            _ => carry_out(),
        }
    }
}

#[test]
fn what_a_container_left_and_nobody_can_remove_stops_no_tick_and_is_told() {
    let b = Box_::new();
    let open = || Store::open_on(Arc::new(Stubborn), &b.dir(), Arc::clone(&b.vault)).unwrap();
    let shas = ["a", "b"].map(|letter| Sha::try_from(letter.repeat(64)).unwrap());
    let store = open();
    for _ in 0..3 {
        for sha in &shas {
            store.stage_bundle(sha, [("compose.yaml", &b"services: {}"[..])]).unwrap();
        }
        fs::create_dir(b.dir().join("releases").join(shas[0].as_str()).join("roots")).unwrap();
        // It is told, and the release is gone all the same.
        assert!(store.prune_releases(&[]).is_err());
        assert_eq!(store.load_state(NOW).unwrap().local.releases, []);
    }
    drop(store);
    let notes = open().load_state(NOW).unwrap().notes;
    assert!(notes.len() == 3 && notes.iter().all(|note| note.contains("rm -rf")), "{notes:?}");
}

#[test]
fn a_bundles_own_file_is_never_swept_away_whatever_its_name() {
    let b = Box_::new();
    let sha = Sha::try_from("c".repeat(64)).unwrap();
    let store = b.open();
    store.stage_bundle(&sha, [("compose.yaml", &b"x"[..]), (".tmp-conf", b"mine"), ("d/.tmp-.env", b"too")]).unwrap();
    assert!(store.stage_bundle(&sha, [("compose.yaml", &b"x"[..]), (".tmp-.env", b"no")]).is_err());
    drop(store);
    b.open();
    let release = b.dir().join("releases").join(sha.as_str());
    assert_eq!(fs::read(release.join(".tmp-conf")).unwrap(), b"mine");
    assert_eq!(fs::read(release.join("d/.tmp-.env")).unwrap(), b"too");
}
