//! The state directory under trouble of the box's own: a read-only or full disk, foreign owners, two ticks at once, and
//! an agent that is asked to end in every stage. The built binary in processes of its own, on the stand-ins.
//!
//! Invariant: whatever the trouble, the tick ends with a code and words, what was there is there, and the lock is free.

#![cfg(feature = "sandbox")]

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::rig::{Ran, Running, wait_until};
use common::root::root;
use common::stand::{Secrets, Stand};
use monky_deployd::sandbox::docker::{Behaviour, Fault as DockerFault, Pace};
use monky_deployd::sandbox::http::Fault;
use monky_deployd::sandbox::{openbao, tenancy};
use serde_json::Value;

const EXE: &str = env!("CARGO_BIN_EXE_monky-deployd");

/// A box that has a bundle to deploy.
fn new_box() -> Stand {
    let secrets = Secrets { db_password: "db-password".to_owned(), pull_password: "pull-password".to_owned() };
    let stand = Stand::new(Path::new(EXE), "env-lab-01", secrets, "");
    for image in ["shop/web:1.0", "shop/web:2.0"] {
        stand.image(image, Behaviour::GetsHealthy(Pace { looks: 1, ms: 0 }), &[]);
    }
    stand.desire(1, "web:1.0", &[]);
    // A call that is under way when the agent is asked to end is waited for.
    let config = fs::read_to_string(stand.config_file()).unwrap();
    let config =
        config.replace("\n  port:", "\n  timeout_s: 5\n  port:").replace("\n  addr:", "\n  timeout_s: 5\n  addr:");
    fs::write(stand.config_file(), config).unwrap();
    stand
}

