//! Every way that a few ticks can go on one box, exhaustively: the real machine in a small world of tenancy, OpenBao,
//! Docker and a disk, with crashes before and after every effect, lost answers, and a target that changes.
//!
//! Invariant: the machine is the shipped one, untouched; that the checker finds what is wrong is shown by seeding a
//! bug of each kind between it and the world ([`bugs`]).
//!
//! Liveness ("three clean ticks settle every crash") is an `always`: from every state memory is dropped, and at most
//! three ticks without a fault must lead to an outcome that tenancy was told. The checker's own `eventually` misses
//! what is lost on a cycle.

#[path = "model/bugs.rs"]
mod bugs;
#[expect(dead_code, reason = "each suite uses a part of what is shared")]
mod common;
#[path = "model/disk.rs"]
mod disk;
#[path = "model/ghost.rs"]
mod ghost;
#[path = "model/world.rs"]
mod world;

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bugs::Bug;
use common::script::{NOW, applied, settings};
use disk::Disk;
use ghost::{Ghost, Rule};
use monky_deployd::effects::state::{Applied, Promotion, TokenRecord, TokenSource};
use monky_deployd::effects::*;
use monky_deployd::fsm::{Boot, Input, Machine, Options, Transition};
use stateright::{Checker, HasDiscoveries, Model, Property};
use world::{Fault, Life, Name, World};

/// The name of a rule, as RELIABILITY.md numbers it; none: liveness.
const fn name(rule: Option<Rule>) -> &'static str {
    match rule {
        Some(Rule::RefusedLeadsToNothing) => "1 a refused bundle leads to nothing but a report",
        Some(Rule::NothingUnpulledComesUp) => "2 nothing comes up that was not pulled",
        Some(Rule::AValidTokenNeverLeases) => "3 a valid token never leases",
        Some(Rule::AppliedOnlyAfterHealthy) => "4 applied moves only after healthy",
        Some(Rule::DurableBeforeTold) => "5 an outcome is durable before it is told, and kept until it is taken",
        Some(Rule::RecordedOnce) => "6 an outcome is recorded once",
        Some(Rule::AReportChangesNoVerdict) => "7 a failed report changes no verdict",
        Some(Rule::TheFloorNeverFalls) => "11 the generation floor never falls",
        Some(Rule::QuarantineHolds) => "12 a quarantined bundle is left alone",
        Some(Rule::PromotedIsDurableFirst) => "what is promoted is durable first",
        Some(Rule::NeverStuck) => "the machine never waits for nothing",
        None => "19 three clean ticks settle every crash",
    }
}

/// A tick under way.
struct Flight {
    machine: Machine,
    pending: VecDeque<Effect>,
    now: Stamp,
}

/// One state of everything.
#[derive(Clone)]
struct Place {
    on_unhealthy: OnUnhealthy,
    disk: Arc<Disk>,
    disk_key: u64,
    world: World,
    ghost: Arc<Ghost>,
    flight: Option<Arc<Flight>>,
    flight_key: u64,
    now: Stamp,
    /// So many ticks may still begin,
    ticks: u8,
    /// so many answers may be something else than the truth, or memory be lost,
    faults: u8,
    /// and so often the world may change between ticks.
    changes: u8,
}

impl Place {
    fn identity(&self) -> impl Hash + PartialEq + '_ {
        (self.content(), (self.ticks, self.faults, self.changes))
    }

    /// All of it but how much more may happen.
    fn content(&self) -> impl Hash + PartialEq + '_ {
        (
            (self.on_unhealthy == OnUnhealthy::Rollback, self.disk_key, self.flight_key),
            (&self.world, &self.ghost),
            self.now.0,
        )
    }
}

impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Place) -> bool {
        self.identity() == other.identity()
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = self.flight.as_ref().map(|flight| (flight.machine.stage(), flight.pending.front()));
        write!(f, "{at:?} {:?} {:?} {:?}", self.world, self.disk, self.ghost)
    }
}

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Tick {
        force: bool,
    },
    Answer(Option<Fault>),
    /// Memory is lost before the next effect,
    CrashBefore,
    /// or right after it, before its answer is heard.
    CrashAfter,
    Change(Change),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Desire(Option<Name>),
    Hold,
    TenancyGone,
    BaoSealed,
    GrantsRejected,
    TokenDies,
    TokenAges,
    DockerGone,
    /// `state.json` could not be read, and was set aside.
    StateLost,
    /// So was `token.json`.
    TokenLost,
}

/// What is explored, and with which bug.
struct Box1 {
    starts: Vec<Place>,
    bug: Option<Bug>,
    /// Whether a place settles, by what would be there after the power came back.
    settled: Mutex<HashMap<u64, bool>>,
    /// What was reached, whatever was still allowed there.
    reached: Mutex<HashSet<u64>>,
}

struct Keyed(DefaultHasher);

impl Write for Keyed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn key(value: &impl serde::Serialize) -> u64 {
    let mut keyed = Keyed(DefaultHasher::new());
    serde_json::to_writer(&mut keyed, value).unwrap();
    keyed.0.finish()
}

fn disk_key(disk: &Disk) -> u64 {
    let Disk { state, token, grant, bootstrap, releases, current, outbox } = disk;
    key(&(state, token, grant, bootstrap, releases, current, outbox))
}

impl Box1 {
    fn new(starts: Vec<Place>, bug: Option<Bug>) -> Box1 {
        Box1 { starts, bug, settled: Mutex::default(), reached: Mutex::default() }
    }

    fn begin(&self, place: &mut Place, force: bool) {
        let settings = Settings { on_unhealthy: place.on_unhealthy, ..settings() };
        let options = Options { force, prune: false };
        let (state, local) = (place.disk.state.clone(), place.disk.local());
        let mut boot = Boot { settings, options, state, local, seed: 7, now: place.now };
        if let Some(bug) = self.bug {
            bug.boots(&mut boot);
        }
        Arc::make_mut(&mut place.ghost).begin(force);
        self.follow(place, Machine::boot(boot), VecDeque::new(), place.now);
    }

    /// The machine went a step.
    fn follow(&self, place: &mut Place, transition: Transition, mut pending: VecDeque<Effect>, now: Stamp) {
        let Transition { next: machine, effects, notes: _, taken: _ } = transition;
        pending.extend(effects.into_iter().filter(|effect| !self.bug.is_some_and(|bug| bug.loses(&effect.op))));
        if let Some(done) = machine.done() {
            let ghost = Arc::make_mut(&mut place.ghost);
            if ghost.verdict.take().is_some_and(|verdict| verdict != serde_json::to_string(done).unwrap()) {
                ghost.broken.insert(Rule::AReportChangesNoVerdict);
            }
            place.drop_memory(now);
            return;
        }
        if pending.is_empty() {
            Arc::make_mut(&mut place.ghost).broken.insert(Rule::NeverStuck);
        }
        place.flight = Some(Arc::new(Flight { machine, pending, now }));
    }

    /// Carries out the next effect; `None` if there is none.
    fn perform(&self, place: &mut Place, fault: Option<Fault>) -> Option<(Effect, Event)> {
        let flight = place.flight.clone()?;
        let mut effect = flight.pending.front()?.clone();
        let mut world = place.world.clone();
        let real = self.bug.is_none_or(|bug| bug.asks(&mut effect.op, flight.now));
        let ghost = Arc::make_mut(&mut place.ghost);
        if real {
            ghost.before(&effect.op, &place.disk, &world, flight.now);
        }
        let mut disk = Arc::clone(&place.disk);
        let mut event = world::perform(&mut world, &mut disk, &effect.op, fault, flight.now);
        if real {
            ghost.after(&effect.op, &event, fault, &disk);
            place.disk = disk;
            place.world = world;
        }
        if let (Event::ReportSent(Err(_)) | Event::ReportDropped(Err(_)), None) = (&event, &ghost.verdict) {
            let json = serde_json::to_value(&flight.machine).unwrap();
            let done: monky_deployd::fsm::stages::Done =
                serde_json::from_value(json["data"]["stage"]["done"].clone()).unwrap();
            ghost.verdict = Some(serde_json::to_string(&done).unwrap());
        }
        if let Some(bug) = self.bug {
            bug.hears(&effect.op, &mut event, &place.disk);
        }
        Some((effect, event))
    }

