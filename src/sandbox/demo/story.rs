//! The story: eight steps, what is done in each, and what is claimed of it.
//!
//! Invariant: a claim is a plain function of what was seen; nothing is claimed that is not compared with it.

use std::collections::BTreeSet;
use std::fmt::Debug;

use serde_json::Value;

use super::set::{REGISTRY, Seen, Set, Trouble, WEB_LOGS};
use crate::effects::failure::Code;
use crate::effects::state::TokenSource;
use crate::effects::{Kind, Op, OpName, Sha};

/// The box that most of the story is about.
pub const FIRST: &str = "plant-7";
/// The box that comes at a bad moment.
pub const SECOND: &str = "plant-8";

/// One thing said of what was seen, and whether it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What is said.
    pub says: String,
    /// Why it does not hold.
    pub differs: Option<String>,
}

/// One part of a step: something is done to a box, and looked at.
pub struct Part {
    /// What is about to happen, in plain English.
    pub words: &'static str,
    /// On this box.
    pub env_id: &'static str,
    /// What is done.
    pub act: Act,
    /// What is claimed of it.
    pub claims: fn(&Seen) -> Vec<Claim>,
}

/// What is done in a part.
#[derive(Clone, Copy)]
pub enum Act {
    /// This, and it is looked at.
    Alone(fn(&mut Set) -> Result<(), Trouble>),
    /// This, then a tick, and the tick is looked at.
    ThenTick(fn(&mut Set) -> Result<(), Trouble>),
}

/// One step of the story.
pub struct Step {
    /// Its heading.
    pub title: &'static str,
    /// Its parts, one after another.
    pub parts: &'static [Part],
}

/// The whole story. The steps build on each other.
pub const STEPS: &[Step] = &[
    Step {
        title: "A box is bootstrapped",
        parts: &[Part {
            words: "Whoever sets up a box gets a one-time grant from tenancy and stores it with `monky-deployd \
                    bootstrap`. Nothing else happens: the next tick logs in with it.",
            env_id: FIRST,
            act: Act::Alone(|set| set.bootstrap(FIRST)),
            claims: bootstrapped,
        }],
    },
    Step {
        title: "The first deploy",
        parts: &[Part {
            words: "Tenancy wants a bundle: a web server and a database. The tick fetches it, logs in with the \
                    bootstrap grant, swaps that token for a leased one, reads the secrets, pulls with the registry \
                    credential, brings the release up, waits until it is healthy, and reports.",
            env_id: FIRST,
            act: Act::ThenTick(|set| set.desire(FIRST, 1, "web:1.0")),
            claims: first_deploy,
        }],
    },
    Step {
        title: "A tick with nothing to do",
        parts: &[Part {
            words: "Nearly every tick is like this one: the desired bundle is the applied one. It asks tenancy, and \
                    that is all.",
            env_id: FIRST,
            act: Act::ThenTick(|_| Ok(())),
            claims: unchanged,
        }],
    },
    Step {
        title: "The second deploy, with the same token",
        parts: &[Part {
            words: "Tenancy wants web 1.1. The saved token lives and has time left, so it is used again and no lease \
                    is spent. Only what changed is recreated: the database is left running.",
            env_id: FIRST,
            act: Act::ThenTick(|set| set.desire(FIRST, 2, "web:1.1")),
            claims: second_deploy,
        }],
    },
    Step {
        title: "A lease that is not to be had",
        parts: &[Part {
            words: "Another box, plant-8, is deployed for the first time while tenancy grants it no lease (HTTP 429). \
                    The bootstrap token works, so the deploy goes on with it and the swap is put off.",
            env_id: SECOND,
            act: Act::ThenTick(|set| {
                set.add_box(SECOND)?;
                set.bootstrap(SECOND)?;
                set.tenancy.lease_budget(Some(0));
                set.desire(SECOND, 1, "web:1.0")
            }),
            claims: swap_deferred,
        }],
    },
    Step {
        title: "An image that cannot be pulled",
        parts: &[Part {
            words: "Back on plant-7: tenancy wants web 9.9, which the registry does not have. The registry's own \
                    words reach the journal and tenancy, and nothing that runs is touched.",
            env_id: FIRST,
            act: Act::ThenTick(|set| {
                set.tenancy.lease_budget(Some(crate::sandbox::tenancy::LEASES_AN_HOUR));
                set.desire(FIRST, 3, "web:9.9")
            }),
            claims: pull_failed,
        }],
    },
    Step {
        title: "A release that gets unhealthy",
        parts: &[
            Part {
                words: "Tenancy wants web 1.2, whose healthcheck fails. The configuration says `on_unhealthy: \
                        rollback`, so the last good release is brought back up and waited for.",
                env_id: FIRST,
                act: Act::ThenTick(|set| set.desire(FIRST, 4, "web:1.2")),
                claims: rolled_back,
            },
            Part {
                words: "The next tick: tenancy still wants it. It is quarantined: left alone until another bundle is \
                        desired or an operator says `--force`.",
                env_id: FIRST,
                act: Act::ThenTick(|_| Ok(())),
                claims: quarantined,
            },
        ],
    },
    Step {
        title: "A rollback that nobody meant",
        parts: &[Part {
            words: "Tenancy goes back to the first bundle, which is older than the applied one and does not say \
                    `allow_rollback`. It is refused before anything is leased, staged or run.",
            env_id: FIRST,
            act: Act::ThenTick(|set| set.desire(FIRST, 1, "web:1.0")),
            claims: rollback_refused,
        }],
    },
];

