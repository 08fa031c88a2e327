//! The command line as an operator and a package meet it. No stack is needed.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// A grant in its outer form; nobody signed it.
const GRANT: &str = "eyJhbGciOiJFZERTQSJ9.eyJlbnZfaWQiOiJwbGFudC03In0.c2lnbmF0dXJl";

/// A box that knows nobody: whatever it would dial is closed.
struct Home {
    dir: tempfile::TempDir,
}

struct Ran {
    status: i32,
    out: String,
    err: String,
}

impl Home {
    fn new() -> Home {
        let home = Home { dir: tempfile::tempdir().unwrap() };
        home.configure("");
        home
    }

    fn configure(&self, more: &str) {
        let text = format!(
            "env_id: plant-7\nstate_dir: {}\ntenancy:\n  scheme: http\n  host: 127.0.0.1\n  port: 1\n\
             bao:\n  addr: http://127.0.0.1:1\n{more}",
            self.state_dir().display()
        );
        fs::write(self.config(), text).unwrap();
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("config.yaml")
    }

    fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, b"")
    }

    fn run_with(&self, args: &[&str], stdin: &[u8]) -> Ran {
        let config = self.config();
        let mut all = vec!["--config", config.to_str().unwrap()];
        all.extend(args);
        run(Command::new(env!("CARGO_BIN_EXE_monky-deployd")).args(all), stdin)
    }
}

fn bare(args: &[&str]) -> Ran {
    run(Command::new(env!("CARGO_BIN_EXE_monky-deployd")).args(args).env_remove("MONKY_DEPLOYD_CONFIG"), b"")
}