    fn answer(&self, place: &mut Place, fault: Option<Fault>) {
        let Some((effect, event)) = self.perform(place, fault) else { return };
        let Some(flight) = place.flight.take() else { return };
        let Flight { machine, mut pending, now } = match Arc::try_unwrap(flight) {
            Ok(flight) => flight,
            Err(shared) => Flight { machine: shared.machine.clone(), pending: shared.pending.clone(), now: shared.now },
        };
        pending.pop_front();
        let now = match &effect.op {
            Op::WaitUntil(wait) => wait.until.max(now),
            _ => now,
        };
        let mut transition = machine.step(Input { now, answers: effect.id, event: event.clone() });
        if let Some(bug) = self.bug {
            transition.next = bug.becomes(transition.next, &event);
        }
        self.follow(place, transition, pending, now);
    }

    /// Whether at most three clean ticks settle what is there when memory is lost now.
    fn settles(&self, place: &Place) -> bool {
        let ghost = (place.ghost.told_failed, &place.ghost.told_ever, place.ghost.told_applied);
        let mut hasher = DefaultHasher::new();
        (place.on_unhealthy == OnUnhealthy::Rollback, place.disk_key, ghost).hash(&mut hasher);
        (&place.world.desired, place.world.saved, place.world.running, &place.world.pulled).hash(&mut hasher);
        let key = hasher.finish();
        if let Some(known) = self.settled.lock().unwrap().get(&key) {
            return *known;
        }
        let mut place = place.clone();
        place.drop_memory(place.now);
        place.world.mend();
        let mut settled = place.is_settled();
        for _ in 0..3 {
            if settled {
                break;
            }
            // Every wait is over by then: backoff, and the hour of the leases.
            place.now = place.now.plus_s(4000);
            place.world.granted = 0;
            self.begin(&mut place, false);
            while place.flight.is_some() && !place.ghost.broken.contains(&Rule::NeverStuck) {
                self.answer(&mut place, None);
            }
            settled = place.is_settled();
        }
        self.settled.lock().unwrap().insert(key, settled);
        settled
    }
}

impl Place {
    fn drop_memory(&mut self, now: Stamp) {
        self.flight = None;
        self.now = self.now.max(now);
    }

    fn is_settled(&self) -> bool {
        let Disk { state, current, outbox, .. } = &*self.disk;
        if !outbox.is_empty() || state.outcome.is_some() {
            return false;
        }
        let Some(desired) = self.world.desired else { return true };
        let applied = state.applied().map(|applied| (Name::of(&applied.sha), applied.at.0));
        let runs = |name: Name| self.world.running == Some(name) && current.as_ref() == Some(&name.sha());
        if state.unfinished.is_some() {
            return false;
        }
        // A bundle that made the box go back was told when that ended. It is left alone, also if another one was desired
        // in between and left no trace, and if it was the applied one that a person forced.
        if state.attempts.get(&desired.sha()).is_some_and(|tried| tried.quarantined) {
            return match self.ghost.told_failed {
                Some((name, true)) if name == desired => applied.is_some_and(|(good, _)| runs(good)),
                Some(_) | None => self.ghost.told_ever.contains(&desired),
            };
        }
        match (applied, self.ghost.told_failed) {
            (Some((name, at)), _) if name == desired => {
                runs(name) && !state.in_doubt && (self.ghost.told_applied == Some((name, at)) || at < NOW.0)
            }
            (_, Some((name, rolled_back))) if name == desired => {
                let stale = |(name, _): (Name, i64)| desired.generation() < name.generation();
                let hopeless = match desired {
                    Name::Bad | Name::NoPull | Name::Sick => true,
                    Name::A | Name::B | Name::Old => applied.is_some_and(stale),
                };
                hopeless && (!rolled_back || applied.is_some_and(|(good, _)| runs(good)))
            }
            _ => false,
        }
    }

