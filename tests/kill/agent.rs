//! The agent killed at every stage of a first deploy, a second one, a rollback, and a report that is sent again.

use std::thread;
use std::time::Duration;

use monky_deployd::sandbox::http::Fault;
use monky_deployd::sandbox::tenancy::Call;
use serde_json::{Value, json};

use crate::common::rig::Rig;
use crate::site::{Settled, Site, delay};
use crate::watch::{DEPLOY, Killed, Moment, Process, Victim, Watched, kill};

/// What a suite did.
#[derive(Default)]
pub struct Tally {
    kills: usize,
    with_child: usize,
    ended_with: usize,
    went_on: usize,
    late: usize,
    ticks: Vec<usize>,
}

impl Tally {
    fn add(&mut self, killed: &Killed, victim: Victim, ticks: usize) {
        self.ticks.push(ticks);
        if !killed.alive {
            self.late += 1;
            return;
        }
        let with_child = killed.children > 0;
        self.kills += 1;
        self.with_child += usize::from(with_child);
        self.ended_with += usize::from(with_child && victim == Victim::WithChildren);
        self.went_on += usize::from(!killed.orphans.is_empty());
    }

    /// Says what was done, and fails if it was less than the suite claims: of kills, of those that ended a child too,
    /// of those whose child went on.
    pub fn tell(&self, suite: &str, at_least: [usize; 3]) {
        println!(
            "kill: {suite}: {} kills, {} with a child at work (of them {} killed with it, {} whose child went on), {} came too late; \
             {} ticks to settle, at most {} a kill; lost: nothing",
            self.kills,
            self.with_child,
            self.ended_with,
            self.went_on,
            self.late,
            self.ticks.iter().sum::<usize>(),
            self.ticks.iter().max().unwrap_or(&0),
        );
        let done = [self.kills, self.ended_with, self.went_on];
        assert!(done.iter().zip(at_least).all(|(done, claimed)| *done >= claimed), "{suite}: {done:?} of {at_least:?}");
    }
}

/// The binary under test is the one that is shipped: without the stand-ins, and so without `demo`.
fn is_the_shipped_one(rig: &Rig) {
    let ran = rig.run(&["demo", "--help"]);
    assert_eq!(ran.status, 2, "MONKY_DEPLOYD_BIN must name the binary that is shipped: run `make soak`");
}

/// Kills the tick that deploys `sha` at a moment, and lets the next ones settle it.
fn killed_at(
    site: &Site,
    sha: &str,
    moment: &Moment,
    victim: Victim,
    after: Duration,
    settled: &Settled<'_>,
) -> (Killed, usize) {
    let (name, has_come, _) = moment;
    let what = format!("{name}, {after:?} later, {victim:?}");
    let watched = Watched::new(site, sha);
    let agent = watched.until(name, has_come);
    thread::sleep(after);
    let killed = kill(agent, victim);
    let ticks = site.settles(&what, settled);
    site.is_whole(&what, settled, &killed.orphans);
    let met = match (killed.alive, killed.children) {
        (true, children) => format!("killed with {children} below it"),
        (false, _) => "too late".to_owned(),
    };
    println!("  {what}: {met}: settled after {ticks} ticks");
    (killed, ticks)
}

/// Kills a deploy of the next bundle at a moment; it is applied and told once.
fn deploy_killed(site: &Site, moment: &Moment, victim: Victim, after: Duration) -> (Killed, usize) {
    let sha = site.rig.desire(&site.bundle());
    let generation = site.generation.get();
    let settled = Settled { runs: (&sha, generation), says: format!("unchanged {}", &sha[..12]), exit: 0 };
    let ended = killed_at(site, &sha, moment, victim, after, &settled);
    let told = site.told(moment.0, &sha);
    assert_eq!((told.len(), &told[0]["result"]), (1, &json!("applied")), "{}: {told:?}", moment.0);
    ended
}

/// The `n`-th moment's kills, each with how many milliseconds later it may be: of a short moment one, at once or some
/// time later; where a child is at work, of the agent alone and of all together.
fn plan(n: usize, moment: &Moment) -> Vec<(Victim, u64)> {
    match (moment.2, n % 2) {
        (most @ 100.., _) => vec![(Victim::Alone, most), (Victim::WithChildren, most)],
        (most, 0) => vec![(Victim::WithChildren, most)],
        (_, _) => vec![(Victim::Alone, 0)],
    }
}