/// Claims that what was found is what was wanted.
fn same<T: PartialEq + Debug>(says: &str, found: &T, wanted: &T) -> Claim {
    let differs = (found != wanted).then(|| format!("wanted {wanted:?}, found {found:?}"));
    Claim { says: says.to_owned(), differs }
}

/// Claims that something is so; `found` is told if it is not.
fn that(says: &str, so: bool, found: &dyn Debug) -> Claim {
    Claim { says: says.to_owned(), differs: (!so).then(|| format!("found {found:?}")) }
}

/// What the words of a claim come down to.
impl Seen {
    fn exit(&self) -> Option<(u8, &str, Option<Code>)> {
        let done = &self.tick.as_ref()?.done;
        Some((done.exit.status(), done.word.as_str(), done.code))
    }

    fn applied(&self) -> Option<&Sha> {
        self.after.applied.as_ref().map(|(sha, _)| sha)
    }

    fn leases_granted(&self) -> usize {
        self.after.leases.saturating_sub(self.before.leases)
    }

    /// The requests to tenancy whose path ends so, as status and body.
    fn asked<'a>(&'a self, end: &'a str) -> impl Iterator<Item = (Option<u16>, &'a Value)> {
        self.tenancy.iter().filter(move |it| it.path.ends_with(end)).map(|it| (it.status, &it.body))
    }

    /// The only report that tenancy took.
    fn report(&self) -> Option<&Value> {
        let mut taken = self.asked("/reports").filter(|(status, _)| status.is_some_and(|it| it / 100 == 2));
        taken.next().map(|(_, body)| body).filter(|_| taken.next().is_none())
    }

    fn reported(&self, key: &str) -> &Value {
        self.report().and_then(|report| report.get(key)).unwrap_or(&Value::Null)
    }

    fn reported_text(&self, key: &str) -> &str {
        self.reported(key).as_str().unwrap_or_default()
    }

    fn logins(&self) -> usize {
        self.bao.iter().filter(|it| it.path.ends_with("/login") && it.status == Some(200)).count()
    }

    fn journal_has(&self, words: &str) -> bool {
        self.tick.iter().flat_map(|tick| &tick.notes).any(|note| note.text.contains(words))
    }

    /// The verbs of Compose that were called, in order.
    fn composed(&self) -> Vec<&'static str> {
        let verb = |call: &Vec<String>| {
            let has = |word: &str| call.iter().any(|it| it == word);
            let verb = ["config", "pull", "up", "version"].into_iter().find(|verb| has(verb))?;
            let compose = call.first().is_some_and(|it| it == "compose");
            compose.then_some(if verb == "config" && has("-q") { "config -q" } else { verb })
        };
        self.docker.iter().filter_map(verb).collect()
    }

    fn count(&self, name: OpName) -> usize {
        self.tick.iter().flat_map(|tick| &tick.effects).filter(|(_, op)| op.name() == name).count()
    }

    /// The effects that write to the disk.
    fn writes(&self) -> usize {
        self.tick.iter().flat_map(|tick| &tick.effects).filter(|(_, op)| op.name().kind() == Kind::Write).count()
    }

    fn recreated(&self) -> BTreeSet<&str> {
        let old = &self.before.containers;
        let anew = self.after.containers.iter().filter(|(service, it)| old.get(*service).is_none_or(|o| o.id != it.id));
        anew.map(|(service, _)| service.as_str()).collect()
    }

    fn states(&self) -> Vec<(&str, &str)> {
        self.after.containers.iter().map(|(service, it)| (service.as_str(), it.state.as_str())).collect()
    }
}

