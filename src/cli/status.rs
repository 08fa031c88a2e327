//! `status`: what is applied, since when, how the last tick ended, and what comes next. Only reads.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::check::at_work_since;
use super::words::moment;
use super::{exit, tick};
use crate::config::Config;
use crate::drivers::clock::Clock;
use crate::drivers::store;
use crate::effects::failure::Code;
use crate::effects::state::{Attempts, LastError, LastResult, State, TokenSource};
use crate::effects::{LocalFacts, Sha, Stamp};
use crate::fsm::retry;

/// The status as JSON. Times are RFC 3339 in UTC, durations whole seconds. Its shape is in the README.
#[derive(Debug, Serialize)]
struct Status {
    #[serde(skip)]
    now: Stamp,
    #[serde(skip)]
    project: String,
    env_id: String,
    agent_version: String,
    applied: Option<AppliedStatus>,
    current: Option<Sha>,
    unfinished: Option<Sha>,
    /// `unfinished` is brought back because this one failed.
    rolls_back: Option<Sha>,
    at_work_since: Option<Moment>,
    last_result: Option<LastResult>,
    last_at: Option<Moment>,
    last_error: Option<ErrorStatus>,
    trouble: Option<ErrorStatus>,
    unsolved: Vec<ErrorStatus>,
    hold: Option<HoldStatus>,
    token: Option<TokenStatus>,
    bootstrap_waits: bool,
    leases_last_hour: usize,
    next_lease_at: Option<Moment>,
    attempts: BTreeMap<Sha, AttemptStatus>,
    reports_waiting: usize,
    docker_version: Option<String>,
    compose_version: Option<String>,
    notes: Vec<String>,
}

/// A moment: RFC 3339 for programs, and for people also how far away it is.
#[derive(Clone, Copy, Debug)]
struct Moment(Stamp);

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&moment(self.0))
    }
}

impl Moment {
    fn seen_from(self, now: Stamp) -> String {
        let (ago, ahead) = (now.since_ms(self.0) / 1000, self.0.since_ms(now) / 1000);
        let span = |s: i64| match s {
            0..120 => format!("{s} s"),
            120..7200 => format!("{} min", s / 60),
            7200..172_800 => format!("{} h", s / 3600),
            _ => format!("{} days", s / 86_400),
        };
        let distance = if ahead > 0 { format!("in {}", span(ahead)) } else { format!("{} ago", span(ago)) };
        format!("{} ({distance})", moment(self.0))
    }
}

#[derive(Debug, Serialize)]
struct AppliedStatus {
    sha: Sha,
    since: Moment,
    generation: Option<i64>,
}

#[derive(Debug, Serialize)]
struct ErrorStatus {
    /// Of which bundle; none: of one that is desired no more, or of none at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    sha: Option<Sha>,
    code: &'static str,
    phase: String,
    detail: String,
    /// What a person should do about it.
    remedy: &'static str,
    at: Moment,
}

#[derive(Debug, Serialize)]
struct HoldStatus {
    /// In tenancy's words.
    reason: String,
    since: Moment,
}

#[derive(Debug, Serialize)]
struct TokenStatus {
    source: TokenSource,
    accessor: Option<String>,
    /// None: it never expires, or nothing is known.
    remaining_s: Option<i64>,
}

#[derive(Debug, Serialize)]
struct AttemptStatus {
    failed: u32,
    next_at: Option<Moment>,
    quarantined: bool,
}

/// Prints the status and gives the exit status.
pub fn run(config: &Config, json: bool) -> u8 {
    let now = Clock::start().now();
    let (looked_at, _vault) = tick::look(&config.state_dir);
    let loaded = match looked_at.load_state(now) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            return exit::FAILED;
        }
    };
    let mut notes = loaded.notes;
    // What keeps a tick from beginning is in no state and no recording.
    notes.extend(store::misfits(&config.state_dir).iter().map(|misfit| {
        let at = misfit.path.display();
        format!("{at} {}: no tick can do its work until it is mended: {}", misfit.why, misfit.remedy())
    }));
    if store::is_new(&config.state_dir) {
        notes.push(format!(
            "nothing has run here yet: store a bootstrap grant (`monky-deployd bootstrap --grant-file FILE`, as the agent's \
             user), then start the timer (`sudo systemctl enable --now monky-deployd.timer`); `monky-deployd check` says \
             what is missing ({} is where the agent keeps its state)",
            config.state_dir.display()
        ));
    }
    if loaded.local.disk_full {
        notes.push("no space is left where the state is kept: what a tick does cannot be written down".to_owned());
    }
    let at_work = at_work_since(&config.state_dir);
    let status =
        Status { at_work_since: at_work.map(Moment), ..status(config, loaded.state, &loaded.local, notes, now) };
    if json {
        match serde_json::to_string_pretty(&status) {
            Ok(json) => println!("{json}"),
            Err(error) => {
                eprintln!("the status could not be written as JSON: {error}");
                return exit::FAILED;
            }
        }
    } else {
        print!("{}", text(&status));
    }
    exit::OK
}