#[test]
#[ignore = "minutes long: make soak"]
fn a_first_deploy_that_is_killed_anywhere_is_finished_and_told_once() {
    let mut tally = Tally::default();
    let versions: Moment = ("versions are asked for", |w| w.children("version") > 0, 100);
    let points: Vec<(&Moment, Victim, u64)> = [&versions]
        .into_iter()
        .chain(DEPLOY)
        .enumerate()
        .flat_map(|(n, moment)| plan(n, moment).into_iter().map(move |(victim, most)| (moment, victim, most)))
        .collect();
    for (n, (moment, victim, most)) in points.into_iter().enumerate() {
        let Some(site) = Site::new() else { return };
        is_the_shipped_one(&site.rig);
        site.rig.bootstrap();
        let (killed, ticks) = deploy_killed(&site, moment, victim, delay(n as u64, most));
        tally.add(&killed, victim, ticks);
        site.rig.the_protocol_was_kept();
    }
    tally.tell("first deploy", [22, 4, 4]);
}

#[test]
#[ignore = "minutes long: make soak"]
fn a_second_deploy_that_is_killed_anywhere_is_finished_and_told_once() {
    let Some(site) = Site::new() else { return };
    is_the_shipped_one(&site.rig);
    let mut tally = Tally::default();
    site.rig.deploy(&site.bundle());
    let db = site.rig.life("db");
    let mut n = 100;
    for (at, moment) in DEPLOY.iter().enumerate() {
        // Once more when it has only just come; where a child is at work, in both ways.
        let early = if moment.2 < 100 { &[Victim::Alone][..] } else { &[Victim::Alone, Victim::WithChildren] };
        let early = early.iter().map(|victim| (*victim, moment.2.min(5)));
        for (victim, most) in plan(at + 1, moment).into_iter().chain(early) {
            n += 1;
            site.forget_token();
            let (killed, ticks) = deploy_killed(&site, moment, victim, delay(n, most));
            tally.add(&killed, victim, ticks);
            assert_eq!(site.rig.life("db"), db, "{}: what did not change was touched", moment.0);
        }
    }
    site.rig.the_protocol_was_kept();
    tally.tell("second deploy", [35, 10, 10]);
}

/// The moments of a rollback, from the promotion of what will fail.
const ROLLBACK: &[Moment] = &[
    ("the bad release is promoted", |w| w.promoted(&w.sha), 20),
    ("the bad release is brought up", |w| w.children("up") > 0, 800),
    ("its logs are read", |w| w.children("logs") > 0, 100),
    ("its quarantine is saved", |w| w.state()["attempts"][&w.sha]["quarantined"] == json!(true), 20),
    ("the good release is promoted again", |w| w.children("logs") > 0 && !w.promoted(&w.sha), 20),
    ("the good release is brought up again", |w| w.children("up") > 1, 800),
    ("the outcome is in the outbox", |w| w.put_out(), 10),
    ("the report arrived", |w| w.called("/reports"), 5),
];

#[test]
#[ignore = "minutes long: make soak"]
fn a_rollback_that_is_killed_anywhere_is_finished_and_told_once() {
    let Some(mut site) = Site::new() else { return };
    is_the_shipped_one(&site.rig);
    site.rig.set("on_unhealthy", "rollback");
    let mut tally = Tally::default();
    let good = site.rig.deploy(&site.bundle());
    let generation = site.generation.get();
    let mut n = 200;
    for (at, moment) in ROLLBACK.iter().enumerate() {
        for (victim, most) in plan(at, moment) {
            n += 1;
            let mut bad = site.bundle();
            let compose = String::from_utf8(bad["compose.yaml"].clone()).unwrap();
            let job = format!("  job: {{image: '{}', command: ['false']}}\n", site.rig.image("tool:1"));
            bad.insert("compose.yaml".to_owned(), (compose + &job).into_bytes());
            let sha = site.rig.desire(&bad);
            let settled = Settled { runs: (&good, generation), says: format!("quarantined {}", &sha[..12]), exit: 1 };
            let (killed, ticks) = killed_at(&site, &sha, moment, victim, delay(n, most), &settled);
            tally.add(&killed, victim, ticks);
            let told = site.told(moment.0, &sha);
            assert_eq!((told.len(), &told[0]["rolled_back"]), (1, &json!(true)), "{}: {told:?}", moment.0);
        }
    }
    site.rig.the_protocol_was_kept();
    tally.tell("rollback", [8, 2, 2]);
}

/// The moments of a tick that has two reports to send, and nothing else to do.
const RETRY: &[Moment] = &[
    ("the check-in arrived", |w| w.called("/checkin"), 5),
    ("the first report arrived", |w| w.called("/reports"), 1),
    ("the first report left the outbox", |w| w.site.outbox().len() < 2, 1),
];

