//! A crash at every effect and at every change of a file, and what the next ticks make of it.
//!
//! The real loop, machine, recorder, vault and store run in a world that answers from memory (`crash/world.rs`), on a
//! disk that remembers what of it is durable (`crash/disk.rs`). At every moment at which something is about to change,
//! or just has, everything that a kill or a loss of power could leave is kept; each of these boxes is then started again.
//!
//! Invariant: a box is judged by what lies on its disk and by what the world was told, never by what the agent thinks.

#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;
#[path = "crash/disk.rs"]
mod disk;
#[path = "crash/world.rs"]
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::script::{NOW, settings, sha};
use disk::{Crash, Entry, Image, Lie, Moment, Power, image_of, restore};
use monky_deployd::drivers::Driver as _;
use monky_deployd::drivers::record::{self, Recorder};
use monky_deployd::drivers::run_loop::{self, Ended};
use monky_deployd::drivers::store::Store;
use monky_deployd::drivers::vault::Vault;
use monky_deployd::effects::failure::Code;
use monky_deployd::effects::state::State;
use monky_deployd::effects::{OnUnhealthy, OpName};
use monky_deployd::fsm::stages::Done;
use monky_deployd::fsm::{Boot, Options};
use world::{BUNDLES, CANARY, Driven, Told, World, bootstrap_grant, told};

/// What is done to a box.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// `monky-deployd bootstrap`; an operator who did not hear that it was stored does it again.
    Bootstrap,
    /// `monky-deployd tick`.
    Tick,
}

/// What happens while the power may fail.
struct Scenario {
    name: &'static str,
    /// What was done before, in peace.
    before: &'static [Step],
    /// What changed then.
    then: fn(&mut World, &Path),
    steps: &'static [Step],
    on_unhealthy: OnUnhealthy,
    keep_releases: usize,
    /// Images that nobody needs are removed.
    prune: bool,
    /// `state.json` was no state before any crash.
    corrupt: bool,
}

const DEPLOYED: &[Step] = &[Step::Bootstrap, Step::Tick];

const SCENARIOS: [Scenario; 9] = [
    Scenario {
        name: "a first deploy",
        before: &[],
        then: |_, _| {},
        steps: DEPLOYED,
        on_unhealthy: OnUnhealthy::Keep,
        keep_releases: 3,
        prune: false,
        corrupt: false,
    },
    Scenario {
        name: "a second deploy, which removes the first",
        before: DEPLOYED,
        then: |world, _| world.desired = "b",
        steps: &[Step::Tick],
        on_unhealthy: OnUnhealthy::Keep,
        keep_releases: 1,
        prune: false,
        corrupt: false,
    },
    Scenario {
        name: "a deploy over a folder that differs",
        before: DEPLOYED,
        then: |world, state_dir| {
            world.desired = "b";
            let folder = state_dir.join("releases").join(sha("b").as_str());
            fs::create_dir_all(folder.join("conf")).unwrap();
            fs::write(folder.join("compose.yaml"), "torn").unwrap();
            fs::write(folder.join("conf/more"), "more").unwrap();
        },
        steps: &[Step::Tick],
        on_unhealthy: OnUnhealthy::Keep,
        keep_releases: 3,
        prune: false,
        corrupt: false,
    },
    Scenario {
        name: "a rollback",
        before: DEPLOYED,
        then: |world, _| world.desired = "sick",
        steps: &[Step::Tick],
        on_unhealthy: OnUnhealthy::Rollback,
        keep_releases: 3,
        prune: false,
        corrupt: false,
    },
    Scenario {
        name: "a deploy that fails",
        before: DEPLOYED,
        then: |world, _| world.desired = "unpullable",
        steps: &[Step::Tick],
        on_unhealthy: OnUnhealthy::Keep,
        keep_releases: 3,
        prune: false,
        corrupt: false,
    },
    Scenario {
        name: "a report that could not be delivered at first",
        before: DEPLOYED,
        then: |world, _| (world.desired, world.deaf) = ("b", 1),
        steps: &[Step::Tick, Step::Tick],
        on_unhealthy: OnUnhealthy::Keep,
        keep_releases: 3,
        prune: false,
        corrupt: false,
    },
    Scenario {
        name: "a token that died, and a grant that OpenBao takes no more",
        before: DEPLOYED,
        then: |world, _| {
            world.desired = "b";
            world.tokens.clear();
            world.grants.clear();
        },
        steps: &[Step::Tick],
        on_unhealthy: OnUnhealthy::Keep,
        keep_releases: 3,
        prune: false,
        corrupt: false,
    },
    Scenario {
        name: "a token that must be renewed, a slow start, images that nobody needs",
        before: DEPLOYED,
        then: |world, _| (world.desired, world.ttl_s, world.starts_s) = ("b", 300, 10),
        steps: &[Step::Tick],
        on_unhealthy: OnUnhealthy::Keep,
        keep_releases: 1,
        prune: true,
        corrupt: false,
    },
    Scenario {
        name: "a state that is no state",
        before: DEPLOYED,
        then: |_, state_dir| fs::write(state_dir.join("state.json"), "{\"format\": 1, ").unwrap(),
        steps: &[Step::Tick],
        on_unhealthy: OnUnhealthy::Keep,
        keep_releases: 3,
        prune: false,
        corrupt: true,
    },
];

