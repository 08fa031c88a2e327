//! The verdict on a release: healthy, failing, or not known yet.
//!
//! Invariant: healthy is said only when every container of every service that the release is made of is fine at
//! the same look; whatever has failed once in this tick stays failed.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::effects::containers::{Container, ContainerState, Health, RestartPolicy};
use crate::effects::model::Service;
use crate::effects::{Stamp, by_service};

/// How a container was at an earlier look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Its `StartedAt`, in Docker's words.
    pub started_at: String,
    /// Its `RestartCount`.
    pub restart_count: u64,
    /// When this agent first saw it run with that `StartedAt`; none before `up`.
    pub since: Option<Stamp>,
    /// If it was unhealthy before `up` and nothing else since: how often in a row its check had failed at the first look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwell: Option<u64>,
    /// It did not run well before `up`, and `up` has not touched it since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_bad: bool,
}

/// The earlier looks, by container id.
pub type Baseline = BTreeMap<String, Seen>;

/// What keeps a service from being fine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The service.
    pub service: String,
    /// Its container, if there is one: the id.
    pub id: Option<String>,
    /// What is wrong, or waited for.
    pub why: String,
}

/// A [`Finding`] of a look, as long as the look is at hand: most looks only say that it is too early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The service.
    pub service: &'a str,
    /// Its container, if there is one: the id.
    pub id: Option<&'a str>,
    /// What is wrong, or waited for.
    pub why: Cow<'static, str>,
}

