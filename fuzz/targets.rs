//! What each fuzz target does with bytes from outside: reads them as the agent would, and checks what holds of whatever
//! was accepted. `make fuzz` feeds it new bytes, `tests/corpora.rs` the committed ones.
//!
//! Invariant: a target asserts more than "it did not panic" wherever more is promised.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use monky_deployd::config::Config;
use monky_deployd::drivers::replay::{Recording, replay};
use monky_deployd::drivers::vault::{Secret, Slot, Vault};
use monky_deployd::effects::bundle::{Bundle, BundlePath};
use monky_deployd::effects::compose_file;
use monky_deployd::effects::containers::parse_inspect;
use monky_deployd::effects::env_template::EnvTemplate;
use monky_deployd::effects::manifest::{Manifest, Scope};
use monky_deployd::effects::model::Model;
use monky_deployd::effects::registry_auth::RegistryAuth;
use monky_deployd::effects::state::{State, TokenSource};
use monky_deployd::effects::words::{MAX_CHARS, Words};
use monky_deployd::effects::{Effect, Op, Stamp};
use monky_deployd::fsm::stages::{Done, Exit};
use monky_deployd::fsm::{Boot, Input, Machine, Options};

use disk::Disk;
use script::Script;

#[path = "../tests/model/disk.rs"]
mod disk;
#[expect(dead_code, reason = "what a scenario needs and a target does not")]
#[path = "../tests/common/script.rs"]
mod script;

/// What a target does with its bytes. It panics if something does not hold.
pub type Target = fn(&[u8]);

/// Every target: its name, which is also its corpus's, and what it does.
pub const TARGETS: &[(&str, Target)] = &[
    ("bundle", bundle),
    ("compose_model", compose_model),
    ("config", config),
    ("env_template", env_template),
    ("inspect", inspect),
    ("manifest", manifest),
    ("recording", recording),
    ("registry_auth", registry_auth),
    ("state", state),
    ("stderr", stderr),
];

const SCOPE: Scope<'_> = Scope { kv_mount: "monky", env_id: "plant-7" };
const CANARY: &str = "c4n4ry-\u{fc}-+/=value";

fn vault() -> &'static Vault {
    static VAULT: OnceLock<Vault> = OnceLock::new();
    VAULT.get_or_init(|| {
        let vault = Vault::default();
        vault.put(Slot::Env("CANARY".to_owned()), Secret::new(CANARY.to_owned()));
        vault
    })
}

/// A bundle that was accepted is within the limits, names only files below its folder, and reads back the same.
pub fn bundle(bytes: &[u8]) {
    let Ok(bundle) = Bundle::read(bytes) else { return };
    assert!(bundle.len() <= 256 && bundle.total_bytes() <= 16 << 20);
    let mut folded = BTreeSet::new();
    for (path, content) in bundle.iter() {
        let path = path.as_str();
        assert!(content.len() <= 1 << 20);
        assert!(BundlePath::try_from(path).is_ok(), "{path:?} would not be taken again");
        assert!(path.split('/').all(|part| !["", ".", ".."].contains(&part)), "{path:?}");
        assert!(!path.contains(['\\', '\0']) && !path.contains(char::is_control), "{path:?}");
        assert!(folded.insert(path.to_lowercase()), "{path:?} is there twice when case is folded");
    }
    let again: serde_json::Map<String, serde_json::Value> = bundle
        .iter()
        .map(|(path, content)| {
            use base64::Engine as _;
            let content = base64::engine::general_purpose::STANDARD.encode(content);
            (path.to_string(), serde_json::json!({ "base64": content }))
        })
        .collect();
    let again = Bundle::read(serde_json::json!({ "files": again }).to_string().as_bytes()).expect("it reads back");
    assert_eq!(again.content_sha(), bundle.content_sha());
    let _ = bundle.facts(None, &SCOPE);
    let _ = compose_file::check(&bundle);
}

