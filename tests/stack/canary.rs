//! No secret is anywhere but where it belongs: in `.env`, the token and grant files, `docker/config.json` and the containers.

use std::fs;
use std::path::{Path, PathBuf};

use monky_deployd::sandbox::http::Fault;
use monky_deployd::sandbox::tenancy::Call;
use rustix::process::Signal;
use serde_json::json;

use crate::common::forms::forms_of;
use crate::common::rig::seen::may_hold_secrets;
use crate::common::rig::{Ran, Rig, executable, on_each, on_one, wait_until};

/// What the agent said, and everything that it left behind.
struct Net {
    secrets: Vec<String>,
    journal: String,
}

impl Net {
    fn of(&mut self, ran: &Ran) {
        self.journal.push_str(&ran.stdout);
        self.journal.push_str(&ran.stderr);
    }

    /// A token or grant of which the tests get to know only from its file.
    fn learn(&mut self, rig: &Rig) {
        self.secrets.extend([rig.token(), rig.grant()]);
    }

    fn is_clean(&self, what: &str, text: &str) {
        for secret in &self.secrets {
            for form in forms_of(secret) {
                assert!(!text.contains(&form), "{what} holds {form:?}: {text}");
            }
        }
    }

    fn holds_nothing(&self, rig: &Rig) {
        for what in ["cmdline", "environ", "recording"] {
            let seen = fs::read(rig.dir.path().join("seen").join(what)).unwrap_or_default();
            self.is_clean(&format!("the {what} of a tick"), &String::from_utf8_lossy(&seen));
        }
        let left: Vec<_> = fs::read_dir(rig.tmp()).unwrap().collect();
        assert!(left.is_empty(), "TMPDIR holds {left:?}");
        self.is_clean("the journal", &self.journal);
        for args in [["status", "--format", "json"], ["status", "--format", "text"], ["config", "show", ""]] {
            let args: Vec<&str> = args.into_iter().filter(|arg| !arg.is_empty()).collect();
            let ran = rig.run(&args);
            self.is_clean(&args.join(" "), &format!("{}{}", ran.stdout, ran.stderr));
        }
        let requests: Vec<String> =
            rig.tenancy.requests().iter().map(|r| format!("{} {}\n{}", r.method, r.path, r.body)).collect();
        self.is_clean("what tenancy was sent", &requests.join("\n"));
        for (path, (.., content)) in rig.everything() {
            if !may_hold_secrets(&path) {
                self.is_clean(&path.display().to_string(), &String::from_utf8_lossy(&content));
            }
        }
    }
}

/// Puts a recorder before the client and before the Compose plugin that it starts. Each writes down what `/proc` shows of
/// it to everyone on the machine, its arguments, and to its user, its environment, before it becomes the real program.
fn record_children(rig: &mut Rig) {
    let dir = rig.dir.path().to_owned();
    let seen = dir.join("seen");
    fs::create_dir(&seen).unwrap();
    let wrapper = PathBuf::from(rig.setting("docker_bin"));
    let version = wrapper.file_name().unwrap().to_str().unwrap().trim_start_matches("docker-");
    let plugin = Path::new(&rig.stack["STACK_DIR"]).join("compose").join(version).join("docker-compose");
    let real = dir.join("compose");
    fs::copy(&plugin, &real).unwrap();
    let (seen, dir, plugin) = (seen.display(), dir.display(), plugin.display());
    let note = format!("for what in cmdline environ; do cat /proc/$$/$what >>'{seen}'/$what; done");
    executable(&rig.dir.path().join("plugin"), &format!("{note}\nexec '{}' \"$@\"", real.display()));
    let mount = "mount --bind \"$0\" \"$1\" && shift && exec \"$@\"";
    let run = format!(
        "{note}\nexec unshare --mount --propagation slave sh -c '{mount}' '{dir}/plugin' '{plugin}' '{}' \"$@\"",
        wrapper.display()
    );
    executable(&rig.dir.path().join("docker"), &run);
    rig.set("docker_bin", &format!("{dir}/docker"));
}