#[test]
#[ignore = "minutes long: make soak"]
fn a_report_that_is_sent_again_is_recorded_once_wherever_it_is_killed() {
    let Some(site) = Site::new() else { return };
    is_the_shipped_one(&site.rig);
    let mut tally = Tally::default();
    site.rig.deploy(&site.bundle());
    for (n, moment) in (300..).zip(RETRY.iter().cycle().take(6)) {
        site.rig.tenancy.fail_always(Call::Report, Some(Fault::Drop));
        let shas = [(); 2].map(|()| {
            let sha = site.rig.desire(&site.bundle());
            site.rig.tick_ends(0);
            sha
        });
        assert_eq!(site.outbox().len(), 2);
        site.rig.tenancy.fail_always(Call::Report, None);
        let settled =
            Settled { runs: (&shas[1], site.generation.get()), says: format!("unchanged {}", &shas[1][..12]), exit: 0 };
        let (killed, ticks) = killed_at(&site, &shas[1], moment, Victim::Alone, delay(n, moment.2), &settled);
        tally.add(&killed, Victim::Alone, ticks);
        for sha in &shas {
            assert_eq!(site.told(moment.0, sha).len(), 1, "{}", moment.0);
        }
    }
    tally.tell("report sent again", [3, 0, 0]);
}

/// After the promotion everything is on the box: an interrupted apply needs nobody else.
#[test]
fn an_apply_that_was_interrupted_after_promotion_is_finished_though_tenancy_is_gone() {
    let Some(site) = Site::new() else { return };
    site.rig.deploy(&site.bundle());
    let after: Vec<&Moment> =
        DEPLOY.iter().skip_while(|moment| moment.0 != "the release is promoted").take(3).collect();
    for (moment, victim) in after.into_iter().zip([Victim::Alone, Victim::WithChildren, Victim::Alone]) {
        let sha = site.rig.desire(&site.bundle());
        let watched = Watched::new(&site, &sha);
        let agent = watched.until(moment.0, moment.1);
        let killed = kill(agent, victim);
        assert!(killed.alive, "{}", moment.0);
        site.rig.tenancy.set_reachable(false);
        let ran = site.rig.tick_ends(0);
        assert_eq!(ran.stdout.trim(), format!("applied {}", &sha[..12]), "{}: {ran:?}", moment.0);
        assert_eq!(site.rig.status()["applied"]["sha"], json!(sha));
        assert_eq!((site.outbox().len(), site.told(moment.0, &sha).len()), (1, 0), "{}", moment.0);
        site.rig.tenancy.set_reachable(true);
        let says = format!("unchanged {}", &sha[..12]);
        assert_eq!(site.rig.tick_ends(0).stdout.trim(), says);
        assert_eq!(site.told(moment.0, &sha).len(), 1, "{}", moment.0);
        site.is_whole(moment.0, &Settled { runs: (&sha, site.generation.get()), says, exit: 0 }, &killed.orphans);
    }
}

/// The worst that `kill -9` outside of a unit leaves: a `docker compose` that goes on by itself, here one that hangs,
/// while the next tick is about another bundle.
#[test]
fn an_orphaned_compose_is_ended_before_the_next_tick_starts_its_own() {
    let Some(site) = Site::new() else { return };
    site.rig.deploy(&site.bundle());
    site.registry.close("/manifests/");
    let stale = site.rig.desire(&site.bundle());
    let agent = Watched::new(&site, &stale).until("its pull waits", |w| w.site.registry.holds_one());
    let killed = kill(agent, Victim::Alone);
    assert!(killed.alive && !killed.orphans.is_empty() && killed.orphans.iter().all(Process::lives));
    let sha = site.rig.desire(&site.bundle());
    let agent = Watched::new(&site, &sha).until("a pull of its own", |w| w.children("pull") > 0);
    assert!(!killed.orphans.iter().any(Process::lives), "they still run: {:?}", killed.orphans);
    site.registry.open();
    let ran = agent.ended();
    assert_eq!(ran.stdout.trim(), format!("applied {}", &sha[..12]), "{ran:?}");
    let says = format!("unchanged {}", &sha[..12]);
    site.is_whole("orphan", &Settled { runs: (&sha, site.generation.get()), says, exit: 0 }, &[]);
    let results: Vec<Value> = site.told("orphan", &sha).iter().map(|report| report["result"].clone()).collect();
    assert_eq!(results, [json!("applied")]);
}