/// What Compose says of the model, whatever it says: no mount of an accepted model leaves the bundle unseen.
pub fn compose_model(bytes: &[u8]) {
    static BUNDLE: OnceLock<Bundle> = OnceLock::new();
    let bundle = BUNDLE.get_or_init(|| {
        let files = serde_json::json!({"files": {"compose.yaml": "services: {}", "conf/app.toml": "x"}});
        Bundle::read(files.to_string().as_bytes()).expect("a bundle")
    });
    let Ok(model) = Model::parse(bytes, bundle, "/state/releases/r", "/state", "unix:///var/run/docker.sock") else {
        return;
    };
    assert!(!model.services.is_empty());
    for service in model.services.values() {
        assert!(service.scale > 0);
        assert!(service.mounted.is_empty() || service.mounts.is_some());
        for path in &service.mounted {
            assert!(path == "." || bundle.digest_below(path).is_some(), "{path:?} is not in the bundle");
        }
    }
}

/// A configuration that was accepted shows as a file that reads back the same; one that was not says what is wrong.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Config::parse("config.yaml", text) {
        Ok(config) => {
            let shown = config.show();
            let again = Config::parse("shown.yaml", &shown).unwrap_or_else(|error| panic!("{error}\n{shown}"));
            assert_eq!(again, config, "{shown}");
        }
        Err(error) => {
            assert!(!error.problems.is_empty());
            assert!(error.problems.iter().all(|problem| !problem.what.is_empty()));
        }
    }
}

/// What a template renders to, it can be told from again; no value is left as a reference.
pub fn env_template(bytes: &[u8]) {
    let Ok(template) = EnvTemplate::parse(bytes) else { return };
    let value = |name: &str| Some(zeroize::Zeroizing::new(format!("\"{name}'\\$\n#{{}} ")));
    let env = template.render(value).expect("every variable has a value");
    for line in env.lines() {
        let (key, value) = line.split_once('=').expect("KEY=VALUE");
        assert!(!key.is_empty() && value.starts_with('"') && value.ends_with('"') && value.len() > 1, "{line:?}");
        assert!(!key.starts_with("COMPOSE_") && !key.starts_with("DOCKER_"), "{line:?}");
    }
    let names: BTreeSet<String> = template.variables().into_iter().collect();
    assert!(template.values_in(&env).iter().all(|(name, _)| names.contains(name)));
    assert!(names.is_empty() || template.render(|_| None).is_err());
}

/// Whatever `docker inspect` says: no known secret comes out.
pub fn inspect(bytes: &[u8]) {
    let Ok(containers) = parse_inspect(bytes, vault()) else { return };
    let shown = serde_json::to_string(&containers).expect("containers are data");
    assert!(!shown.contains(CANARY));
}

/// A manifest that was accepted stays within its environment, and no two entries give one variable.
pub fn manifest(bytes: &[u8]) {
    let Ok(manifest) = Manifest::parse(bytes, &SCOPE) else { return };
    let mut seen = BTreeSet::new();
    for name in manifest.variables() {
        assert!(seen.insert(name.to_owned()), "{name} twice");
        assert!(!name.starts_with("COMPOSE_") && !name.starts_with("DOCKER_"));
    }
    for entry in &manifest.entries {
        let path = &entry.path;
        assert!(path.starts_with("monky/plant-7/"), "{path}");
        assert!(path.split('/').all(|part| !["", ".", ".."].contains(&part)), "{path}");
        assert_ne!(entry.version, Some(0));
    }
}

/// A recording that can be read can be replayed, and the replay says something.
pub fn recording(bytes: &[u8]) {
    let Ok(recording) = Recording::read(bytes) else { return };
    assert!(!replay(&recording).text().is_empty());
}