#[test]
fn no_secret_is_anywhere_but_where_it_belongs() {
    on_each(|rig| {
        record_children(rig);
        let password = "c4n4ry $HOME \"quoted\" \\ \u{fc}/+?&=";
        let lines = "BEGIN-c4n4ry-two\nmiddle-c4n4ry-two\nEND-c4n4ry-two";
        rig.secret("db", json!({"value": password}));
        rig.secret("key", json!({"value": lines}));
        rig.secret("image", json!({"value": "registry.invalid/c4n4ry-image:1"}));
        rig.registry_secret();
        let bootstrap = rig.bootstrap();
        let credential = format!("{}:{}", rig.stack["STACK_REGISTRY_USER"], rig.stack["STACK_REGISTRY_PASSWORD"]);
        let mut net = Net {
            secrets: vec![
                password.to_owned(),
                lines.to_owned(),
                "middle-c4n4ry-two".to_owned(),
                "c4n4ry-image".to_owned(),
                rig.stack["STACK_REGISTRY_PASSWORD"].clone(),
                credential,
                bootstrap,
            ],
            journal: String::new(),
        };
        let entries =
            [rig.entry("PASSWORD", "db"), rig.entry("KEY", "key"), rig.entry("IMAGE", "image"), rig.registry_entry()];
        let recording = rig.dir.path().join("seen/recording");
        let loud = ["--log-level", "TRACE", "tick", "--record", recording.to_str().unwrap()];

        // A good deploy, whose report waits in the outbox.
        let good = "services: {web: {image: '@web:1', environment: {P: '${PASSWORD}', K: '${KEY}'}}}\n";
        rig.tenancy.fail_always(Call::Report, Some(Fault::Drop));
        rig.desire(&rig.bundle(1, good, &entries, &[]));
        let ran = rig.run(&loud);
        assert_eq!(ran.status, 0, "{ran:?}");
        net.of(&ran);
        net.learn(rig);
        assert_eq!(rig.outbox().len(), 1);
        assert!(fs::read_to_string(&recording).unwrap().contains("\"op\":\"write_release\""), "nothing was recorded");
        net.holds_nothing(rig);

        // A service that tells what it was given.
        let tells = "services: {web: {image: '@tool:1', environment: {P: '${PASSWORD}', K: '${KEY}'}, command: [sh, -c, 'echo \"$$P\" and \"$$K\"; exit 1']}}\n";
        rig.desire(&rig.bundle(2, tells, &entries, &[]));
        let ran = rig.run(&loud);
        assert_eq!(ran.status, 1, "{ran:?}");
        assert!(ran.stdout.contains("UNHEALTHY") && ran.stderr.contains("web says: "), "{ran:?}");
        net.of(&ran);
        net.holds_nothing(rig);

        // A value where Compose and the engine quote it.
        let quoted = "services: {web: {image: '${IMAGE}'}}\n";
        rig.desire(&rig.bundle(3, quoted, &entries, &[]));
        let ran = rig.run(&loud);
        assert!(ran.stdout.contains("PULL_FAILED"), "{ran:?}");
        net.of(&ran);
        net.holds_nothing(rig);
        let port = "services: {web: {image: '@web:1', ports: ['${PASSWORD}:80']}}\n";
        rig.desire(&rig.bundle(4, port, &entries, &[]));
        let ran = rig.run(&loud);
        assert_eq!(ran.status, 1, "{ran:?}");
        net.of(&ran);
        net.holds_nothing(rig);

        // All of it is told.
        rig.tenancy.fail_always(Call::Report, None);
        rig.tick();
        assert_eq!(rig.reports().len(), 4);
        net.holds_nothing(rig);

        // Both were there to be seen: the client and its plugin, in each of their calls.
        let seen = |what: &str| {
            String::from_utf8_lossy(&fs::read(rig.dir.path().join("seen").join(what)).unwrap()).into_owned()
        };
        let lines = seen("cmdline");
        for program in ["/docker\0", "/docker-compose\0"] {
            for call in ["config\0-q\0", "pull\0", "up\0-d\0"] {
                let found = lines.split("/bin/sh\0").any(|line| line.contains(program) && line.contains(call));
                assert!(found, "{program:?} … {call:?} was not seen");
            }
        }
        assert!(seen("environ").contains("DOCKER_CONFIG="));
    });
}