fn run(command: &mut Command, stdin: &[u8]) -> Ran {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // One that does not read its input has closed it by now.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let output = child.wait_with_output().unwrap();
    Ran {
        status: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The names of all commands, as `--help` lists them.
fn commands() -> Vec<String> {
    let help = bare(&["--help"]).out;
    let listed = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    listed.lines().map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn a_wrong_command_line_ends_with_2_and_says_so_on_stderr() {
    for args in [
        &[][..],
        &["nonsense"],
        &["tick", "--nonsense"],
        &["tick", "more"],
        &["bootstrap"],
        &["completions", "nonsense"],
        &["config"],
        &["status", "--format", "xml"],
        &["--log-level", "LOUD", "tick"],
        &["replay"],
    ] {
        let ran = bare(args);
        assert_eq!(ran.status, 2, "{args:?}: {}", ran.err);
        assert!(ran.out.is_empty() && ran.err.contains("--help"), "{args:?}: {} {}", ran.out, ran.err);
    }
}

#[test]
fn help_names_every_command_and_version_is_the_packages() {
    let named = commands();
    for command in
        ["tick", "bootstrap", "status", "history", "check", "replay", "graph", "config", "completions", "man"]
    {
        assert!(named.contains(&command.to_owned()), "{command}: {named:?}");
        let help = bare(&[command, "--help"]);
        assert_eq!((help.status, help.err.as_str()), (0, ""));
        assert!(help.out.contains(&format!("Usage: monky-deployd {command}")), "{}", help.out);
    }
    let version = bare(&["--version"]);
    assert_eq!((version.status, version.out), (0, format!("monky-deployd {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn there_is_a_man_page_for_each_command_and_for_all_that_a_page_refers_to() {
    let mut pages = vec![Vec::<String>::new()];
    let mut known = 0;
    while let Some(path) = pages.pop() {
        let args: Vec<&str> = std::iter::once("man").chain(path.iter().map(String::as_str)).collect();
        let page = bare(&args);
        assert_eq!((page.status, page.err.as_str()), (0, ""), "{args:?}");
        let text = page.out.replace("\\-", "-");
        assert!(
            text.contains(&format!(
                ".TH {} 1 ",
                ["monky-deployd"].into_iter().chain(args[1..].iter().copied()).collect::<Vec<_>>().join("-")
            )),
            "{text}"
        );
        known += 1;
        // A page names those below it as `monky-deployd-config-show(1)` on a line of its own.
        let below = text.lines().filter_map(|line| line.strip_prefix("monky-deployd-")?.strip_suffix("(1)"));
        pages.extend(below.map(|name| name.split('-').map(str::to_owned).collect()));
    }
    assert!(known > commands().len(), "{known}");
    let main = bare(&["man"]).out;
    for section in ["FILES", "ENVIRONMENT", "\"EXIT STATUS\""] {
        assert!(main.contains(&format!(".SH {section}\n")), "{section}");
    }
    assert_eq!(bare(&["man", "nonsense"]).status, 2);
}

#[test]
fn help_says_where_the_configuration_is_looked_for() {
    assert!(bare(&["--help"]).out.contains("[default: $MONKY_DEPLOYD_CONFIG, then /etc/monky-deployd/config.yaml]"));
}

#[test]
fn a_wrong_configuration_ends_with_78_and_names_file_line_key_and_the_nearest_key() {
    let home = Home::new();
    home.configure("stabel_s: 3\n");
    let expected = format!("{}:9: stabel_s: no such key; did you mean `stable_s`?\n", home.config().display());
    for args in [
        &["tick"][..],
        &["tick", "--dry-run"],
        &["status"],
        &["history"],
        &["config", "show"],
        &["config", "check"],
        &["check"],
        &["check", "--format", "json"],
        &["bootstrap", "--grant-file", "-"],
    ] {
        let ran = home.run_with(args, GRANT.as_bytes());
        assert_eq!((ran.status, ran.out.as_str(), &ran.err), (78, "", &expected), "{args:?}");
    }
    assert!(!home.state_dir().exists(), "nothing was made");

    for (more, says) in [
        ("stable_s: 3\nstable_s: 4\n", "stable_s"),
        ("on_unhealthy: explode\n", "keep, rollback"),
        ("stable_s: &x 3\n", "anchor"),
        ("compose_project: 'A B'\n", "compose_project"),
    ] {
        home.configure(more);
        let ran = home.run(&["config", "check"]);
        assert_eq!(ran.status, 78, "{more:?}");
        let place = format!("{}:", home.config().display());
        assert!(ran.err.starts_with(&place) && ran.err.contains(says), "{more:?}: {}", ran.err);
    }
}

#[test]
fn without_a_configuration_it_is_said_where_one_is_looked_for() {
    let home = Home::new();
    let ran = bare(&["--config", "/nowhere/c.yaml", "tick"]);
    assert_eq!(ran.status, 78);
    assert!(ran.err.contains("/nowhere/c.yaml") && ran.err.contains("--config"), "{}", ran.err);

    // The option, then the variable, then /etc.
    let agent = || Command::new(env!("CARGO_BIN_EXE_monky-deployd"));
    let by_variable = run(agent().args(["config", "check"]).env("MONKY_DEPLOYD_CONFIG", home.config()), b"");
    assert_eq!(by_variable.status, 0, "{}", by_variable.err);
    let both = ["--config", home.config().to_str().unwrap(), "config", "check"].map(str::to_owned);
    let by_option = run(agent().args(both).env("MONKY_DEPLOYD_CONFIG", "/nowhere"), b"");
    assert_eq!(by_option.status, 0, "{}", by_option.err);
    let empty = run(agent().args(["config", "check"]).env("MONKY_DEPLOYD_CONFIG", ""), b"");
    assert!(empty.err.contains("/etc/monky-deployd/config.yaml") || empty.status == 0, "{}", empty.err);
}

#[test]
fn the_configuration_that_is_shown_is_one_and_shows_the_same() {
    let home = Home::new();
    home.configure("site: 'Hall #3: \"rack\" 2'\nstable_s: 7\nlaptop_mode: true\n");
    let shown = home.run(&["config", "show"]);
    assert_eq!((shown.status, shown.err.as_str()), (0, ""));
    assert!(shown.out.contains("stable_s: 7") && shown.out.contains("pull_timeout_s: 600"), "{}", shown.out);
    fs::write(home.config(), &shown.out).unwrap();
    assert_eq!(home.run(&["config", "show"]).out, shown.out);
    let checked = home.run(&["config", "check"]);
    let said = format!(
        "{}: ok\nwhether the files and servers that it names are there is told by `monky-deployd check`\n",
        home.config().display()
    );
    assert_eq!((checked.status, checked.out), (0, said));
}

#[test]
fn the_example_configuration_is_one() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("config.example.yaml");
    let ran = bare(&["--config", example.to_str().unwrap(), "config", "check"]);
    assert_eq!(ran.status, 0, "{}", ran.err);
}

#[test]
fn an_example_that_nobody_has_touched_is_told_as_one() {
    let told = "not yet of this box: still the example's are env_id, tenancy.host, bao.addr\n";
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("config.example.yaml");
    let ran = bare(&["--config", example.to_str().unwrap(), "config", "check"]);
    assert!(ran.status == 0 && ran.out.contains(told), "{}", ran.out);
    // What the package brings are its lines that are no comments.
    let home = Home::new();
    let text = fs::read_to_string(example).unwrap();
    let shipped: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    fs::write(home.config(), shipped.join("\n")).unwrap();
    assert!(home.run(&["config", "check"]).out.contains(told));
    fs::write(home.config(), shipped.join("\n").replace("tenancy.example", "tenancy.my.org")).unwrap();
    assert!(home.run(&["config", "check"]).out.contains("still the example's are env_id, bao.addr\n"));
}

#[test]
fn a_box_where_nothing_has_run_yet_is_told_what_comes_next() {
    let home = Home::new();
    let status: Value = serde_json::from_str(&home.run(&["status", "--format", "json"]).out).unwrap();
    let note = status["notes"][0].as_str().unwrap();
    assert!(note.starts_with("nothing has run here yet: store a bootstrap grant"), "{note}");
    assert!(home.run(&["status"]).out.contains("note        nothing has run here yet"));
    home.run(&["tick"]);
    assert!(!home.run(&["status"]).out.contains("nothing has run here yet"));
}

#[test]
fn the_status_of_an_empty_box_is_that_and_makes_nothing() {
    let home = Home::new();
    let text = home.run(&["status"]);
    assert_eq!((text.status, text.err.as_str()), (0, ""));
    for says in ["plant-7", "applied     nothing yet", "token       none", "reports     0 waiting"] {
        assert!(text.out.contains(says), "{says:?}: {}", text.out);
    }
    let status: Value = serde_json::from_str(&home.run(&["status", "--format", "json"]).out).unwrap();
    assert_eq!((&status["env_id"], &status["applied"]), (&json!("plant-7"), &Value::Null));
    let history = home.run(&["history"]);
    assert_eq!(history.status, 0, "{}", history.err);
    assert!(!home.state_dir().exists());
}

#[test]
fn a_bootstrap_grant_is_taken_from_a_file_or_from_stdin() {
    let home = Home::new();
    let stored = || fs::read_to_string(home.state_dir().join("bootstrap.jwt")).unwrap();
    let file = home.dir.path().join("grant");
    fs::write(&file, format!("  {GRANT}\n")).unwrap();
    let ran = home.run(&["bootstrap", "--grant-file", file.to_str().unwrap()]);
    assert_eq!((ran.status, stored().as_str()), (0, GRANT), "{}", ran.err);
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(home.state_dir()), mode(home.state_dir().join("bootstrap.jwt"))), (0o700, 0o600));
    assert!(home.run(&["status"]).out.contains("a bootstrap grant waits"));

    let other = GRANT.replace("c2ln", "c2lm");
    let ran = home.run_with(&["bootstrap", "--grant-file", "-"], other.as_bytes());
    assert_eq!((ran.status, stored()), (0, other.clone()), "{}", ran.err);
    assert!(!ran.out.contains(&other) && !ran.err.contains(&other), "a grant is not told");
}

#[test]
fn what_is_no_grant_is_refused_and_the_stored_one_stays() {
    let home = Home::new();
    home.run_with(&["bootstrap", "--grant-file", "-"], GRANT.as_bytes());
    let long = GRANT.repeat(2000);
    for garbage in [
        &b""[..],
        b" \n",
        b"two words",
        b"-----BEGIN PRIVATE KEY-----\nMC4CAQ\n-----END PRIVATE KEY-----\n",
        b"{\"grant\": \"x\"}",
        b"hvs.CAESIJ",
        b"a..c",
        b"\xff\xfe.a.b",
        b"a.b\0.c",
        long.as_bytes(),
    ] {
        let ran = home.run_with(&["bootstrap", "--grant-file", "-"], garbage);
        let shown = String::from_utf8_lossy(garbage);
        assert_eq!((ran.status, ran.out.as_str()), (1, ""), "{shown:.80}: {}", ran.err);
        assert!(ran.err.contains("grant"), "{}", ran.err);
        assert!(!ran.err.contains("CAESIJ") && !ran.err.contains("MC4CAQ"), "it may be another secret: {}", ran.err);
        assert_eq!(fs::read_to_string(home.state_dir().join("bootstrap.jwt")).unwrap(), GRANT);
    }
    let ended = "eyJhbGciOiJFZERTQSJ9.eyJleHAiOjEwMDB9.c2ln";
    let ran = home.run_with(&["bootstrap", "--grant-file", "-"], ended.as_bytes());
    assert_eq!(ran.status, 1);
    assert!(ran.err.contains("it ended at 1970-01-01T00:16:40Z; ask tenancy for a new one"), "{}", ran.err);
    assert_eq!(fs::read_to_string(home.state_dir().join("bootstrap.jwt")).unwrap(), GRANT);
    // {"env_id":"plant-8"}
    let strange = "eyJhbGciOiJFZERTQSJ9.eyJlbnZfaWQiOiJwbGFudC04In0.c2ln";
    let ran = home.run_with(&["bootstrap", "--grant-file", "-"], strange.as_bytes());
    assert_eq!((ran.status, ran.out.as_str()), (1, ""));
    let told = "it is for the environment \"plant-8\", and `env_id` of this box is \"plant-7\"; ";
    assert!(ran.err.contains(told) && !ran.err.contains("eyJ"), "{}", ran.err);
    assert_eq!(fs::read_to_string(home.state_dir().join("bootstrap.jwt")).unwrap(), GRANT);
    // {}: nothing is known of it.
    let silent = "eyJhbGciOiJFZERTQSJ9.e30.c2ln";
    assert_eq!(home.run_with(&["bootstrap", "--grant-file", "-"], silent.as_bytes()).status, 0);
    home.run_with(&["bootstrap", "--grant-file", "-"], GRANT.as_bytes());
    let ran = home.run(&["bootstrap", "--grant-file", "/nowhere/grant"]);
    assert_eq!(ran.status, 1);
    assert!(ran.err.contains("/nowhere/grant"), "{}", ran.err);
}

#[test]
fn completions_are_what_the_shell_takes_and_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = bare(&["completions", shell]);
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{shell}");
        for command in commands() {
            assert!(ran.out.contains(&command), "{shell}: {command}");
        }
        // Where the shell is there it reads its script itself.
        let there = Command::new(shell).arg("--version").output().is_ok_and(|output| output.status.success());
        if there {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("completions");
            fs::write(&file, &ran.out).unwrap();
            assert!(Command::new(shell).arg("-n").arg(&file).status().unwrap().success(), "{shell}");
        }
    }
}

#[test]
fn the_man_page_is_one_and_names_every_command() {
    let ran = bare(&["man"]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    assert!(ran.out.contains(".TH monky-deployd 1"), "{:.300}", ran.out);
    for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"] {
        assert!(ran.out.contains(&format!(".SH {section}")), "{section}");
    }
    // `help` has its own way to be read.
    for command in commands().iter().filter(|name| *name != "help") {
        assert!(ran.out.contains(&format!("monky\\-deployd\\-{command}(1)")), "{command}");
    }
}

#[test]
fn results_go_to_stdout_and_the_journal_to_stderr() {
    let home = Home::new();
    let ran = home.run(&["tick"]);
    assert_eq!(ran.status, 75);
    assert_eq!(ran.out, "deferred TENANCY_UNREACHABLE\n");
    assert!(ran.err.contains(" WARN deferred TENANCY_UNREACHABLE: check-in: "), "{}", ran.err);
    assert!(ran.err.contains("127.0.0.1:1") && ran.err.contains("->"), "where, and what to do: {}", ran.err);

    let quiet = home.run(&["--log-level", "error", "tick"]);
    assert_eq!((quiet.out.as_str(), quiet.err.as_str()), ("deferred TENANCY_UNREACHABLE\n", ""));
    let loud = home.run(&["--log-level", "DEBUG", "tick"]);
    assert!(loud.err.contains("DEBUG checkin: asks for Checkin"), "{}", loud.err);
}

#[test]
fn what_is_json_is_json() {
    let home = Home::new();
    let ran = home.run(&["--log-format", "json", "--log-level", "DEBUG", "tick", "--format", "json"]);
    assert_eq!(ran.status, 75);
    let result: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&result["word"], &result["code"]), (&json!("deferred"), &json!("TENANCY_UNREACHABLE")));
    assert_eq!(ran.out.lines().count(), 1);
    assert!(ran.err.lines().count() > 2, "{}", ran.err);
    for line in ran.err.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["level"].is_string() && line["message"].is_string() && line["timestamp"].is_string(), "{line}");
    }
}