/// A rule, and how it was broken.
#[derive(Debug)]
struct Broken(&'static str, String);

const WHOLE: &str = "whatever is in its place is whole";
const TOLD_ONCE: &str = "an outcome is told once";
const GOOD: &str = "no release is good that never was healthy";
const BUDGET: &str = "leases stay within what is known of them";
const LEFT_BEHIND: &str = "nothing unfinished is left behind";
const SECRETS: &str = "secrets lie in their files alone";
const SAME_END: &str = "at most three ticks lead to the same end";
const STAYS: &str = "at its end a box stays as it is";
const TIDY: &str = "what nobody needs is gone after the next deploy";
const STORED: &str = "what was told to be stored is there";
const STARTS: &str = "a tick starts and ends";

/// One never becomes healthy, one cannot be pulled.
const NEVER_GOOD: [&str; 2] = ["sick", "unpullable"];

fn must(rule: &'static str, so: bool, words: impl FnOnce() -> String) -> Result<(), Broken> {
    if so { Ok(()) } else { Err(Broken(rule, words())) }
}

/// A box on its disk, in its world.
struct Crashed<'a> {
    scenario: &'a Scenario,
    root: tempfile::TempDir,
    world: Arc<Mutex<World>>,
    lie: Option<Lie>,
    forgets_reports: bool,
}