/// A credential that is usable makes a Docker configuration with this one credential; it is never shown.
pub fn registry_auth(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(auth) = RegistryAuth::parse(text, "registry.example") else { return };
    assert!(!auth.username().is_empty() && !auth.registry().is_empty());
    let config: serde_json::Value = serde_json::from_str(&auth.docker_config()).expect("it is JSON");
    assert_eq!(config.as_object().map(|keys| keys.keys().collect::<Vec<_>>()), Some(vec![&"auths".to_owned()]));
    // What is shown does not depend on who and what it is: a password may well read like that text itself.
    let other = serde_json::json!({"registry": auth.registry(), "username": "u", "password": "p"}).to_string();
    let other = RegistryAuth::parse(&other, "registry.example").expect("the registry was taken before");
    assert_eq!(format!("{auth:?}"), format!("{other:?}"));
}

/// Whatever `state.json` holds, in a world in which all goes well the desired bundle is applied within three ticks.
pub fn state(bytes: &[u8]) {
    let Ok(state) = serde_json::from_slice::<State>(bytes) else { return };
    let desired = script::sha("z");
    if state.attempts.contains_key(&desired) {
        return; // It may be quarantined, and then it is not to be deployed.
    }
    let kept = state.good.iter().map(|good| &good.sha).chain(state.unfinished.iter().map(|goal| &goal.sha));
    let mut disk = Disk { releases: kept.map(|sha| (sha.clone(), true)).collect(), ..Disk::default() };
    disk.current = state.unfinished.as_ref().map(|goal| &goal.sha).or(state.good.last().map(|good| &good.sha)).cloned();
    disk.token = Some(TokenSource::Lease);
    disk.state = state;
    let last = (0..3).map(|hour| script::NOW.plus_s(3600 * hour)).map(|now| tick_on(&mut disk, now)).last();
    let done = last.expect("three ticks");
    assert_eq!((done.exit, done.sha.as_ref()), (Exit::Ok, Some(&desired)), "{done:?}");
    assert_eq!(disk.current, Some(desired));
    assert_eq!((&disk.state.unfinished, disk.outbox.len()), (&None, 0));
}

/// A tick in a world in which all goes well, and what it leaves.
fn tick_on(disk: &mut Disk, mut now: Stamp) -> Done {
    let mut script = Script::default().desired("z", 1).facts(|facts| facts.meta.agent.allow_rollback = true);
    let mut transition = Machine::boot(Boot {
        settings: script::settings(),
        options: Options::default(),
        state: disk.state.clone(),
        local: disk.local(),
        seed: 7,
        now,
    });
    // A day of looking once a second at what never gets healthy.
    for _ in 0..100_000 {
        if let Some(done) = transition.next.done() {
            return done.clone();
        }
        let answer = |effect: Effect| {
            now = if let Op::WaitUntil(wait) = &effect.op { wait.until.max(now) } else { now.plus_s(1) };
            disk.done(&effect.op);
            Input { now, answers: effect.id, event: script.answer(&effect.op) }
        };
        let inputs: Vec<Input> = transition.effects.into_iter().map(answer).collect();
        transition = transition.next.steps(inputs);
    }
    panic!("it does not end: {:?}", transition.next.stage());
}

/// What a child wrote becomes one line without control characters, not too long, and without the secrets in it.
pub fn stderr(bytes: &[u8]) {
    let middle = bytes.len() / 2;
    let (before, after) = (bytes.get(..middle).unwrap_or_default(), bytes.get(middle..).unwrap_or_default());
    // ANSI sequences may not be put together around a secret, nor lines be cut within one.
    let text = [before, CANARY.as_bytes(), after].concat();
    let words = Words::of(&text, vault());
    for text in std::iter::once(&words.text).chain(&words.warnings) {
        let text = text.as_str();
        assert!(!text.contains(CANARY), "{text:?}");
        assert!(text.chars().count() <= MAX_CHARS, "{} characters", text.chars().count());
        assert!(!text.contains(|c: char| c.is_control()), "{text:?}");
    }
}