#[test]
fn under_systemd_a_line_has_its_priority_and_no_time_of_its_own() {
    let home = Home::new();
    let mut agent = Command::new(env!("CARGO_BIN_EXE_monky-deployd"));
    let ran = run(agent.arg("--config").arg(home.config()).arg("tick").env("JOURNAL_STREAM", "8:1"), b"");
    let prioritised = |line: &str| line.starts_with('<') && line.as_bytes().get(2) == Some(&b'>');
    assert!(ran.err.lines().count() >= 1 && ran.err.lines().all(prioritised), "{}", ran.err);
    assert!(ran.err.lines().any(|line| line.starts_with("<4>deferred TENANCY_UNREACHABLE: ")), "{}", ran.err);
}

#[test]
fn a_laptop_that_is_offline_ends_quietly() {
    let home = Home::new();
    home.configure("laptop_mode: true\n");
    let ran = home.run(&["tick"]);
    assert_eq!((ran.status, ran.out.as_str()), (0, "offline\n"));
    assert!(!ran.err.contains("WARN") && !ran.err.contains("ERROR"), "{}", ran.err);
}

#[test]
fn a_state_directory_that_cannot_be_made_is_said_so() {
    let home = Home::new();
    fs::write(home.state_dir(), "a file").unwrap();
    let ran = home.run(&["tick"]);
    assert_eq!((ran.status, ran.out.as_str()), (1, "failed STAGE_FAILED\n"));
    let json: Value = serde_json::from_str(&home.run(&["tick", "--format", "json"]).out).unwrap();
    assert_eq!(
        (&json["code"], &json["exit"]),
        (&"STAGE_FAILED".into(), &"failed".into()),
        "each end is told as JSON too"
    );
    assert!(ran.err.contains("STAGE_FAILED") && ran.err.contains(home.state_dir().to_str().unwrap()), "{}", ran.err);
}

#[test]
fn a_reader_that_goes_away_is_no_crash() {
    let home = Home::new();
    // Nor is it one while a tick is at work.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut agent = Command::new(env!("CARGO_BIN_EXE_monky-deployd"));
    let both = (writer.try_clone().unwrap(), writer);
    let status = agent.arg("--config").arg(home.config()).arg("tick").stdout(both.0).stderr(both.1).status().unwrap();
    assert_eq!(status.code(), Some(75));
    assert!(home.state_dir().join("state.json").exists());

    for args in [&["config", "show"][..], &["status"], &["man"], &["completions", "bash"], &["graph"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut agent = Command::new(env!("CARGO_BIN_EXE_monky-deployd"));
        let output = agent.arg("--config").arg(home.config()).args(args).stdout(writer).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(!err.contains("panicked"), "{args:?}: {err}");
    }
}