impl<'a> Crashed<'a> {
    fn new(scenario: &'a Scenario, image: &Image, world: World, bug: Bug) -> Crashed<'a> {
        // In memory, where there is such a place: nothing here has to outlive anything.
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let root = tempfile::tempdir_in(place).unwrap();
        restore(image, root.path());
        let (lie, forgets_reports) = match bug {
            Bug::None => (None, false),
            Bug::Lie(lie) => (Some(lie), false),
            Bug::ForgetsReports => (None, true),
        };
        Crashed { scenario, root, world: Arc::new(Mutex::new(world)), lie, forgets_reports }
    }

    fn state_dir(&self) -> PathBuf {
        self.root.path().join("state")
    }

    /// A second passes: less than any backoff.
    fn later(&self) {
        let mut world = self.world.lock().unwrap();
        world.now = world.now.plus_s(1);
    }

    fn power(&self, watched: bool) -> Arc<Power<World>> {
        Arc::new(Power::new(self.root.path(), Arc::clone(&self.world), watched, self.lie))
    }

    fn step(&self, step: Step, power: &Arc<Power<World>>) -> Result<Option<Done>, Broken> {
        match step {
            Step::Bootstrap => self.bootstrap(power).map(|()| None),
            Step::Tick => self.tick(power).map(Some),
        }
    }

    fn bootstrap(&self, power: &Arc<Power<World>>) -> Result<(), Broken> {
        let store = Store::open_on(power.clone(), &self.state_dir(), Arc::default());
        let store = store.map_err(|error| Broken(STARTS, error.to_string()))?;
        store.save_bootstrap(&bootstrap_grant()).map_err(|fault| Broken(STARTS, fault.detail.to_string()))?;
        self.world.lock().unwrap().bootstrapped = true;
        // The operator was told. Whatever happens from now on, the grant is there.
        power.moment("after bootstrap");
        Ok(())
    }

    /// As `cli/tick.rs` runs it.
    fn tick(&self, power: &Arc<Power<World>>) -> Result<Done, Broken> {
        let vault = Arc::<Vault>::default();
        let store = Store::open_on(power.clone(), &self.state_dir(), Arc::clone(&vault));
        let store = store.map_err(|error| Broken(STARTS, error.to_string()))?;
        let now = self.world.lock().unwrap().now;
        let loaded = store.load_state(now).map_err(|error| Broken(STARTS, error.to_string()))?;
        must(WHOLE, self.scenario.corrupt || loaded.notes.is_empty(), || format!("{:?}", loaded.notes))?;
        let boot = Boot {
            settings: monky_deployd::effects::Settings {
                on_unhealthy: self.scenario.on_unhealthy,
                keep_releases: self.scenario.keep_releases,
                ..settings()
            },
            options: Options { prune: self.scenario.prune, ..Options::default() },
            state: loaded.state,
            local: loaded.local,
            // Chance is not the same twice.
            seed: now.0.unsigned_abs(),
            now,
        };
        let driven = Driven {
            store,
            vault,
            world: Arc::clone(&self.world),
            power: Arc::clone(power),
            forgets_reports: self.forgets_reports,
            effects: Mutex::new(0),
            fetched: Mutex::new(None),
        };
        let mut recorder = Recorder::new(record::LARGEST);
        let Ended::Done(done) = run_loop::run(boot, &driven, &mut recorder) else {
            return Err(Broken(STARTS, "it does not end".to_owned()));
        };
        if recorder.is_worth_keeping(Some(&done)) {
            let text = recorder.finish(Some(&done), driven.now());
            let _ = driven.store.save_recording(&format!("{:015}.jsonl", now.0), text.as_bytes(), record::KEPT);
        }
        if self.lie.is_none() {
            power.agrees(self.root.path());
        }
        Ok(done)
    }

    fn state(&self) -> State {
        let text = fs::read(self.state_dir().join("state.json")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// What must hold after every tick.
    fn holds(&self, run: &Run, leases: usize) -> Result<(), Broken> {
        let world = self.world.lock().unwrap();
        must(WHOLE, world.broken.is_empty(), || world.broken.join("; "))?;
        for (what, times) in told(&world) {
            // Without its state a box tells again what it told before.
            must(TOLD_ONCE, times <= run.told.get(&what).copied().unwrap_or(1), || {
                format!("{what:?} was told {times} times, each with another id")
            })?;
        }
        // What a crash hid costs one more; an agent that lost its memory of them would ask without end.
        let state = self.state();
        let unknown = world.leases.iter().any(|at| state.leases.iter().all(|known| known.since_ms(*at).abs() > 2000));
        for name in NEVER_GOOD {
            let good = state.good.iter().any(|good| good.sha == sha(name));
            must(GOOD, !good, || format!("{name} counts as good: {:?}", state.good))?;
        }
        must(BUDGET, world.leases.len() <= leases + 1 && (self.scenario.corrupt || !unknown), || {
            format!("{:?} were granted, {:?} are known", world.leases, state.leases)
        })?;
        for (path, entry) in image_of(self.root.path()) {
            let shown = path.to_string_lossy();
            must(LEFT_BEHIND, !shown.contains(".tmp-"), || format!("{shown} was left behind"))?;
            must(WHOLE, self.scenario.corrupt || !shown.contains(".corrupt-"), || format!("{shown} was set aside"))?;
            let mine = shown.ends_with("/.env")
                || ["token.json", "grant.json", "bootstrap.jwt", "docker/config.json"]
                    .iter()
                    .any(|name| path == Path::new("state").join(name));
            if let Entry::File(_, bytes) = entry
                && !mine
            {
                let found = bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes());
                must(SECRETS, !found, || format!("{shown} holds a secret"))?;
            }
        }
        Ok(())
    }

    /// The end of a box, less what may differ from day to day.
    fn end(&self) -> End {
        let State { good, earlier, attempts, unfinished, in_doubt, last_result, last_error, trouble, outcome, .. } =
            self.state();
        let name = |sha_: &_| BUNDLES.into_iter().find(|(name, _)| sha(name) == *sha_).unwrap().0;
        let mut tree = BTreeMap::new();
        for (path, entry) in image_of(self.root.path()) {
            let shown = path.to_string_lossy().into_owned();
            if shown.contains("recordings/") || shown.contains(".corrupt-") {
                continue;
            }
            let content = shown.contains("releases/") || shown.contains("docker/");
            let what = match entry {
                Entry::Dir(mode) => format!("{mode:04o}"),
                Entry::Link(target) => format!("-> {}", target.display()),
                Entry::File(mode, bytes) if content => format!("{mode:04o} {}", String::from_utf8_lossy(&bytes)),
                Entry::File(mode, _) => format!("{mode:04o}"),
            };
            tree.insert(shown, what);
        }
        let token = fs::read(self.state_dir().join("token.json")).ok();
        let token = token.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
        let world = self.world.lock().unwrap();
        let lives = token.as_ref().is_some_and(|it| world.tokens.contains(it["client_token"].as_str().unwrap_or("")));
        End {
            tree,
            good: good
                .iter()
                .map(|good| format!("{} {:?} {:?}", name(&good.sha), good.generation, good.images))
                .collect(),
            earlier: earlier.iter().map(name).collect(),
            attempts: attempts.iter().map(|(sha, tried)| (name(sha), tried.count, tried.quarantined)).collect(),
            open: format!("{unfinished:?} {in_doubt} {outcome:?} {trouble:?}"),
            last: format!("{last_result:?} {:?}", last_error.map(|error| error.code)),
            token: format!("{:?} {lives}", token.map(|token| token["source"].clone())),
            running: world.running.as_ref().map(|(sha, _, env)| (name(sha), env.clone())),
            told: told(&world).into_keys().collect(),
        }
    }
}

/// See [`Crashed::end`].
#[derive(Debug, PartialEq)]
struct End {
    tree: BTreeMap<String, String>,
    good: Vec<String>,
    earlier: Vec<&'static str>,
    attempts: Vec<(&'static str, u32, bool)>,
    open: String,
    last: String,
    token: String,
    running: Option<(&'static str, String)>,
    told: BTreeSet<(&'static str, u32, String, bool)>,
}

/// What is wrong with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    Lie(Lie),
    /// A report leaves the outbox before tenancy took it.
    ForgetsReports,
}

/// What a scenario leads to, and every moment on the way.
struct Run {
    end: End,
    leases: usize,
    told: Told,
    /// How the last tick ends.
    code: Option<Code>,
    moments: Vec<Moment<World>>,
}

fn run(scenario: &Scenario, bug: Bug) -> Run {
    let crashed = Crashed::new(scenario, &Image::new(), World::new(NOW), Bug::None);
    let peace = crashed.power(false);
    for step in scenario.before {
        crashed.step(*step, &peace).unwrap();
    }
    let world = crashed.world.lock().unwrap().clone();
    let crashed = Crashed::new(scenario, &image_of(crashed.root.path()), world, bug);
    (scenario.then)(&mut crashed.world.lock().unwrap(), &crashed.state_dir());
    let power = crashed.power(true);
    let mut code = None;
    for step in scenario.steps {
        crashed.later();
        code = crashed.step(*step, &power).unwrap().and_then(|done| done.code);
    }
    power.moment("the end");
    let (leases, told) = {
        let world = crashed.world.lock().unwrap();
        (world.leases.len(), told(&world))
    };
    Run { end: crashed.end(), leases, told, code, moments: power.moments() }
}

/// Starts a box again, and judges it. `watched`: the power may fail once more meanwhile.
fn judge(
    scenario: &Scenario,
    run: &Run,
    (image, world): (&Image, &World),
    bug: Bug,
    watched: bool,
) -> Result<Vec<Moment<World>>, Broken> {
    let crashed = Crashed::new(scenario, image, world.clone(), bug);
    let power = crashed.power(watched);
    // A second crash may cost one more, too.
    let leases = run.leases.max(world.leases.len());
    crashed.later();
    let grant = image.get(Path::new("state/bootstrap.jwt"));
    let stored = matches!(grant, Some(Entry::File(_, bytes)) if **bytes == bootstrap_grant().into_bytes());
    let used = !world.bootstrapped || world.tokens_made > 0;
    if let Some(Entry::File(_, bytes)) = image.get(Path::new("state/state.json"))
        && let Ok(state) = serde_json::from_slice::<State>(bytes)
    {
        let good = state.good.iter().any(|good| NEVER_GOOD.iter().any(|name| good.sha == sha(name)));
        must(GOOD, !good, || format!("right after the crash: {:?}", state.good))?;
    }
    must(STORED, used || stored, || "the operator was told that the grant is stored, and it is not".to_owned())?;
    if !world.bootstrapped {
        crashed.bootstrap(&power)?;
    }
    let mut words = Vec::new();
    for _ in 0..3 {
        words.push(crashed.tick(&power)?.word);
        crashed.holds(run, leases)?;
        crashed.later();
        if crashed.end().less_what_is_tidied_later(&run.end).0 == run.end {
            break;
        }
    }
    let (end, _) = crashed.end().less_what_is_tidied_later(&run.end);
    must(SAME_END, end == run.end, || format!("after {words:?}:\n{end:#?}\nand not\n{:#?}", run.end))?;
    let word = crashed.tick(&power)?.word;
    crashed.holds(run, leases)?;
    let (end, untidy) = crashed.end().less_what_is_tidied_later(&run.end);
    must(STAYS, end == run.end, || format!("{word} leads on to\n{end:#?}"))?;
    let moments = power.moments();
    if untidy {
        crashed.world.lock().unwrap().desired = "c";
        crashed.tick(&crashed.power(false))?;
        let known: BTreeSet<&String> = run.end.tree.keys().collect();
        let new = sha("c");
        let tree = crashed.end().tree;
        let of_c = |path: &str, what: &str| path.contains(new.as_str()) || what.contains(new.as_str());
        let left: Vec<_> = tree.iter().filter(|(path, what)| !known.contains(path) && !of_c(path, what)).collect();
        must(TIDY, left.is_empty(), || format!("{left:?}"))?;
    }
    Ok(moments)
}

impl End {
    /// Without the release folders (and the link to one) that nobody needs and that the right end does not have: a crash
    /// between an outcome and the tidying up after it leaves them to the next deploy. True: there are such.
    fn less_what_is_tidied_later(mut self, right: &End) -> (End, bool) {
        let before = self.tree.len();
        let needless = |path: &String, what: &String| {
            let folder = match path.as_str() {
                "state/next" => what.strip_prefix("-> releases/"),
                path => path.strip_prefix("state/releases/").and_then(|rest| rest.split('/').next()),
            };
            folder.is_some_and(|sha| !right.tree.contains_key(&format!("state/releases/{sha}")))
        };
        self.tree.retain(|path, what| !needless(path, what));
        let untidy = self.tree.len() < before;
        (self, untidy)
    }
}

/// What was counted.
#[derive(Default)]
struct Count {
    moments: BTreeMap<String, usize>,
    images: BTreeMap<Crash, usize>,
    /// Different ones.
    boxes: usize,
}

#[test]
fn a_crash_at_any_moment_costs_at_most_three_ticks_and_nothing_else() {
    let mut total = Count::default();
    let counts: Vec<(&str, Count)> = std::thread::scope(|scope| {
        let all: Vec<_> =
            SCENARIOS.iter().map(|scenario| scope.spawn(|| (scenario.name, every_crash_of(scenario)))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (name, count) in counts {
        let (moments, images) = (count.moments.values().sum::<usize>(), count.images.values().sum::<usize>());
        println!("{name}: {moments} moments, {images} crashes, {} different boxes", count.boxes);
        total.boxes += count.boxes;
        assert!(moments > 50, "{name} has {moments} moments only");
        for (what, n) in count.moments {
            *total.moments.entry(what).or_default() += n;
        }
        for (crash, n) in count.images {
            *total.images.entry(crash).or_default() += n;
        }
    }
    let (moments, images) = (total.moments.values().sum::<usize>(), total.images.values().sum::<usize>());
    println!("{moments} moments: {:?}", total.moments);
    println!("{images} crashes: {:?}; {} different boxes", total.images, total.boxes);
    assert!(moments >= 1000 && images >= 2000, "fewer than there are");
    assert!(Crash::ALL.iter().all(|crash| total.images.contains_key(crash)), "{:?}", total.images);
    for op in OpName::ALL {
        for moment in [op.as_str().to_owned(), format!("after {}", op.as_str())] {
            assert!(total.moments.contains_key(&moment), "no crash at: {moment}");
        }
    }
    for change in [
        "create",
        "write",
        "mode",
        "sync file",
        "sync directory",
        "make directory",
        "link",
        "rename",
        "rename over nothing",
        "exchange",
        "remove file",
        "remove tree",
    ] {
        assert!(total.moments.contains_key(change), "no crash before: {change}");
    }
}

fn every_crash_of(scenario: &Scenario) -> Count {
    let run = run(scenario, Bug::None);
    let mut count = Count::default();
    let mut judged = Judged::default();
    for moment in &run.moments {
        *count.moments.entry(moment.before.clone()).or_default() += 1;
        for (crash, image) in &moment.images {
            *count.images.entry(*crash).or_default() += 1;
            if !judged.is_new(image, &moment.world) {
                continue;
            }
            count.boxes += 1;
            if let Err(Broken(rule, words)) = judge(scenario, &run, (image, &moment.world), Bug::None, false) {
                panic!("{}, {crash:?} before {:?}: {rule}: {words}", scenario.name, moment.before);
            }
        }
    }
    count
}

/// Boxes that were judged: many crashes, one after the other, leave the same.
#[derive(Default)]
struct Judged {
    world: Option<World>,
    images: Vec<Image>,
}

impl Judged {
    fn is_new(&mut self, image: &Image, world: &World) -> bool {
        // The hour makes no difference, within a tick.
        let world = World { now: NOW, ..world.clone() };
        if self.world.as_ref() != Some(&world) {
            *self = Judged { world: Some(world), images: Vec::new() };
        }
        let new = !self.images.contains(image);
        if new {
            self.images.push(image.clone());
        }
        new
    }
}

#[test]
fn a_second_crash_while_the_first_is_mended_changes_nothing() {
    // Of every so-maniest crash every moment of the recovery: all of all would be some hundred thousand.
    const STRIDE: usize = 149;
    let judged: usize = std::thread::scope(|scope| {
        let all: Vec<_> = SCENARIOS.iter().map(|scenario| scope.spawn(|| twice(scenario, STRIDE))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    println!("{judged} crashes after a crash");
    assert!(judged > 3000, "{judged}");
}

fn twice(scenario: &Scenario, stride: usize) -> usize {
    let run = run(scenario, Bug::None);
    let all = run.moments.iter().flat_map(|moment| moment.images.iter().map(move |image| (moment, image)));
    let mut judged = 0;
    for (n, (first, (crash, image))) in all.enumerate() {
        if n % stride != 7 {
            continue;
        }
        let recovery = judge(scenario, &run, (image, &first.world), Bug::None, true).unwrap();
        let mut boxes = Judged::default();
        for second in recovery {
            for (again, image) in &second.images {
                judged += 1;
                if !boxes.is_new(image, &second.world) {
                    continue;
                }
                if let Err(Broken(rule, words)) = judge(scenario, &run, (image, &second.world), Bug::None, false) {
                    let (first, second, name) = (&first.before, &second.before, scenario.name);
                    panic!("{name}, {crash:?} before {first:?}, then {again:?} before {second:?}: {rule}: {words}");
                }
            }
        }
    }
    judged
}

#[test]
fn every_bug_of_the_disk_or_the_outbox_is_found() {
    // Each by what it does in the end.
    for (bug, rules) in [
        (Bug::Lie(Lie::NoFileSync), &[WHOLE][..]),
        (Bug::Lie(Lie::NoDirSync), &[TOLD_ONCE, BUDGET, SAME_END]),
        (Bug::Lie(Lie::NoParentSync), &[STORED]),
        (Bug::Lie(Lie::RenameFirst), &[WHOLE]),
        (Bug::Lie(Lie::InPlace), &[WHOLE]),
        (Bug::Lie(Lie::NoSweep), &[LEFT_BEHIND, STARTS]),
        (Bug::ForgetsReports, &[SAME_END]),
    ] {
        // Most break the first promise of all, a grant that was told to be stored. A deploy has to find them, too.
        let from = usize::from(bug != Bug::Lie(Lie::NoParentSync));
        let found = SCENARIOS.iter().skip(from).filter(|scenario| !scenario.corrupt).find_map(|scenario| {
            let right = run(scenario, Bug::None);
            let run = Run { moments: run(scenario, bug).moments, ..right };
            run.moments.iter().find_map(|moment| {
                moment.images.iter().find_map(|(crash, image)| {
                    let broken = judge(scenario, &run, (image, &moment.world), bug, false).err()?;
                    Some((scenario.name, *crash, moment.before.clone(), broken))
                })
            })
        });
        let Some((name, crash, before, Broken(rule, _))) = found else { panic!("{bug:?} was not found") };
        println!("{bug:?}: {name}, {crash:?} before {before:?}: {rule}");
        assert!(rules.contains(&rule), "{bug:?} was found by another rule: {rule}");
    }
}

#[test]
fn nothing_in_the_store_changes_the_disk_but_through_its_one_door() {
    let words = [
        "fs::write",
        "fs::rename",
        "fs::remove",
        "fs::create",
        "fs::copy",
        "fs::hard_link",
        "fs::set_permissions",
        "File::create",
        "DirBuilder",
        ".create(",
        ".create_new(",
        ".write(",
        ".append(",
        ".truncate(",
        "set_len(",
        "write_all(",
        "writeln!",
        "sync_all(",
        "sync_data(",
        "set_modified(",
        "symlink(",
        "linkat(",
        "renameat",
        "unlinkat",
        "mkdirat",
        "tempfile",
        "fchmod",
        "chmod(",
    ];
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/drivers/store");
    let mut looked_at = Vec::new();
    for found in fs::read_dir(&dir).unwrap() {
        let name = found.unwrap().file_name().into_string().unwrap();
        let text = fs::read_to_string(dir.join(&name)).unwrap();
        let uses: Vec<_> = text
            .lines()
            .enumerate()
            // To ask whether it is one changes nothing.
            .map(|(n, line)| (n, line.replace(".is_symlink(", "")))
            .filter(|(_, line)| !line.trim_start().starts_with("//") && words.iter().any(|word| line.contains(word)))
            .map(|(n, line)| format!("{name}:{}: {}", n + 1, line.trim()))
            .collect();
        match name.as_str() {
            "disk.rs" => assert!(uses.len() > 5, "the words do not find what is there: {uses:?}"),
            "tests.rs" => {}
            _ => {
                assert!(uses.is_empty(), "it goes past store/disk.rs: {uses:#?}");
                looked_at.push(name);
            }
        }
    }
    assert!(looked_at.len() >= 3, "{looked_at:?}");
}

#[test]
fn a_disk_that_is_full_from_any_change_on_keeps_what_it_held_and_is_used_again_when_there_is_room() {
    let mut tried = 0;
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.steps == [Step::Tick] && !scenario.corrupt) {
        let run = run(scenario, Bug::None);
        let Moment { images, world, .. } = &run.moments[0];
        let before = &images[0].1;
        for change in 0.. {
            let crashed = Crashed::new(scenario, before, world.clone(), Bug::None);
            let power = Power::new(crashed.root.path(), Arc::clone(&crashed.world), false, None).full_from(change);
            let power = Arc::new(power);
            let ended = crashed.tick(&power);
            let at = format!("{}, full from change {change} on", scenario.name);
            if power.changes() <= change {
                break;
            }
            tried += 1;
            let done = ended.unwrap_or_else(|Broken(rule, words)| panic!("{at}: {rule}: {words}"));
            // It says so, unless all that is missing is what tidies up, or what tells: the outcome is in the state then.
            if done.code != Some(Code::DiskFull) {
                let ended = |it: &End| {
                    format!(
                        "{:?} {:?} {:?} {:?} {} {}",
                        it.good, it.earlier, it.attempts, it.running, it.last, it.token
                    )
                };
                let (end, right) = (crashed.end(), &run.end);
                assert_eq!((done.code, ended(&end)), (run.code, ended(right)), "{at}");
                assert!(end.told == right.told || crashed.state().outcome.is_some(), "an outcome is lost: {at}");
            }
            crashed.holds(&run, run.leases).unwrap_or_else(|Broken(rule, words)| panic!("{at}: {rule}: {words}"));
            let state = image_of(crashed.root.path());
            let state = state.get(Path::new("state/state.json"));
            assert!(
                matches!(state, Some(Entry::File(0o600, bytes)) if serde_json::from_slice::<State>(bytes).is_ok()),
                "{at}"
            );
            // There is room again, and any backoff is over.
            let power = crashed.power(false);
            let mut words = vec![done.word];
            for _ in 0..3 {
                {
                    let mut world = crashed.world.lock().unwrap();
                    world.now = world.now.plus_s(1000);
                }
                words.push(crashed.tick(&power).unwrap().word);
            }
            let (end, right) = (crashed.end(), &run.end);
            assert_eq!((&end.good.last(), &end.running), (&right.good.last(), &right.running), "{at}: {words:?}");
            assert!(end.tree.keys().all(|path| !path.contains("outbox/") && !path.contains(".tmp-")), "{at}: {end:#?}");
        }
    }
    println!("{tried} changes without room");
    assert!(tried > 100, "{tried}");
}