    fn rekey(mut self, was: &Place) -> Place {
        if !Arc::ptr_eq(&self.disk, &was.disk) {
            self.disk_key = disk_key(&self.disk);
        }
        self.flight_key = self.flight.as_ref().map_or(0, |flight| key(&flight.machine));
        self
    }
}

impl Model for Box1 {
    type State = Place;
    type Action = Act;

    fn init_states(&self) -> Vec<Place> {
        self.starts.clone()
    }

    fn actions(&self, place: &Place, acts: &mut Vec<Act>) {
        if !place.ghost.broken.is_empty() && self.bug.is_none() {
            return;
        }
        if let Some(flight) = &place.flight {
            acts.push(Act::Answer(None));
            if let Some(effect) = flight.pending.front().filter(|_| place.faults > 0) {
                acts.extend(world::faults(effect.op.name()).iter().map(|fault| Act::Answer(Some(*fault))));
                acts.extend([Act::CrashBefore, Act::CrashAfter]);
            }
            return;
        }
        if place.ticks > 0 {
            acts.push(Act::Tick { force: false });
        }
        if place.ticks > 0 && place.changes > 0 {
            acts.push(Act::Tick { force: true });
            let desires = [Some(Name::A), Some(Name::B), Some(Name::Sick), Some(Name::Old), None];
            let others = desires.into_iter().filter(|name| *name != place.world.desired);
            acts.extend(others.map(|name| Act::Change(Change::Desire(name))));
            let changes = [
                Change::Hold,
                Change::TenancyGone,
                Change::BaoSealed,
                Change::GrantsRejected,
                Change::TokenDies,
                Change::TokenAges,
                Change::DockerGone,
                Change::StateLost,
                Change::TokenLost,
            ];
            acts.extend(changes.map(Act::Change));
        }
    }

    fn next_state(&self, was: &Place, act: Act) -> Option<Place> {
        let mut place = was.clone();
        match act {
            Act::Tick { force } => {
                place.ticks -= 1;
                place.changes -= u8::from(force);
                place.now = place.now.plus_s(60);
                self.begin(&mut place, force);
            }
            Act::Answer(fault) => {
                place.faults -= u8::from(fault.is_some());
                self.answer(&mut place, fault);
            }
            Act::CrashBefore => {
                place.faults -= 1;
                let now = was.flight.as_ref()?.now;
                place.drop_memory(now);
            }
            Act::CrashAfter => {
                place.faults -= 1;
                let now = was.flight.as_ref()?.now;
                self.perform(&mut place, None);
                place.drop_memory(now);
            }
            Act::Change(change) => {
                place.changes -= 1;
                let world = &mut place.world;
                match change {
                    Change::Desire(name) => world.desired = name,
                    Change::Hold => world.hold = true,
                    Change::TenancyGone => world.tenancy_up = false,
                    Change::BaoSealed => world.bao_up = false,
                    Change::GrantsRejected => world.grant_accepted = false,
                    Change::TokenDies => world.saved = Life::Dead,
                    Change::TokenAges if world.saved == Life::Long => world.saved = Life::Short,
                    Change::TokenAges => return None,
                    Change::DockerGone => world.docker_up = false,
                    // Who forgets the leases is told by tenancy: that is no breach of the rule.
                    Change::StateLost if world.granted > 0 => return None,
                    Change::StateLost => {
                        Arc::make_mut(&mut place.disk).state = Default::default();
                        Arc::make_mut(&mut place.ghost).state_is_lost();
                    }
                    Change::TokenLost => Arc::make_mut(&mut place.disk).token = None,
                }
            }
        }
        Some(place.rekey(was))
    }