fn error(error: &LastError) -> ErrorStatus {
    ErrorStatus {
        sha: None,
        code: error.code.as_str(),
        phase: error.phase.clone(),
        detail: error.detail.clone(),
        remedy: error.code.remedy(),
        at: Moment(error.at),
    }
}

fn attempt(tried: &Attempts, now: Stamp) -> AttemptStatus {
    // A moment that is over says nothing of what comes next; nor does one that a clock which went back made.
    let next_at = tried.next_at.filter(|at| *at > now).map(|at| Moment(retry::clamp_next(at, now)));
    AttemptStatus { failed: tried.count, next_at, quarantined: tried.quarantined }
}

fn status(config: &Config, mut state: State, local: &LocalFacts, notes: Vec<String>, now: Stamp) -> Status {
    retry::clamp_leases(&mut state.leases, &mut state.lease_not_before, now);
    let token = local.token.map(|source| {
        let known = state.token.as_ref();
        let left = known.and_then(|token| Some((token.seen_at, i64::try_from(token.ttl_s?).ok()?)));
        TokenStatus {
            source,
            accessor: known.and_then(|token| token.accessor.clone()),
            remaining_s: left.map(|(seen_at, ttl_s)| (ttl_s - now.since_ms(seen_at) / 1000).max(0)),
        }
    });
    // Only of what is desired is it kept how often it failed.
    let failed_sha = state.attempts.keys().next().filter(|_| state.attempts.len() == 1).cloned();
    let unfinished = state.unfinished.as_ref();
    let failed = unfinished.and_then(|goal| goal.instead_of.as_deref());
    Status {
        now,
        project: config.settings.project.clone(),
        env_id: config.settings.env_id.clone(),
        agent_version: config.settings.agent_version.clone(),
        applied: state.applied().map(|applied| AppliedStatus {
            sha: applied.sha.clone(),
            since: Moment(applied.at),
            generation: applied.generation,
        }),
        current: local.current.clone(),
        unfinished: unfinished.map(|goal| goal.sha.clone()),
        rolls_back: failed.map(|failed| failed.sha.clone()),
        at_work_since: None,
        last_result: state.last_result,
        // In the middle of a rollback the state has the new result, and the time of the end before it.
        last_at: failed.map(|failed| failed.error.at).or(state.last_at).map(Moment),
        last_error: state.last_error.as_ref().map(|last| ErrorStatus { sha: failed_sha, ..error(last) }),
        trouble: state.trouble.as_ref().map(error),
        unsolved: state.unsolved.iter().map(error).collect(),
        hold: state.hold.as_ref().map(|hold| HoldStatus { reason: hold.reason.clone(), since: Moment(hold.since) }),
        token,
        bootstrap_waits: local.bootstrap,
        leases_last_hour: state.leases.len(),
        next_lease_at: retry::lease_free_at(&state.leases, state.lease_not_before, now).map(Moment),
        attempts: state.attempts.iter().map(|(sha, tried)| (sha.clone(), attempt(tried, now))).collect(),
        reports_waiting: local.outbox.len() + usize::from(state.outcome.is_some()),
        docker_version: state.docker.as_ref().map(|docker| docker.engine.clone()),
        compose_version: state.docker.map(|docker| docker.compose),
        notes,
    }
}