#[test]
fn a_wrong_registry_password_is_not_told_either() {
    on_one(|rig| {
        rig.secret("registry", json!({"value": format!("{}:wr0ng-c4n4ry", rig.stack["STACK_REGISTRY_USER"])}));
        rig.desire(&rig.bundle(1, "services: {web: {image: '@web:1'}}\n", &[rig.registry_entry()], &[]));
        let mut net = Net { secrets: vec!["wr0ng-c4n4ry".to_owned()], journal: String::new() };
        let ran = rig.run(&["--log-level", "TRACE", "tick"]);
        assert!(ran.stdout.contains("PULL_FAILED"), "{ran:?}");
        net.of(&ran);
        net.learn(rig);
        net.holds_nothing(rig);
    });
}

#[test]
fn what_a_healthcheck_prints_is_no_leak_either_not_even_before_a_secret_was_read() {
    on_one(|rig| {
        let file = rig.dir.path().join("seen/recording");
        fs::create_dir(file.parent().unwrap()).unwrap();
        let recorded = ["tick", "--record", file.to_str().unwrap()];
        let quoted = || fs::read_to_string(&file).unwrap().matches("told [secret:P]").count();
        let mut net = Net {
            secrets: ["c4n4ry-old", "c4n4ry-mid", "c4n4ry-new"].map(str::to_owned).to_vec(),
            journal: String::new(),
        };
        let bundle = |rig: &Rig, generation: i64, retries: u32| {
            let check =
                format!("{{test: [CMD, sh, -c, 'echo told \"$$P\"; exit 1'], interval: 1s, retries: {retries}}}");
            let compose =
                format!("services: {{web: {{image: '@web:1', environment: {{P: '${{P}}'}}, healthcheck: {check}}}}}\n");
            let meta = json!({"env_id": rig.env_id, "generation": generation, "agent": {"healthy_timeout_s": 12}});
            rig.bundle(
                generation,
                &compose,
                &[rig.entry("P", "db"), rig.registry_entry()],
                &[("meta.json", &meta.to_string())],
            )
        };

        rig.registry_secret();
        rig.secret("db", json!({"value": "c4n4ry-old"}));
        rig.desire(&bundle(rig, 1, 1));
        let ran = rig.run(&recorded);
        assert!(ran.stdout.contains("UNHEALTHY") && ran.stderr.contains("with 1: told [secret:P]"), "{ran:?}");
        assert!(quoted() > 0);
        net.of(&ran);
        net.learn(rig);
        net.holds_nothing(rig);

        // The same bundle with another value: what is written takes the place of what the container still tells.
        rig.secret("db", json!({"value": "c4n4ry-mid"}));
        let ran = rig.run(&[&recorded[..], &["--force"]].concat());
        assert!(ran.stdout.contains("UNHEALTHY") && quoted() > 0, "{ran:?}");
        net.of(&ran);
        net.holds_nothing(rig);

        // The secret is another one now, which a dry run does not read; the container still tells the old one.
        rig.secret("db", json!({"value": "c4n4ry-new"}));
        rig.desire(&bundle(rig, 2, 1000));
        let ran = rig.run(&[&recorded[..], &["--dry-run"]].concat());
        assert!(ran.status == 0 && quoted() > 0, "{ran:?}");
        net.of(&ran);
        net.holds_nothing(rig);

        // A tick that finishes what another one began has not read it either.
        let agent = rig.start(&["tick"]);
        let tells_the_new_one = || {
            let log = |id: &String| rig.docker(&["inspect", "--format", "{{json .State.Health.Log}}", id]).stdout;
            rig.ids("web").iter().any(|id| String::from_utf8_lossy(&log(id)).contains("c4n4ry-new"))
        };
        wait_until("the new container's check ran", tells_the_new_one);
        agent.signal(Signal::KILL);
        drop(agent);
        let ran = rig.run(&recorded);
        assert!(ran.stdout.contains("UNHEALTHY") && ran.stderr.contains("that was interrupted"), "{ran:?}");
        assert!(quoted() > 0);
        net.of(&ran);
        net.holds_nothing(rig);
    });
}