    fn properties(&self) -> Vec<Property<Box1>> {
        macro_rules! never_broken {
            ($($rule:ident)*) => {
                vec![$( Property::always(
                    name(Some(Rule::$rule)),
                    |_: &Box1, place: &Place| !place.ghost.broken.contains(&Rule::$rule),
                ), )*]
            };
        }
        let mut all = never_broken! {
            RefusedLeadsToNothing NothingUnpulledComesUp AValidTokenNeverLeases AppliedOnlyAfterHealthy
            DurableBeforeTold RecordedOnce AReportChangesNoVerdict TheFloorNeverFalls QuarantineHolds
            PromotedIsDurableFirst NeverStuck
        };
        all.push(Property::always(name(None), |model: &Box1, place: &Place| {
            let mut hasher = DefaultHasher::new();
            place.content().hash(&mut hasher);
            model.reached.lock().unwrap().insert(hasher.finish());
            model.settles(place)
        }));
        all
    }
}

/// A box that runs `runs`, and is to run `desired`.
fn start(runs: &[Name], desired: Name, on_unhealthy: OnUnhealthy, change: impl FnOnce(&mut Disk, &mut World)) -> Place {
    let mut disk = Disk::default();
    for (n, name) in runs.iter().enumerate() {
        let at = NOW.plus_s(-7200 + 60 * n as i64);
        disk.state.good.push(Applied {
            sha: name.sha(),
            at,
            images: BTreeSet::new(),
            ..applied("", Some(name.generation()))
        });
        disk.state.promotions.push(Promotion { sha: name.sha(), at });
        disk.releases.insert(name.sha(), true);
        disk.current = Some(name.sha());
    }
    if !runs.is_empty() {
        disk.token = Some(TokenSource::Lease);
        let seen_at = NOW.plus_s(-60);
        let source = TokenSource::Lease;
        disk.state.token = Some(TokenRecord { source, accessor: None, seen_at, ttl_s: Some(3000), renewable: true });
    }
    let mut world = World {
        desired: Some(desired),
        hold: false,
        tenancy_up: true,
        granted: 0,
        bao_up: true,
        saved: if runs.is_empty() { Life::Dead } else { Life::Long },
        candidate: Life::Dead,
        grant_accepted: true,
        docker_up: true,
        pulled: runs.to_vec(),
        running: runs.last().copied(),
        started: NOW.plus_s(-7000).0,
    };
    change(&mut disk, &mut world);
    let disk_key = disk_key(&disk);
    Place {
        on_unhealthy,
        disk: Arc::new(disk),
        disk_key,
        world,
        ghost: Arc::default(),
        flight: None,
        flight_key: 0,
        now: NOW,
        ticks: 3,
        faults: 2,
        changes: 1,
    }
}

fn starts() -> Vec<(&'static str, Place)> {
    use OnUnhealthy::{Keep, Rollback};
    let nothing = |_: &mut Disk, _: &mut World| {};
    vec![
        ("the first deploy, from a bootstrap grant", start(&[], Name::A, Keep, |disk, _| disk.bootstrap = true)),
        ("a new bundle", start(&[Name::A], Name::B, Keep, nothing)),
        ("a bundle that gets sick, and the box goes back", start(&[Name::A], Name::Sick, Rollback, nothing)),
        ("a bundle that gets sick, and stays", start(&[Name::A], Name::Sick, Keep, nothing)),
        ("a bundle that is none", start(&[Name::A], Name::Bad, Keep, nothing)),
        ("a bundle that is too old", start(&[Name::A, Name::B], Name::Old, Rollback, nothing)),
        ("a bundle without its image", start(&[Name::A], Name::NoPull, Rollback, nothing)),
        (
            "one lease left, and a bootstrap token to be swapped",
            start(&[Name::A], Name::B, Rollback, |disk, world| {
                disk.token = Some(TokenSource::Bootstrap);
                disk.state.leases = (1..=4).map(|n| NOW.plus_s(-1200 + 60 * n)).collect();
                world.granted = 4;
            }),
        ),
        (
            "a dead token and a grant that lives",
            start(&[Name::A], Name::B, Keep, |disk, world| {
                disk.grant = Some(GrantFacts { expires_at: Some(NOW.plus_s(400)), role: None });
                world.saved = Life::Dead;
            }),
        ),
        ("a token that is getting old", start(&[Name::A], Name::A, Keep, |_, world| world.saved = Life::Short)),
    ]
}