impl Found<'_> {
    /// To be kept.
    pub fn keep(self) -> Finding {
        let Found { service, id, why } = self;
        Finding { service: service.to_owned(), id: id.map(str::to_owned), why: why.into_owned() }
    }
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// All is well.
    Healthy,
    /// Too early to say: what is waited for.
    Waiting(Vec<Found<'a>>),
    /// It failed.
    Failing(Vec<Found<'a>>),
}

/// What was there before `up`: restarts from then on count, a start that `up` makes does not, and neither does what a
/// healthcheck found earlier.
pub fn before_up(containers: &[Container]) -> Baseline {
    let seen = |c: &Container| Seen {
        started_at: c.started_at.clone(),
        restart_count: c.restart_count,
        since: None,
        unwell: streak(c),
        was_bad: c.state != ContainerState::Running || c.health == Some(Health::Unhealthy),
    };
    containers.iter().map(|c| (c.id.clone(), seen(c))).collect()
}

enum Fine {
    Yes,
    NotYet(Cow<'static, str>),
    No(Cow<'static, str>),
}

/// Whether Docker starts a container again that ended well.
fn kept_running(policy: RestartPolicy) -> bool {
    match policy {
        RestartPolicy::No | RestartPolicy::OnFailure => false,
        RestartPolicy::Always | RestartPolicy::UnlessStopped => true,
    }
}

/// How often in a row the check of an unhealthy container has failed.
fn streak(c: &Container) -> Option<u64> {
    c.probe.as_ref().filter(|_| c.health == Some(Health::Unhealthy)).map(|probe| probe.streak)
}

/// Of what was unhealthy before `up`, whether its check has not failed since as often as makes a container unhealthy:
/// what made it fail may just have been mended. Docker itself asks for no more than one failure then.
fn may_recover(c: &Container, seen: &Seen) -> bool {
    let first_and_now = seen.unwell.zip(c.probe.as_ref());
    first_and_now.is_some_and(|(first, probe)| probe.streak < first.saturating_add(probe.retries))
}

/// Whether something was unhealthy before `up`, and nothing else since.
pub fn was_unwell(baseline: &Baseline) -> bool {
    baseline.values().any(|seen| seen.unwell.is_some())
}

/// Whether the others may go on with it that waited for it to be healthy.
pub fn is_well(c: &Container) -> bool {
    c.state == ContainerState::Running && c.health != Some(Health::Unhealthy)
}

/// Whether `up` started it; what Docker started again by itself has one restart more.
fn is_started(c: &Container, seen: &Seen) -> bool {
    c.started_at != seen.started_at && c.restart_count <= seen.restart_count
}

/// What has failed at a look between two `up`s of a release. What did not run well before and waits for the second is not
/// the release's, unless `waited_for` (ids) itself.
pub fn failing_between<'a>(
    services: &'a BTreeMap<String, Service>,
    containers: &'a [Container],
    baseline: &mut Baseline,
    now: Stamp,
    stable_s: u64,
    waited_for: &[String],
) -> Vec<Found<'a>> {
    for c in containers {
        if let Some(seen) = baseline.get_mut(&c.id).filter(|seen| is_started(c, seen)) {
            seen.was_bad = false;
        }
    }
    let Verdict::Failing(mut failing) = judge(services, containers, baseline, now, stable_s) else { return Vec::new() };
    let was_bad = |id: &str| baseline.get(id).is_some_and(|seen| seen.was_bad);
    failing.retain(|found| found.id.is_none_or(|id| !was_bad(id) || waited_for.iter().any(|one| one == id)));
    failing
}

fn judge_one(c: &Container, seen: &Seen, now: Stamp, stable_s: u64) -> Fine {
    let error = || if c.error.as_str().is_empty() { String::new() } else { format!(": {}", c.error) };
    match c.state {
        ContainerState::Dead => Fine::No(format!("dead{}", error()).into()),
        ContainerState::Restarting => Fine::No(format!("restarting after exit {}{}", c.exit_code, error()).into()),
        ContainerState::Created if c.error.as_str().is_empty() => Fine::NotYet("created, not started".into()),
        ContainerState::Created => Fine::No(format!("could not be started{}", error()).into()),
        ContainerState::Exited if c.exit_code != 0 => {
            Fine::No(format!("exited with {}{}", c.exit_code, error()).into())
        }
        ContainerState::Exited if kept_running(c.restart_policy) => {
            Fine::No("exited with 0, though it is to be kept running".into())
        }
        ContainerState::Exited => Fine::Yes,
        ContainerState::Paused => Fine::NotYet("paused".into()),
        ContainerState::Removing => Fine::NotYet("being removed".into()),
        ContainerState::Running => match c.health {
            Some(Health::Unhealthy) if may_recover(c, seen) => Fine::NotYet("unhealthy from before".into()),
            // Docker calls what was paused unhealthy, whatever its check found.
            Some(Health::Unhealthy) if c.probe.as_ref().is_some_and(|probe| probe.streak < probe.retries) => {
                Fine::NotYet("unhealthy though its check was not, until it runs again".into())
            }
            Some(Health::Unhealthy) => Fine::No("unhealthy".into()),
            Some(Health::Starting) => Fine::NotYet("health: starting".into()),
            Some(Health::Healthy) => Fine::Yes,
            None => {
                let ran_ms = seen.since.map_or(0, |since| now.since_ms(since));
                let stable_ms = i64::try_from(stable_s).unwrap_or(i64::MAX).saturating_mul(1000);
                if ran_ms >= stable_ms {
                    Fine::Yes
                } else {
                    Fine::NotYet(format!("running, for {stable_s} s yet to be seen").into())
                }
            }
        },
    }
}

/// Judges one look at the containers, and remembers it in `baseline`.
///
/// `services` are the services the release is made of.
pub fn judge<'a>(
    services: &'a BTreeMap<String, Service>,
    containers: &'a [Container],
    baseline: &mut Baseline,
    now: Stamp,
    stable_s: u64,
) -> Verdict<'a> {
    let mut failing = Vec::new();
    let mut waiting = Vec::with_capacity(containers.len());
    let sorted = by_service(containers);
    for (service, Service { scale, .. }) in services {
        let mine = || sorted.iter().filter(|c| c.service == *service);
        let count = mine().count();
        if count < usize::try_from(*scale).unwrap_or(usize::MAX) {
            waiting.push(Found { service, id: None, why: format!("{count} of {scale} containers").into() });
        }
        for c in mine() {
            let seen = match baseline.get_mut(&c.id) {
                Some(seen) => seen,
                None => {
                    let fresh = Seen { started_at: c.started_at.clone(), restart_count: 0, ..Seen::default() };
                    baseline.entry(c.id.clone()).or_insert(fresh)
                }
            };
            let fine = if c.restart_count > seen.restart_count {
                Fine::No(format!("restarted by itself, last exit {}", c.exit_code).into())
            } else if seen.since.is_some() && c.started_at != seen.started_at {
                Fine::No("was started again while it was watched".into())
            } else {
                let first_look = seen.since.is_none() && c.state == ContainerState::Running;
                if first_look {
                    // What `up` started again begins anew.
                    let before = seen.unwell.filter(|_| seen.started_at == c.started_at);
                    // Fewer failures in a row than then: it was well in between.
                    seen.unwell = streak(c).filter(|streak| before.is_some_and(|before| *streak >= before));
                    seen.started_at.clone_from(&c.started_at);
                    seen.since = Some(now);
                } else if c.health != Some(Health::Unhealthy) {
                    seen.unwell = None;
                }
                judge_one(c, seen, now, stable_s)
            };
            let found = |why| Found { service, id: Some(&c.id), why };
            match fine {
                Fine::Yes => {}
                Fine::NotYet(why) => waiting.push(found(why)),
                Fine::No(why) => failing.push(found(why)),
            }
        }
    }
    if !failing.is_empty() {
        Verdict::Failing(failing)
    } else if waiting.is_empty() {
        Verdict::Healthy
    } else {
        Verdict::Waiting(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::containers::Probe;
    use crate::effects::{Scrub, Scrubbed};

    /// No secret is in these words.
    struct Plain;

    impl Scrub for Plain {
        fn scrub(&self, text: &str) -> String {
            text.to_owned()
        }
    }

    fn said(words: &str) -> Scrubbed {
        Scrubbed::new(&Plain, words)
    }

    /// A container of the only service, `a`.
    fn container(state: ContainerState, change: impl FnOnce(&mut Container)) -> Container {
        let mut c = Container {
            id: "1".to_owned(),
            name: "p-a-1".to_owned(),
            service: "a".to_owned(),
            image_id: String::new(),
            state,
            health: None,
            probe: None,
            exit_code: 0,
            error: Scrubbed::default(),
            restart_count: 0,
            restart_policy: RestartPolicy::No,
            started_at: String::new(),
            started: None,
        };
        change(&mut c);
        c
    }

    /// What one look after `up` says of it: a word, and why.
    fn verdict(c: &Container, stable_s: u64) -> (&'static str, String) {
        let services = BTreeMap::from([("a".to_owned(), Service { scale: 1, ..Service::default() })]);
        let why = |found: Vec<Found<'_>>| found.into_iter().map(|f| f.why.into_owned()).collect::<Vec<_>>().join("; ");
        match judge(&services, std::slice::from_ref(c), &mut Baseline::new(), Stamp(0), stable_s) {
            Verdict::Healthy => ("healthy", String::new()),
            Verdict::Waiting(found) => ("waiting", why(found)),
            Verdict::Failing(found) => ("failing", why(found)),
        }
    }

    #[test]
    fn every_state_of_a_container_has_its_verdict() {
        use ContainerState::{Created, Dead, Exited, Paused, Removing, Restarting, Running};
        let cases = [
            (container(Dead, |_| ()), "failing", "dead"),
            (container(Dead, |c| c.error = said("oom")), "failing", "dead: oom"),
            (container(Restarting, |c| c.exit_code = 3), "failing", "restarting after exit 3"),
            (container(Created, |_| ()), "waiting", "created, not started"),
            (container(Created, |c| c.error = said("no such file")), "failing", "could not be started: no such file"),
            (container(Exited, |c| c.exit_code = 7), "failing", "exited with 7"),
            (container(Exited, |_| ()), "healthy", ""),
            (container(Paused, |_| ()), "waiting", "paused"),
            (container(Removing, |_| ()), "waiting", "being removed"),
            (container(Running, |c| c.health = Some(Health::Unhealthy)), "failing", "unhealthy"),
            (container(Running, |c| c.health = Some(Health::Starting)), "waiting", "health: starting"),
            (container(Running, |c| c.health = Some(Health::Healthy)), "healthy", ""),
            (container(Running, |_| ()), "waiting", "running, for 10 s yet to be seen"),
        ];
        for (c, word, why) in cases {
            assert_eq!(verdict(&c, 10), (word, why.to_owned()), "{c:?}");
        }
    }

    /// Running, with a healthcheck that has failed so often in a row; twice makes it unhealthy.
    fn probed(health: Health, streak: u64) -> Container {
        container(ContainerState::Running, |c| {
            c.health = Some(health);
            c.probe = Some(Probe { exit_code: i64::from(streak > 0), said: said(""), streak, retries: 2 });
        })
    }

    /// What the looks after `up` say of the only container, which was so before.
    fn verdicts<const N: usize>(before: &Container, looks: [Container; N]) -> [&'static str; N] {
        let services = BTreeMap::from([("a".to_owned(), Service { scale: 1, ..Service::default() })]);
        let mut baseline = before_up(std::slice::from_ref(before));
        looks.map(|now| match judge(&services, std::slice::from_ref(&now), &mut baseline, Stamp(0), 10) {
            Verdict::Healthy => "healthy",
            Verdict::Waiting(_) => "waiting",
            Verdict::Failing(_) => "failing",
        })
    }

    #[test]
    fn what_is_unhealthy_from_before_up_may_fail_as_often_again_as_what_is_new() {
        use Health::{Healthy, Starting, Unhealthy};
        let sick = |streak| probed(Unhealthy, streak);
        let well = || probed(Healthy, 0);
        // Counted from the first look: until then `up` was at work.
        assert_eq!(verdicts(&sick(5), [sick(9), sick(10), sick(11)]), ["waiting", "waiting", "failing"]);
        assert_eq!(verdicts(&sick(5), [sick(5), sick(6), well()]), ["waiting", "waiting", "healthy"]);
        assert_eq!(verdicts(&well(), [well()]), ["healthy"]);
        assert_eq!(verdicts(&well(), [sick(2)]), ["failing"]);
        // What was fine in between has used it up, also while `up` was at work.
        assert_eq!(verdicts(&sick(5), [sick(4)]), ["failing"]);
        assert_eq!(verdicts(&sick(5), [sick(5), probed(Starting, 0), sick(2)]), ["waiting", "waiting", "failing"]);
        // Started again by `up`, another container, or a Docker that tells nothing of its checks.
        let again = |streak| Container { started_at: "later".to_owned(), ..sick(streak) };
        assert_eq!(verdicts(&sick(5), [again(2)]), ["failing"]);
        let another = |streak| Container { id: "2".to_owned(), ..sick(streak) };
        assert_eq!(verdicts(&sick(5), [another(2)]), ["failing"]);
        let silent = || container(ContainerState::Running, |c| c.health = Some(Unhealthy));
        assert_eq!(verdicts(&silent(), [silent()]), ["failing"]);
    }

    #[test]
    fn between_two_ups_what_was_bad_before_and_is_not_touched_yet_does_not_count() {
        use ContainerState::{Created, Dead, Exited, Restarting, Running};
        use Health::{Healthy, Unhealthy};
        let services = BTreeMap::from([("a".to_owned(), Service { scale: 1, ..Service::default() })]);
        let fails_as = |before: &[Container], looks: &[Container], waited_for: &[String]| -> Vec<bool> {
            let mut baseline = before_up(before);
            let fails = |now| !failing_between(&services, now, &mut baseline, Stamp(0), 10, waited_for).is_empty();
            looks.iter().map(std::slice::from_ref).map(fails).collect()
        };
        let fails = |before: &Container, looks: &[Container]| fails_as(std::slice::from_ref(before), looks, &[]);
        let sick = |streak| probed(Unhealthy, streak);
        let exited = |at: &str| container(Exited, |c| (c.exit_code, c.started_at) = (1, at.to_owned()));
        let runs =
            |at: &str, restarts| container(Running, |c| (c.started_at, c.restart_count) = (at.to_owned(), restarts));
        let loops = |at: &str, restarts| Container { state: Restarting, ..runs(at, restarts) };
        for bad in [exited(""), container(Dead, |_| ()), container(Created, |c| c.error = said("no")), sick(5)] {
            assert_eq!(fails(&bad, &[bad.clone(), bad.clone()]), [false, false], "{bad:?}");
        }
        assert_eq!(fails(&sick(5), &[sick(5), sick(9), sick(99)]), [false; 3]);
        assert_eq!(fails(&loops("t1", 1), &[runs("t2", 2), loops("t2", 3), runs("t3", 4)]), [false; 3]);
        // Started by `up`, or made by it, it counts from then on.
        assert_eq!(fails(&exited("t1"), &[exited("t1"), runs("t2", 0), exited("t2")]), [false, false, true]);
        assert_eq!(fails(&exited("t1"), &[exited("t2")]), [true]);
        assert_eq!(fails(&loops("t1", 3), &[runs("t2", 0), runs("t3", 1)]), [false, true]);
        assert_eq!(fails_as(&[], &[runs("t1", 0), exited("t1")], &[]), [false, true]);
        // What ran well before counts.
        assert_eq!(fails(&runs("t1", 0), &[runs("t1", 0), exited("t1")]), [false, true]);
        assert_eq!(fails(&runs("t1", 0), &[loops("t1", 1)]), [true]);
        assert_eq!(fails(&probed(Healthy, 0), &[sick(2)]), [true]);
        // And so does what is waited for, from the first look on.
        let waited_for = |looks: &[Container]| fails_as(&[sick(5)], looks, &["1".to_owned()]);
        assert_eq!(waited_for(&[sick(7), sick(8), sick(9)]), [false, false, true]);
        assert_eq!(waited_for(&[sick(4)]), [true], "it was well in between");
        assert_eq!(waited_for(&[sick(5), probed(Healthy, 0), sick(2)]), [false, false, true]);
        assert_eq!(waited_for(&[sick(5), Container { state: Exited, exit_code: 137, ..sick(5) }]), [false, true]);
    }

    #[test]
    fn what_is_called_unhealthy_without_failures_enough_is_waited_for() {
        let paused = |streak| probed(Health::Unhealthy, streak);
        assert_eq!(
            verdicts(&probed(Health::Healthy, 0), [paused(0), paused(1), paused(2)]),
            ["waiting", "waiting", "failing"]
        );
    }

    #[test]
    fn what_could_not_be_counted_to_is_failing() {
        let sick = || probed(Health::Unhealthy, u64::MAX);
        assert_eq!(verdicts(&sick(), [sick()]), ["failing"]);
    }

    #[test]
    fn one_that_ended_well_is_fine_unless_docker_is_to_keep_it_running() {
        use RestartPolicy::{Always, No, OnFailure, UnlessStopped};
        for (policy, word) in [(No, "healthy"), (OnFailure, "healthy"), (Always, "failing"), (UnlessStopped, "failing")]
        {
            let ended = container(ContainerState::Exited, |c| c.restart_policy = policy);
            assert_eq!(verdict(&ended, 10).0, word, "{policy:?}");
        }
    }

    #[test]
    fn without_a_health_check_it_is_fine_once_it_was_seen_to_run_for_long_enough() {
        let services = BTreeMap::from([("a".to_owned(), Service { scale: 1, ..Service::default() })]);
        let (mut baseline, c) = (Baseline::new(), [container(ContainerState::Running, |_| ())]);
        let mut at = |ms: i64| judge(&services, &c, &mut baseline, Stamp(ms), 10) == Verdict::Healthy;
        assert_eq!([at(5_000), at(14_999), at(15_000)], [false, false, true]);
    }
}