const WELL: [(&str, &str); 2] = [("db", "running"), ("web", "running, healthy")];

/// What is claimed of every tick that deploys, whatever comes of it.
fn no_secret_seen(seen: &Seen) -> Claim {
    let says = "no secret's value is in an argument, a request to tenancy, the journal, an effect or state.json";
    same(says, &seen.leaks, &BTreeSet::new())
}

/// What is claimed of every deploy that succeeds.
fn deployed(seen: &Seen) -> Vec<Claim> {
    vec![
        same("exit status 0, `applied`", &seen.exit(), &Some((0, "applied", None))),
        that(
            "what is applied, what `current` points at and what tenancy wants are one bundle",
            seen.desired.is_some() && seen.applied() == seen.desired.as_ref() && seen.after.current == seen.desired,
            &(&seen.after.applied, &seen.after.current, &seen.desired),
        ),
        same("docker was called for config, config -q, pull, up, in this order", &order(seen), &PULL_AND_UP.to_vec()),
        same("web is healthy and db runs", &seen.states(), &WELL.to_vec()),
        that(
            "tenancy got one report, `applied`, and none waits",
            seen.reported_text("result") == "applied" && seen.after.reports_waiting == 0,
            &(seen.report(), seen.after.reports_waiting),
        ),
    ]
}

const PULL_AND_UP: [&str; 4] = ["config", "config -q", "pull", "up"];

/// Compose's verbs without the question for its version, which may be asked at any moment.
fn order(seen: &Seen) -> Vec<&'static str> {
    seen.composed().into_iter().filter(|verb| *verb != "version").collect()
}

fn bootstrapped(seen: &Seen) -> Vec<Claim> {
    let open: Vec<_> = seen.after.files.iter().filter(|(_, it)| it.mode != 0o600).map(|(name, _)| name).collect();
    let names: Vec<&str> = seen.after.files.keys().map(String::as_str).collect();
    vec![
        same("there is one file, bootstrap.jwt", &names, &vec!["bootstrap.jwt"]),
        that("only its owner may read it (mode 0600)", open.is_empty() && !names.is_empty(), &open),
        same("no server was asked anything", &(seen.tenancy.len() + seen.bao.len()), &0),
        same("docker was not called", &seen.docker.len(), &0),
    ]
}

fn first_deploy(seen: &Seen) -> Vec<Claim> {
    let mut claims = deployed(seen);
    let sources: Vec<TokenSource> = seen
        .tick
        .iter()
        .flat_map(|tick| &tick.effects)
        .filter_map(|(_, op)| if let Op::SaveToken(save) = op { Some(save.source) } else { None })
        .collect();
    let registries: Vec<&str> = seen.after.registries.iter().map(String::as_str).collect();
    let both = seen.after.containers.values().filter(|it| it.has_secret).count();
    claims.extend([
        same("one lease was granted", &seen.leases_granted(), &1),
        same("two logins: with the bootstrap grant, then with the leased one", &seen.logins(), &2),
        same(
            "the bootstrap token was saved first, then the leased one",
            &sources,
            &vec![TokenSource::Bootstrap, TokenSource::Lease],
        ),
        same("one token lives at OpenBao: the bootstrap one was revoked", &seen.after.tokens.len(), &1),
        that("the bootstrap grant is gone from the disk", !seen.after.bootstrap_waits, &seen.after.files.keys()),
        same("docker had the credential of the registry, which asks for one", &registries, &vec![REGISTRY]),
        same("both containers have the database's password", &both, &2),
        no_secret_seen(seen),
    ]);
    claims
}