fn start(stand: &Stand, args: &[&str]) -> Running {
    let mut command = Command::new(EXE);
    command.env_clear().arg("--config").arg(stand.config_file()).args(args);
    Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

fn tick(stand: &Stand) -> Ran {
    start(stand, &["tick"]).ended()
}

fn applied(stand: &Stand) {
    let ran = tick(stand);
    assert!(ran.status == 0 && ran.stdout.starts_with("applied "), "{ran:?}");
}

fn lock_is_free(stand: &Stand) {
    File::open(stand.config.state_dir.join("lock")).unwrap().try_lock().expect("somebody holds the lock");
}

/// Every file and what it holds, but for the lock.
fn content(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut out = BTreeMap::new();
    for found in fs::read_dir(dir).unwrap() {
        let path = found.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            out.extend(content(&path));
        } else if meta.is_file() && !path.ends_with("lock") {
            out.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    out
}

/// Something mounted on the state directory, until dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn mount(args: &[&str], at: &Path) -> Mounted {
        let done = Command::new("mount").args(args).arg(at).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        Mounted(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// A call of a deploy that is not answered, so that the agent is found in the middle of it.
enum Held {
    Tenancy(tenancy::Call),
    Bao(openbao::Call),
    /// A verb of Docker.
    Docker(&'static str),
}

#[test]
fn an_agent_that_is_asked_to_end_in_any_stage_ends_with_75_and_the_next_tick_finishes() {
    let calls = [
        Held::Tenancy(tenancy::Call::Checkin),
        Held::Tenancy(tenancy::Call::Bundle),
        Held::Docker("version"),
        Held::Docker("config"),
        Held::Tenancy(tenancy::Call::Lease),
        Held::Bao(openbao::Call::Login),
        Held::Bao(openbao::Call::Lookup),
        Held::Bao(openbao::Call::Read),
        Held::Docker("pull"),
        Held::Docker("up"),
        Held::Docker("ps"),
        Held::Docker("inspect"),
        Held::Tenancy(tenancy::Call::Report),
    ];
    // Most of it is waiting.
    std::thread::scope(|scope| calls.iter().for_each(|held| drop(scope.spawn(|| is_asked_to_end_at(held)))));
}

fn is_asked_to_end_at(held: &Held) {
    let stand = new_box();
    let path = match held {
        Held::Tenancy(call) => {
            stand.tenancy.fail_always(*call, Some(Fault::Silence));
            match call {
                tenancy::Call::Checkin => "/checkin",
                tenancy::Call::Bundle => "/bundles/",
                tenancy::Call::Lease => "/leases",
                tenancy::Call::Report => "/reports",
            }
        }
        Held::Bao(call) => {
            stand.bao.fail_always(*call, Some(Fault::Silence));
            match call {
                openbao::Call::Login => "/login",
                openbao::Call::Lookup => "/lookup-self",
                openbao::Call::Read => "/data/",
                openbao::Call::Renew | openbao::Call::Revoke => unreachable!(),
            }
        }
        Held::Docker(verb) => {
            stand.docker.edit(|world| world.go_wrong(verb, Some(1), DockerFault::Hang)).unwrap();
            verb
        }
    };
    let agent = start(&stand, &["tick"]);
    wait_until(path, || match held {
        Held::Tenancy(_) => stand.tenancy.requests().iter().any(|request| request.path.contains(path)),
        Held::Bao(_) => stand.bao.requests().iter().any(|request| request.path.contains(path)),
        Held::Docker(_) => stand.docker.calls().unwrap().iter().any(|call| call.args.iter().any(|arg| arg == path)),
    });
    agent.signal(rustix::process::Signal::TERM);
    let ran = agent.ended();
    assert_eq!((ran.status, ran.stdout.as_str()), (75, "interrupted\n"), "{path}: {ran:?}");
    lock_is_free(&stand);
    for path in content(&stand.config.state_dir).keys() {
        assert!(!path.to_string_lossy().contains(".tmp-"), "{path:?} was left behind");
    }
    match held {
        Held::Tenancy(call) => stand.tenancy.fail_always(*call, None),
        Held::Bao(call) => stand.bao.fail_always(*call, None),
        Held::Docker(_) => stand.docker.edit(|world| world.mishaps.clear()).unwrap(),
    }
    applied_or_told(&stand, path);
}

/// The next tick finishes what is left to do.
fn applied_or_told(stand: &Stand, at: &str) {
    let ran = tick(stand);
    let told_only = at == "/reports" && ran.stdout.starts_with("unchanged ");
    assert!(ran.status == 0 && (told_only || ran.stdout.starts_with("applied ")), "{at}: {ran:?}");
    assert!(tick(stand).stdout.starts_with("unchanged "), "{at}");
    let reports = stand.tenancy.reports();
    assert_eq!(reports.len(), 1, "{at}: {reports:?}");
    assert_eq!(reports[0]["result"], "applied");
}

#[test]
fn of_two_ticks_at_once_one_is_told_that_the_other_is_at_work() {
    let stand = new_box();
    stand.tenancy.fail_always(tenancy::Call::Checkin, Some(Fault::Silence));
    let first = start(&stand, &["tick"]);
    wait_until("the first has checked in", || {
        !stand.tenancy.checkins().is_empty() || !stand.tenancy.requests().is_empty()
    });
    let before = content(&stand.config.state_dir);
    let second = tick(&stand);
    assert_eq!((second.status, second.stdout.as_str()), (75, "locked\n"), "{second:?}");
    assert!(second.stderr.contains("another tick holds the lock"), "{second:?}");
    assert_eq!(content(&stand.config.state_dir), before);
    first.signal(rustix::process::Signal::KILL);
    drop(first);
    stand.tenancy.fail_always(tenancy::Call::Checkin, None);
    applied(&stand);
    lock_is_free(&stand);
}

#[test]
fn a_tick_that_was_killed_is_in_the_history_with_what_is_known_of_it() {
    let stand = new_box();
    stand.bootstrap();
    let history = || {
        let ran = start(&stand, &["history", "--format", "json"]).ended();
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    stand.bao.fail_always(openbao::Call::Login, Some(Fault::Silence));
    let killed = start(&stand, &["tick"]);
    wait_until("it logs in", || !stand.bao.requests().is_empty());
    let now = history();
    assert_eq!((now.len(), &now[0]["outcome"], &now[0]["exit"]), (1, &Value::from("at_work"), &Value::Null), "{now:?}");
    killed.signal(rustix::process::Signal::KILL);
    drop(killed);
    stand.bao.fail_always(openbao::Call::Login, None);

    let dead = history().pop().unwrap();
    assert_eq!((&dead["outcome"], &dead["why"]), (&Value::from("interrupted"), &Value::from("new sha")), "{dead}");
    let detail = dead["detail"].as_str().unwrap();
    assert!(detail.contains("it was killed, or the box went down, in stage token"), "{dead}");
    assert!(detail.contains(" is desired "), "{dead}");
    assert_eq!(dead["sha"].as_str().unwrap().len(), 64, "{dead}");
    let replayed = start(&stand, &["replay", dead["recording"].as_str().unwrap()]).ended();
    assert!(replayed.status == 0 && replayed.stdout.contains("not complete"), "{replayed:?}");

    applied(&stand);
    let all = history();
    assert_eq!((all.len(), &all[1]["outcome"], &all[1]["sha"]), (2, &Value::from("applied"), &dead["sha"]), "{all:?}");
}

#[test]
fn a_rollback_that_was_killed_is_told_as_one_by_status_plan_and_history() {
    let stand = new_box();
    let config = fs::read_to_string(stand.config_file()).unwrap() + "on_unhealthy: rollback\n";
    fs::write(stand.config_file(), config).unwrap();
    stand.bootstrap();
    applied(&stand);
    let says = |args: &[&str]| start(&stand, args).ended().stdout;
    let json = |args: &[&str]| serde_json::from_str::<Value>(&says(&[args, &["--format", "json"]].concat())).unwrap();
    let good = json(&["status"]);
    assert_eq!((&good["at_work_since"], &good["rolls_back"]), (&Value::Null, &Value::Null));

    stand.image("shop/web:2.0", Behaviour::GetsUnhealthy(Pace { looks: 1, ms: 0 }), &[]);
    stand.desire(2, "web:2.0", &[]);
    // The first `up` is that of the new bundle.
    for fault in [DockerFault::Slow(0), DockerFault::Hang] {
        stand.docker.edit(|world| world.go_wrong("up", Some(1), fault)).unwrap();
    }
    let current = || fs::read_link(stand.config.state_dir.join("current")).unwrap();
    let first = current();
    let killed = start(&stand, &["tick"]);
    wait_until("the new bundle is current", || current() != first);
    wait_until("the former one is current again", || current() == first);
    let text = says(&["status"]);
    assert!(
        text.contains("\nat work     a tick, since 20") && text.contains(": this tick or the next goes on"),
        "{text}"
    );
    killed.signal(rustix::process::Signal::KILL);
    drop(killed);

    let status = json(&["status"]);
    let short = |sha: &Value| sha.as_str().unwrap()[..12].to_owned();
    assert_eq!((&status["unfinished"], &status["at_work_since"]), (&good["applied"]["sha"], &Value::Null), "{status}");
    assert_eq!((&status["last_result"], &status["last_at"]), (&Value::from("failed"), &status["last_error"]["at"]));
    let (back, failed) = (short(&status["unfinished"]), short(&status["rolls_back"]));
    let text = says(&["status"]);
    let told = format!("\nunfinished  a rollback to {back}, since {failed} failed: the next tick goes on with it\n");
    assert!(text.contains(&told), "{text}");

    let plan = says(&["tick", "--dry-run"]);
    assert!(plan.contains(&format!("a rollback to {back}, since {failed} failed, was interrupted")), "{plan}");
    assert!(
        plan.contains("\n  recreate  web: its image is none of those that ") && !plan.contains("remove    "),
        "{plan}"
    );

    // It may have been killed before it called Docker.
    stand.docker.edit(|world| world.mishaps.clear()).unwrap();
    let ran = tick(&stand);
    assert!(ran.status == 1 && ran.stdout.starts_with(&format!("rolled_back {failed}")), "{ran:?}");
    let last = says(&["history", "--format", "json"]);
    let last: Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["outcome"], &last["why"]),
        (&Value::from("rolled_back"), &Value::from("finishing an interrupted rollback")),
        "{last}"
    );
}

#[test]
fn a_read_only_disk_is_told_nothing_is_called_and_the_next_tick_goes_on() {
    if !root() {
        return;
    }
    let stand = new_box();
    applied(&stand);
    let state_dir = stand.config.state_dir.clone();
    stand.desire(2, "web:2.0", &[]);
    let (before, calls) = (content(&state_dir), stand.tenancy.requests().len());
    let bind = Mounted::mount(&["--bind", state_dir.to_str().unwrap()], &state_dir);
    let remounted = Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&state_dir).status().unwrap();
    assert!(remounted.success());
    let ran = tick(&stand);
    assert_eq!((ran.status, ran.stdout.as_str()), (1, "failed STAGE_FAILED\n"), "{ran:?}");
    assert!(
        ran.stderr.contains("Read-only file system") && ran.stderr.contains("mount of the state directory"),
        "{ran:?}"
    );
    assert_eq!((content(&state_dir), stand.tenancy.requests().len()), (before, calls));
    drop(bind);
    applied(&stand);
    lock_is_free(&stand);
}

#[test]
fn a_disk_without_room_for_the_state_itself_keeps_the_old_one_and_is_told_to_tenancy() {
    if !root() {
        return;
    }
    let stand = new_box();
    let state_dir = stand.config.state_dir.clone();
    fs::create_dir(&state_dir).unwrap();
    let _disk = Mounted::mount(&["-t", "tmpfs", "-o", "size=400k,mode=0700", "none"], &state_dir);
    applied(&stand);
    // Not even an empty file has a place.
    let filler = state_dir.join("recordings/filler");
    assert_eq!(fill(&filler).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    stand.desire(2, "web:2.0", &[]);
    let before = content(&state_dir);
    let ran = tick(&stand);
    assert!(ran.status == 1 && ran.stdout.ends_with("DISK_FULL\n"), "{ran:?}");
    assert!(ran.stderr.contains("No space left on device") && ran.stderr.contains("free space"), "{ran:?}");
    assert_eq!(content(&state_dir), before);
    lock_is_free(&stand);
    // It cannot be written down, so the next check-in says it.
    tick(&stand);
    let (_, told) = stand.tenancy.checkins().pop().unwrap();
    assert!(told["last_error"].as_str().unwrap().starts_with("DISK_FULL"), "{told}");
    fs::remove_file(filler).unwrap();
    applied(&stand);
}

#[test]
fn a_disk_with_too_little_room_to_keep_a_grant_asks_for_no_lease_and_is_told_to_tenancy() {
    if !root() {
        return;
    }
    let stand = new_box();
    let state_dir = stand.config.state_dir.clone();
    fs::create_dir(&state_dir).unwrap();
    let _disk = Mounted::mount(&["-t", "tmpfs", "-o", "size=600k,mode=0700", "none"], &state_dir);
    applied(&stand);
    fs::remove_file(state_dir.join("token.json")).unwrap();
    fs::remove_file(state_dir.join("grant.json")).unwrap();
    // Room for the state, but not for all that a tick has to keep.
    let filler = state_dir.join("recordings/filler");
    fill(&filler).unwrap_err();
    let file = File::options().write(true).open(&filler).unwrap();
    file.set_len(file.metadata().unwrap().len() - (36 << 10)).unwrap();
    drop(file);
    stand.desire(2, "web:2.0", &[]);
    let leases = || stand.tenancy.requests().iter().filter(|request| request.path.ends_with("/leases")).count();
    let before = leases();
    for _ in 0..3 {
        let ran = start(&stand, &["tick", "--force"]).ended();
        assert!(ran.status == 1 && ran.stdout.ends_with("DISK_FULL\n"), "{ran:?}");
    }
    assert_eq!(leases(), before);
    let (_, told) = stand.tenancy.checkins().pop().unwrap();
    assert!(told["last_error"].as_str().unwrap().starts_with("DISK_FULL"), "{told}");
    fs::remove_file(filler).unwrap();
    let ran = start(&stand, &["tick", "--force"]).ended();
    assert!(ran.stdout.starts_with("applied "), "{ran:?}");
    assert_eq!(leases(), before + 1);
}

/// Writes until there is no room.
fn fill(path: &Path) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut file = File::create(path)?;
    loop {
        file.write_all(&[b'x'; 512])?;
    }
}

#[test]
fn a_state_directory_of_another_user_is_left_alone_and_a_file_of_another_user_is_named() {
    if !root() {
        return;
    }
    let stand = new_box();
    applied(&stand);
    let state_dir = stand.config.state_dir.clone();
    stand.desire(2, "web:2.0", &[]);
    let before = content(&state_dir);
    chown(&state_dir, Some(4321), Some(4321)).unwrap();
    let ran = tick(&stand);
    assert_eq!((ran.status, ran.stdout.as_str()), (1, "failed STAGE_FAILED\n"), "{ran:?}");
    assert!(ran.stderr.contains("belongs to uid 4321") && ran.stderr.contains("run the agent as its user"), "{ran:?}");
    assert_eq!(content(&state_dir), before);

    // Now as that user, to whom one file does not belong.
    let copy = stand.dir().join("agent");
    fs::copy(EXE, &copy).unwrap();
    for dir in [stand.dir().to_owned(), stand.dir().join("bin")] {
        fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    }
    let all = Command::new("chown").args(["-R", "4321:4321"]).arg(&state_dir).status().unwrap();
    assert!(all.success());
    for (name, status) in [("state.json", 1), ("token.json", 1), ("grant.json", 1)] {
        let file = state_dir.join(name);
        if !file.exists() {
            continue;
        }
        chown(&file, Some(0), Some(0)).unwrap();
        let mut command = Command::new(&copy);
        command.env_clear().arg("--config").arg(stand.config_file()).arg("tick").uid(4321).gid(4321);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!((output.status.code(), &*out), (Some(status), "failed STAGE_FAILED\n"), "{name}: {err}");
        assert!(err.contains(name) && err.contains("Permission denied") && err.contains("owner"), "{name}: {err}");
        assert_eq!(content(&state_dir), before, "{name}");
        chown(&file, Some(4321), Some(4321)).unwrap();
    }
    lock_is_free(&stand);
    let back = Command::new("chown").args(["-R", "0:0"]).arg(&state_dir).status().unwrap();
    assert!(back.success());
    applied(&stand);
}

#[test]
fn a_configuration_that_may_not_be_read_is_told_with_what_to_do() {
    if !root() {
        return;
    }
    let stand = new_box();
    let copy = stand.dir().join("agent");
    fs::copy(EXE, &copy).unwrap();
    fs::set_permissions(stand.dir(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(stand.config_file(), Permissions::from_mode(0o600)).unwrap();
    let mut command = Command::new(&copy);
    command.env_clear().arg("--config").arg(stand.config_file()).arg("status").uid(4321).gid(4321);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    let told = format!("{}: may not be read by this user: run this as the agent's user", stand.config_file().display());
    assert!(output.status.code() == Some(78) && err.contains(&told), "{err}");
}

#[test]
fn files_that_were_opened_by_hand_are_closed_by_the_next_tick_and_told() {
    let stand = new_box();
    applied(&stand);
    let state_dir = stand.config.state_dir.clone();
    let env = fs::canonicalize(state_dir.join("current")).unwrap().join(".env");
    let opened = [state_dir.join("state.json"), state_dir.join("token.json"), env];
    for file in &opened {
        fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    }
    let ran = tick(&stand);
    assert!(ran.status == 0 && ran.stdout.starts_with("unchanged "), "{ran:?}");
    for file in &opened {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(ran.stderr.contains(name) && ran.stderr.contains("open to others; it is 0600 now"), "{ran:?}");
    }
    let state: Value = serde_json::from_slice(&fs::read(&opened[0]).unwrap()).unwrap();
    assert_eq!(state["last_result"], "applied");
}

/// Puts something there.
type Make = fn(&Path);

fn fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

#[test]
fn nothing_waits_for_a_fifo_that_lies_where_a_file_should() {
    let stand = new_box();
    applied(&stand);
    let run = |args: &[&str]| start(&stand, args).ended();

    let recording = stand.config.state_dir.join("recordings/zz.jsonl");
    fifo(&recording);
    let ran = run(&["history", "--format", "json"]);
    assert!(ran.status == 0 && ran.stdout.lines().count() == 1 && ran.stderr.contains("a FIFO"), "{ran:?}");
    let ran = run(&["replay", recording.to_str().unwrap()]);
    assert!(ran.status == 1 && ran.stderr.contains("a FIFO"), "{ran:?}");

    let record = stand.dir().join("record");
    fifo(&record);
    let ran = run(&["tick", "--record", record.to_str().unwrap()]);
    assert!(ran.status == 0 && ran.stderr.contains("the recording could not be written"), "{ran:?}");
    // Not even if somebody holds the other end, and reads nothing.
    let _held = fs::OpenOptions::new().read(true).write(true).open(&record).unwrap();
    let ran = run(&["tick", "--record", record.to_str().unwrap()]);
    assert!(ran.status == 0 && ran.stderr.contains("it is a FIFO (a named pipe), and no file"), "{ran:?}");
    let ran = run(&["tick", "--record", "/dev/stdout"]);
    assert!(ran.status == 0 && ran.stdout.contains("{\"line\":\"header\""), "{ran:?}");

    let config = fs::read_to_string(stand.config_file()).unwrap();
    let ca = stand.dir().join("ca.pem");
    fifo(&ca);
    let with_ca = config.replace("scheme: http\n", &format!("scheme: https\n  ca_file: {}\n", ca.display()));
    fs::write(stand.config_file(), with_ca).unwrap();
    for args in [&["tick"][..], &["tick", "--dry-run"], &["check"]] {
        let ran = run(args);
        assert!(format!("{}{}", ran.stdout, ran.stderr).contains("it is a FIFO (a named pipe)"), "{args:?} {ran:?}");
    }

    fs::remove_file(stand.config_file()).unwrap();
    fifo(&stand.config_file());
    let ran = run(&["config", "check"]);
    assert!(ran.status == 78 && ran.stderr.contains("it is a FIFO (a named pipe), and no file"), "{ran:?}");
    lock_is_free(&stand);
}

#[test]
fn a_thing_of_the_wrong_kind_is_seen_by_check_status_and_history_and_its_remedy_helps() {
    let stand = new_box();
    applied(&stand);
    let state_dir = stand.config.state_dir.clone();
    let folder: Make = |at| fs::create_dir(at).unwrap();
    let file: Make = |at| fs::write(at, "").unwrap();
    let cases: [(&str, Make); 9] = [
        ("lock", folder),
        ("lock", fifo),
        ("recordings", file),
        ("outbox", file),
        ("releases", file),
        ("docker", file),
        ("current", folder),
        ("next", folder),
        ("docker/config.json", folder),
    ];
    for (name, make) in cases {
        let (at, aside) = (state_dir.join(name), state_dir.join("kept"));
        fs::rename(&at, &aside).unwrap();
        make(&at);
        let told = format!("{} is ", at.display());
        let checked = start(&stand, &["check"]).ended();
        let remedy = format!("sudo mv {0} {0}.aside", at.display());
        assert!(checked.status == 1 && checked.stdout.contains(&told), "{name}: {checked:?}");
        assert!(
            checked.stdout.contains(&remedy) && !checked.stdout.contains("install the Docker"),
            "{name}: {checked:?}"
        );
        let status = start(&stand, &["status"]).ended();
        assert!(status.status == 0 && status.stdout.contains(&format!("note        {told}")), "{name}: {status:?}");
        assert!(!status.stdout.contains("nothing has run here yet"), "{name}: {status:?}");
        let history = start(&stand, &["history"]).ended();
        assert!(history.stderr.contains(&told), "{name}: {history:?}");
        // What the remedy does.
        fs::rename(&at, stand.dir().join("moved")).unwrap();
        let ran = tick(&stand);
        assert_eq!(ran.status, 0, "{name}: {ran:?}");
        let moved = stand.dir().join("moved");
        if moved.is_dir() { fs::remove_dir(moved) } else { fs::remove_file(moved) }.unwrap();
        if at.is_dir() {
            fs::remove_dir_all(&at).unwrap();
        }
        fs::rename(&aside, &at).unwrap();
    }
}

#[test]
fn a_file_or_folder_that_its_own_user_closed_to_itself_is_mended_by_the_next_tick() {
    if !root() {
        return;
    }
    let stand = new_box();
    applied(&stand);
    let state_dir = stand.config.state_dir.clone();
    let copy = stand.dir().join("agent");
    fs::copy(EXE, &copy).unwrap();
    for dir in [stand.dir().to_owned(), stand.dir().join("bin")] {
        fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    }
    assert!(Command::new("chown").args(["-R", "4321:4321"]).arg(&state_dir).status().unwrap().success());
    let run = |args: &[&str]| {
        let mut command = Command::new(&copy);
        command.env_clear().arg("--config").arg(stand.config_file()).args(args).uid(4321).gid(4321);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let cases = [
        ("state.json", 0o600),
        ("token.json", 0o600),
        ("lock", 0o600),
        ("docker/config.json", 0o600),
        ("outbox", 0o700),
    ];
    for (name, right) in cases {
        let at = state_dir.join(name);
        fs::set_permissions(&at, Permissions::from_mode(0o000)).unwrap();
        let (_, out, err) = run(&["check"]);
        assert!(out.contains("WARNING  state_dir") && out.contains("the next tick mends it"), "{name}: {out} {err}");
        let (_, out, err) = run(&["tick"]);
        assert!(
            err.contains(&format!("had mode 0000, closed to its own user; it is {right:04o} now")),
            "{name}: {err}"
        );
        assert!(!out.contains("STAGE_FAILED"), "{name}: {out} {err}");
        assert_eq!(fs::metadata(&at).unwrap().permissions().mode() & 0o7777, right, "{name}");
    }
}

#[test]
fn what_was_set_aside_is_told_by_check_until_it_is_removed_with_what_was_lost() {
    let stand = new_box();
    applied(&stand);
    let state_dir = stand.config.state_dir.clone();
    for (name, lost) in [("grant.json", "a grant that may have lived"), ("outbox/x.json", "a report: ")] {
        fifo_in_place_of(&state_dir.join(name));
        let said = start(&stand, &["check"]).ended();
        assert!(said.stdout.contains("is a FIFO (a named pipe), and no file; the next tick sets it aside"), "{said:?}");
        assert!(!said.stdout.contains("deploys again"), "{said:?}");
        let ran = tick(&stand);
        assert!(ran.status == 0 && ran.stderr.contains("and no file: set aside as "), "{ran:?}");
        let said = start(&stand, &["check"]).ended();
        assert!(said.stdout.contains("WARNING  set_aside") && said.stdout.contains(lost), "{said:?}");
    }
    let status = start(&stand, &["status"]).ended();
    fs::remove_file(state_dir.join("lock")).unwrap();
    let without = start(&stand, &["status"]).ended();
    assert!(status.status == 0 && !without.stdout.contains("nothing has run here yet"), "{without:?}");
}

fn fifo_in_place_of(path: &Path) {
    let _ = fs::remove_file(path);
    fifo(path);
}