fn allow(starts: Vec<(&'static str, Place)>, ticks: u8, faults: u8, changes: u8) -> Vec<Place> {
    starts.into_iter().map(|(_, place)| Place { ticks, faults, changes, ..place }).collect()
}

/// Explores everything, and tells what is broken and how it came to that.
fn explore(
    what: &str,
    starts: Vec<Place>,
    bug: Option<Bug>,
    finish: HasDiscoveries,
) -> (HashSet<u64>, BTreeMap<&'static str, String>) {
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = Box1::new(starts, bug).checker().threads(threads).finish_when(finish).spawn_bfs().join();
    let found = checker.discoveries().into_iter().map(|(name, path)| {
        let acts: Vec<String> = path
            .into_vec()
            .into_iter()
            .filter_map(|(place, act)| {
                let next = place.flight.as_ref().and_then(|flight| flight.pending.front()).map(|e| e.op.name());
                act.map(|act| format!("{act:?} {}", next.map_or(String::new(), |op| format!("to {op:?}"))))
            })
            .collect();
        (name, acts.join("\n  "))
    });
    let found: BTreeMap<&'static str, String> = found.collect();
    let (states, s) = (checker.unique_state_count(), began.elapsed().as_secs_f64());
    println!("{what}: {states} states in {s:.1} s, {:.0} a second", states as f64 / s);
    (std::mem::take(&mut checker.model().reached.lock().unwrap()), found)
}

/// So much may happen: ticks, faults and changes.
type Bounds = (&'static str, u8, u8, u8);

/// How many different boxes and worlds there are within some bounds, in none of which anything is broken.
fn unbroken(all: &[Bounds]) -> usize {
    // Counted is what is a different box or world, whatever may still happen to it.
    let mut states = HashSet::new();
    let mut broken = Vec::new();
    for &(what, ticks, faults, changes) in all {
        let (more, found) = explore(what, allow(starts(), ticks, faults, changes), None, HasDiscoveries::All);
        states.extend(more);
        broken.extend(found.into_iter().map(|(name, path)| format!("{name}\n  {path}")));
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    println!("all together: {} different states, whatever was still allowed there", states.len());
    states.len()
}

#[test]
fn no_way_through_a_few_ticks_breaks_an_invariant() {
    let states = unbroken(&[
        ("two faults in two ticks", 2, 2, 0),
        ("a fault and a change in two ticks", 2, 1, 1),
        ("two changes in three ticks", 3, 0, 2),
        ("a fault and a change in three ticks", 3, 1, 1),
    ]);
    assert!(states >= 200_000, "only {states} states");
}

#[test]
#[ignore = "minutes: make soak"]
fn no_way_through_larger_bounds_does() {
    let states = unbroken(&[
        ("two faults and a change in two ticks", 2, 2, 1),
        ("a fault and two changes in three ticks", 3, 1, 2),
    ]);
    assert!(states >= 1_000_000, "only {states} states");
}

#[test]
fn every_seeded_bug_is_found_by_its_own_invariant() {
    let mut missed = Vec::new();
    for (bug, rule) in Bug::ALL {
        let finish = HasDiscoveries::AnyOf(BTreeSet::from([rule]));
        let (_, found) = explore(&format!("{bug:?}"), allow(starts(), 2, 1, 0), Some(bug), finish);
        if !found.contains_key(rule) {
            missed.push(format!("{bug:?} breaks {:?}, not {rule:?}", found.keys()));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