fn unchanged(seen: &Seen) -> Vec<Claim> {
    let requests: Vec<&str> = seen.tenancy.iter().filter_map(|it| it.path.rsplit('/').next()).collect();
    vec![
        same("exit status 0, `unchanged`", &seen.exit(), &Some((0, "unchanged", None))),
        same("one request reached tenancy: the check-in", &requests, &vec!["checkin"]),
        same("no request reached OpenBao", &seen.bao.len(), &0),
        same("no child process was started", &seen.docker.len(), &0),
        that(
            "not one file was written",
            seen.before.files == seen.after.files && seen.writes() == 0,
            &(changed_files(seen), seen.writes()),
        ),
    ]
}

fn second_deploy(seen: &Seen) -> Vec<Claim> {
    let mut claims = deployed(seen);
    claims.extend([
        same("no lease was asked for", &seen.asked("/leases").count(), &0),
        same("no login", &seen.logins(), &0),
        that(
            "the same token lives, and no other",
            seen.before.tokens == seen.after.tokens && seen.after.tokens.len() == 1,
            &(&seen.before.tokens, &seen.after.tokens),
        ),
        same("web alone was recreated", &seen.recreated(), &BTreeSet::from(["web"])),
        no_secret_seen(seen),
    ]);
    claims
}

fn swap_deferred(seen: &Seen) -> Vec<Claim> {
    let mut claims = deployed(seen);
    let answers: Vec<Option<u16>> = seen.asked("/leases").map(|(status, _)| status).collect();
    claims.extend([
        same("one lease was asked for, and refused with 429", &answers, &vec![Some(429)]),
        same(
            "no lease was granted, and the refused one is not counted",
            &(seen.leases_granted(), seen.after.leases_remembered),
            &(0, 0),
        ),
        same("the saved token is the bootstrap one", &seen.after.token, &Some(TokenSource::Bootstrap)),
        that(
            "the journal says that the swap is put off",
            seen.journal_has("LEASE_RATE_LIMITED") && seen.journal_has("its swap is put off"),
            &seen.tick.as_ref().map(|tick| &tick.notes),
        ),
        no_secret_seen(seen),
    ]);
    claims
}

/// What the registry says of an image that it does not have.
fn registry_words() -> String {
    format!("manifest for {REGISTRY}/shop/web:9.9 not found: manifest unknown")
}

/// Nothing that runs or is applied was touched.
fn untouched(seen: &Seen) -> Claim {
    let parts = |facts: &super::set::Facts| (facts.applied.clone(), facts.current.clone(), facts.containers.clone());
    let (before, after) = (parts(&seen.before), parts(&seen.after));
    let says = "the same containers run as before, and the same bundle is applied and current";
    that(says, before == after && !after.2.is_empty(), &(before, after))
}

fn pull_failed(seen: &Seen) -> Vec<Claim> {
    let words = registry_words();
    vec![
        same("exit status 1, PULL_FAILED", &seen.exit(), &Some((1, "failed", Some(Code::PullFailed)))),
        that(
            "the registry's own words are in the journal",
            seen.journal_has(&words),
            &seen.tick.as_ref().map(|tick| &tick.notes),
        ),
        that(
            "they are in the report: `failed`, PULL_FAILED, in phase `pull`",
            seen.reported_text("detail").starts_with("compose pull: ")
                && seen.reported_text("detail").contains(&words)
                && seen.reported_text("code") == "PULL_FAILED"
                && seen.reported_text("result") == "failed"
                && seen.reported_text("phase") == "pull",
            &seen.report(),
        ),
        same(
            "docker was called for config, config -q, pull, and no `up`",
            &order(seen),
            &vec!["config", "config -q", "pull"],
        ),
        untouched(seen),
        same("no lease was asked for", &seen.asked("/leases").count(), &0),
        no_secret_seen(seen),
    ]
}