/// For a tired person: what runs, what is wrong, what comes next.
fn text(status: &Status) -> String {
    let when = |at: &Moment| at.seen_from(status.now);
    let bare = |error: &ErrorStatus| match Code::ALL.iter().find(|code| code.as_str() == error.code) {
        Some(code) => code.bare(&error.detail),
        None => error.detail.clone(),
    };
    let mut lines = vec![format!("{} (monky-deployd {})", status.env_id, status.agent_version)];
    lines.push(match &status.applied {
        Some(applied) => {
            let generation = applied.generation.map(|n| format!(", generation {n}")).unwrap_or_default();
            format!("applied     {} since {}{generation}", applied.sha.short(), when(&applied.since))
        }
        None => "applied     nothing yet".to_owned(),
    });
    if let Some(hold) = &status.hold {
        lines.push(format!("hold        since {}: {}", when(&hold.since), hold.reason));
        lines.push("            nothing is deployed until tenancy takes it back".to_owned());
    }
    if let Some(current) = &status.current
        && status.applied.as_ref().is_none_or(|applied| applied.sha != *current)
    {
        lines.push(format!("current     {}, which is not what is applied", current.short()));
        lines.push(format!("            its services may not run: `docker compose -p {} ps -a`", status.project));
    }
    if let Some(unfinished) = &status.unfinished {
        let what = match &status.rolls_back {
            Some(failed) => format!("a rollback to {}, since {} failed", unfinished.short(), failed.short()),
            None => unfinished.short().to_owned(),
        };
        let next = if status.at_work_since.is_some() { "this tick or the next" } else { "the next tick" };
        lines.push(format!("unfinished  {what}: {next} goes on with it"));
    }
    if let Some(since) = &status.at_work_since {
        lines.push(format!("at work     a tick, since {}", when(since)));
    }
    if let (Some(result), Some(at)) = (status.last_result, &status.last_at) {
        let result = match result {
            LastResult::Applied => "applied",
            LastResult::Failed => "failed",
            LastResult::RolledBack => "failed, rolled back",
        };
        let over = match (status.last_result, &status.last_error) {
            (Some(LastResult::Failed | LastResult::RolledBack), None) => ", which is over: it runs what is desired",
            _ => "",
        };
        lines.push(format!("last        {result} at {}{over}", when(at)));
    }
    if let Some(error) = &status.last_error {
        let of = error.sha.as_ref().map_or("what is desired no more".to_owned(), |sha| sha.short().to_string());
        let (code, phase, at) = (error.code, &error.phase, when(&error.at));
        lines.push(format!("error       {code} of {of} in {phase} at {at}: {}", bare(error)));
        lines.push(format!("            to do: {}", error.remedy));
    }
    for trouble in status.trouble.iter().chain(&status.unsolved) {
        lines.push(format!("trouble     {} since {}: {}", trouble.code, when(&trouble.at), bare(trouble)));
        lines.push(format!("            to do: {}", trouble.remedy));
    }
    for (sha, tried) in &status.attempts {
        let next = match (&tried.next_at, tried.quarantined) {
            (_, true) => "left alone until another bundle is desired, or `tick --force`".to_owned(),
            (Some(at), false) => format!("next attempt not before {}", when(at)),
            (None, false) if status.hold.is_some() => "next attempt after the hold".to_owned(),
            (None, false) => "next attempt with the next tick".to_owned(),
        };
        lines.push(format!("attempts    {}: {} failed; {next}", sha.short(), tried.failed));
    }
    lines.push(match &status.token {
        Some(token) => {
            let source = match token.source {
                TokenSource::Bootstrap => "bootstrap (to be swapped for a leased one)",
                TokenSource::Lease => "lease",
            };
            let left = token.remaining_s.map(|s| format!(", {} min left", s / 60)).unwrap_or_default();
            let accessor = token.accessor.as_ref().map(|a| format!(", accessor {a}")).unwrap_or_default();
            format!("token       {source}{left}{accessor}")
        }
        None if status.bootstrap_waits => "token       none; a bootstrap grant waits for the next tick".to_owned(),
        None => "token       none".to_owned(),
    });
    let free = status.next_lease_at.as_ref().map(|at| format!(", next not before {}", when(at))).unwrap_or_default();
    lines.push(format!("leases      {} of {} in the last hour{free}", status.leases_last_hour, retry::LEASES_AN_HOUR));
    lines.push(format!("reports     {} waiting", status.reports_waiting));
    let version = |version: &Option<String>| version.clone().unwrap_or_else(|| "not seen yet".to_owned());
    lines.push(format!(
        "docker      {}, compose {}",
        version(&status.docker_version),
        version(&status.compose_version)
    ));
    lines.extend(status.notes.iter().map(|note| format!("note        {note}")));
    lines.push(String::new());
    lines.join("\n")
}