fn rolled_back(seen: &Seen) -> Vec<Claim> {
    let cause = WEB_LOGS.last().copied().unwrap_or_default();
    let images =
        |facts: &super::set::Facts| -> Vec<String> { facts.containers.values().map(|it| it.image.clone()).collect() };
    vec![
        same("exit status 1, `rolled_back`, UNHEALTHY", &seen.exit(), &Some((1, "rolled_back", Some(Code::Unhealthy)))),
        same("docker was called for `up` twice", &seen.composed().iter().filter(|it| **it == "up").count(), &2),
        that(
            "web was made anew from its old image; the database was left running",
            images(&seen.before) == images(&seen.after) && seen.recreated() == BTreeSet::from(["web"]),
            &(&seen.before.containers, &seen.after.containers),
        ),
        same("web is healthy and db runs", &seen.states(), &WELL.to_vec()),
        that(
            "what is applied and current is what was before",
            seen.before.applied.as_ref().map(|it| &it.0) == seen.applied()
                && seen.applied().is_some()
                && seen.after.current == seen.before.current,
            &(&seen.after.applied, &seen.after.current),
        ),
        that(
            "the report says `failed`, UNHEALTHY, rolled_back, with the last words of web's log",
            seen.reported_text("result") == "failed"
                && seen.reported_text("code") == "UNHEALTHY"
                && *seen.reported("rolled_back") == Value::Bool(true)
                && seen.reported_text("detail").contains(cause),
            &seen.report(),
        ),
        that(
            "the bundle is quarantined",
            seen.desired.as_ref().is_some_and(|sha| seen.after.quarantined.contains(sha)),
            &seen.after.quarantined,
        ),
        no_secret_seen(seen),
    ]
}

fn quarantined(seen: &Seen) -> Vec<Claim> {
    vec![
        same("exit status 1, `quarantined`", &seen.exit(), &Some((1, "quarantined", None))),
        same("one request was made: the check-in", &(seen.tenancy.len(), seen.bao.len()), &(1, 0)),
        same("no child process was started", &seen.docker.len(), &0),
        untouched(seen),
    ]
}

fn rollback_refused(seen: &Seen) -> Vec<Claim> {
    // The outcome is written down, of course: into state.json, and into the outbox until tenancy has the report.
    let written: Vec<&str> = changed_files(seen).into_iter().filter(|name| *name != "state.json").collect();
    vec![
        same("exit status 1, ROLLBACK_REFUSED", &seen.exit(), &Some((1, "failed", Some(Code::RollbackRefused)))),
        same("no lease was asked for", &seen.asked("/leases").count(), &0),
        same("no request reached OpenBao", &seen.bao.len(), &0),
        same("no child process was started", &seen.docker.len(), &0),
        same(
            "state.json is the only file that is not as before, and no release was staged",
            &(written, seen.count(OpName::StageBundle)),
            &(vec![], 0),
        ),
        untouched(seen),
        that(
            "the report says `failed`, and its detail says why and what to do",
            seen.reported_text("result") == "failed"
                && seen.reported_text("code") == "ROLLBACK_REFUSED"
                && seen.reported_text("detail").contains("generation 1 is older than the applied 2")
                && seen.reported_text("detail").contains(Code::RollbackRefused.remedy()),
            &seen.report(),
        ),
    ]
}

/// The files that are there now and were not, or were written, or are gone.
fn changed_files(seen: &Seen) -> Vec<&str> {
    let (before, after) = (&seen.before.files, &seen.after.files);
    let all: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    all.into_iter().filter(|name| before.get(*name) != after.get(*name)).map(String::as_str).collect()
}
