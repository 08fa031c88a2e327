//! `check`: is everything there that a deploy needs, and may this user use it?
//!
//! Invariant: only reads. It takes no lock, lease or login, makes no check-in, writes no file, and ends within
//! [`PATIENCE`] whatever hangs. What it says went through the vault.
//!
//! Each subject has a file: a probe gathers facts, pure functions judge them, and a judgement is a [`Line`].

mod certificates;
mod docker;
mod files;
mod line;
mod net;
mod registry;
mod state_dir;
mod token;
mod units;

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use zeroize::Zeroizing;

use self::line::{Block, Level, Line, count};
use super::{exit, tick};
use crate::config::{Config, Scheme};
use crate::drivers::clock::{Cancel, Clock};
use crate::drivers::docker::cli::Docker;
use crate::drivers::store::Loaded;
use crate::drivers::tenancy::ends;
use crate::drivers::vault::{Slot, Vault};
use crate::drivers::world;
use crate::effects::state::State;
use crate::effects::{Scrub as _, Settings, Stamp};

/// What is not known by then is told as not answered.
const PATIENCE: Duration = Duration::from_secs(27);
/// For one call of tenancy or OpenBao with all its tries.
const CALL: Duration = Duration::from_secs(5);
/// What a tick needs beside the pull and the waits (seconds).
const MARGIN_S: u64 = 600;
/// How long children may take to end when this has to.
const FAREWELL: Duration = Duration::from_secs(1);

/// The result for programs. Its shape is in the README.
#[derive(Serialize)]
struct Told<'a> {
    env_id: &'a str,
    agent_version: &'a str,
    failures: usize,
    warnings: usize,
    ok: usize,
    lines: &'a [Line],
}

/// Looks at one subject.
type Job = Box<dyn FnOnce() -> Vec<Line> + Send>;

/// Prints every line and gives the exit status.
pub fn run(config: &Config, file: &Path, json: bool) -> u8 {
    let cancel = Cancel::default();
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        // One that cannot be caught ends the process by itself.
        let _ = signal_hook::flag::register(signal, cancel.flag());
    }
    if let Some(user) = state_dir::not_for_root(&config.state_dir) {
        eprintln!(
            "run it as the agent's user: sudo -u {user} monky-deployd --config {} check (root sees another box than the agent \
             does)",
            file.display()
        );
        return exit::USAGE;
    }
    let (store, vault) = tick::look(&config.state_dir);
    let now = Clock::start().now();
    let docker = world::docker(config, &cancel);
    let mut lines = files::look(config, file, docker.search(), now);
    let (of_state, loaded) = state_dir::look(config, &store, now);
    lines.extend(of_state);
    let fails = |fact: &str| lines.iter().any(|line| line.fact == fact && line.level == Level::Failure);
    let jobs = jobs(config, &vault, &docker, loaded, now, &fails);
    let Some(found) = all(jobs, &cancel) else {
        eprintln!("ended before everything was looked at");
        return exit::TEMPORARY;
    };
    lines.extend(found);
    for line in &mut lines {
        line.what = vault.scrub(&line.what);
    }
    print(config, &lines, json)
}

/// Since when a tick holds the lock of this state directory, as far as the kernel tells. The lock is not touched.
pub fn at_work_since(state_dir: &Path) -> Option<Stamp> {
    state_dir::held_since(&state_dir.join("lock"))
}

/// How long a tick may take that pulls, waits, and rolls back (seconds): what the unit has to allow.
fn longest_tick_s(settings: &Settings) -> u64 {
    let Settings { pull_timeout_s, healthy_timeout_s, .. } = settings;
    pull_timeout_s.saturating_add(healthy_timeout_s.saturating_mul(2)).saturating_add(MARGIN_S)
}

/// What is asked at the same time, each with the name of its first fact, in the order of the lines.
fn jobs(
    config: &Config,
    vault: &Arc<Vault>,
    docker: &Docker,
    loaded: Option<Loaded>,
    now: Stamp,
    fails: &dyn Fn(&str) -> bool,
) -> Vec<(&'static str, Job)> {
    let (tenancy, bao) = world::servers(config, u64::from(std::process::id()), CALL);
    let (to_tenancy, to_bao) = net::ways(config);
    let usable = loaded.is_some();
    let (state, held) = loaded.map_or_else(Default::default, |loaded| {
        let held = held(&loaded, vault);
        (loaded.state, held)
    });
    let renew_below_s = config.settings.renew_below_s;
    let expected = units::Expected {
        longest_s: longest_tick_s(&config.settings),
        state_dir: config.state_dir.clone(),
        trouble: state.trouble.as_ref().map(|trouble| (trouble.code, trouble.at)),
    };
    let folder = docker.state_dir().join("docker");
    let vault = || Arc::clone(vault);
    let (for_docker, for_tenancy, for_bao, for_registry) = (vault(), vault(), vault(), vault());
    let (daemon, systemctl) = (docker.clone(), docker.clone());
    // What has a line of its own already.
    let not_ours: Block = (!usable).then_some(("this user cannot use the state directory", "mend `state_dir` first"));
    let no_folder: Block = (folder.exists() && !folder.is_dir())
        .then_some(("Docker's configuration folder in the state directory is none", "mend `state_dir` first"));
    let no_client: Block = fails("docker_bin").then_some(("Docker's client cannot be run", "mend `docker_bin` first"));
    let no_ca = |scheme: Scheme, fact: &str| -> Block {
        (scheme == Scheme::Https && fails(fact)).then_some(("its CA file is of no use", "mend the CA file first"))
    };
    let (ca_of_tenancy, ca_of_bao) =
        (no_ca(config.tenancy.scheme, "tenancy.ca_file"), no_ca(config.bao.scheme, "bao.ca_file"));
    vec![
        ("docker", Box::new(move || docker::look(&daemon, not_ours.or(no_folder).or(no_client), for_docker.as_ref()))),
        (
            "tenancy",
            Box::new(move || {
                let (line, nowhere) = net::way("tenancy", &to_tenancy);
                line.into_iter()
                    .chain(net::tenancy(&tenancy, nowhere.or(ca_of_tenancy), for_tenancy.as_ref()))
                    .collect()
            }),
        ),
        (
            "openbao",
            Box::new(move || {
                let vault = for_bao.as_ref();
                let (line, nowhere) = net::way("bao", &to_bao);
                let (health, works) = net::openbao(&bao, nowhere.or(ca_of_bao), vault);
                let silent = !works && vault.has(&Slot::SavedToken);
                let silent = silent.then_some(("OpenBao does not answer", "mend `openbao` first"));
                let token = match not_ours.or(silent) {
                    Some((why, remedy)) => Line::unchecked("token", why, remedy),
                    None => {
                        let asked = vault.with(&Slot::SavedToken, |token| Zeroizing::new(token.to_owned()));
                        let asked = asked.map(|token| bao.look_closely(vault, &token));
                        token::judge(&asked, &held, renew_below_s, now)
                    }
                };
                line.into_iter().chain([health, token]).collect()
            }),
        ),
        (
            "registry",
            Box::new(move || match not_ours {
                Some((why, remedy)) => vec![Line::unchecked("registry", why, remedy)],
                None => look_at_registries(&state, &folder, for_registry.as_ref()),
            }),
        ),
        ("timer", Box::new(move || units::look(&systemctl, &expected))),
    ]
}

fn look_at_registries(state: &State, folder: &Path, vault: &Vault) -> Vec<Line> {
    registry::look(state, &registry::credentials(folder, vault), vault)
}

/// What the state directory tells of tokens and grants.
fn held(loaded: &Loaded, vault: &Vault) -> token::Held {
    let Loaded { state, local, notes: _ } = loaded;
    let ttl_ms = |ttl_s: u64| i64::try_from(ttl_s).unwrap_or(i64::MAX).saturating_mul(1000);
    token::Held {
        was_to_end: state.token.as_ref().and_then(|token| Some(token.seen_at.plus_ms(ttl_ms(token.ttl_s?)))),
        bootstrap: local.bootstrap.then(|| vault.with(&Slot::BootstrapGrant, ends).flatten()),
        grant: local.grant.as_ref().map(|grant| grant.expires_at),
        applied: state.applied().is_some(),
    }
}

/// Carries the jobs out at the same time; none if the process was asked to end.
fn all(jobs: Vec<(&'static str, Job)>, cancel: &Cancel) -> Option<Vec<Line>> {
    let (tell, hear) = channel();
    let mut found: Vec<(&'static str, Option<Vec<Line>>)> = Vec::new();
    for (index, (fact, job)) in jobs.into_iter().enumerate() {
        let tell = tell.clone();
        // Not scoped: what hangs is left behind.
        let started = thread::Builder::new().spawn(move || {
            // Nobody hears it any more when the time is up.
            let _ = tell.send((index, job()));
        });
        found.push((fact, started.err().map(|error| vec![Line::unchecked(fact, &error.to_string(), "try again")])));
    }
    drop(tell);
    let until = Instant::now() + PATIENCE;
    let mut hear_until = |until: Instant, stop: &dyn Fn() -> bool| {
        while Instant::now() < until && !stop() {
            match hear.recv_timeout(Duration::from_millis(50)) {
                Ok((index, lines)) => {
                    if let Some((_, place)) = found.get_mut(index) {
                        *place = Some(lines);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
        false
    };
    if !hear_until(until, &|| cancel.is_cancelled()) {
        let asked_to_end = cancel.is_cancelled();
        // Children that still run are ended by those who wait for them.
        cancel.cancel();
        hear_until(Instant::now() + FAREWELL, &|| false);
        if asked_to_end {
            return None;
        }
    }
    let late = |fact| {
        vec![Line::failure(fact, format!("no answer within {} s", PATIENCE.as_secs()), "look at what hangs there")]
    };
    Some(found.into_iter().flat_map(|(fact, lines)| lines.unwrap_or_else(|| late(fact))).collect())
}

fn print(config: &Config, lines: &[Line], json: bool) -> u8 {
    let failures = count(lines, Level::Failure);
    if json {
        let told = Told {
            env_id: &config.settings.env_id,
            agent_version: &config.settings.agent_version,
            failures,
            warnings: count(lines, Level::Warning),
            ok: count(lines, Level::Ok),
            lines,
        };
        match serde_json::to_string_pretty(&told) {
            Ok(json) => println!("{json}"),
            Err(error) => {
                eprintln!("the result could not be written as JSON: {error}");
                return exit::FAILED;
            }
        }
    } else {
        let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        print!("{}", line::text(lines, color));
    }
    if failures == 0 { exit::OK } else { exit::FAILED }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(fact: &'static str) -> (&'static str, Job) {
        (fact, Box::new(move || vec![Line::ok(fact, String::new())]))
    }

    #[test]
    fn lines_keep_their_order_whoever_answers_first() {
        let (go, wait) = channel::<()>();
        let slow: Job = Box::new(move || {
            let _ = wait.recv();
            vec![Line::ok("slow", String::new())]
        });
        let quick: Job = Box::new(move || {
            drop(go);
            vec![Line::ok("quick", String::new())]
        });
        let found = all(vec![("slow", slow), ("quick", quick), job("last")], &Cancel::default()).unwrap();
        assert_eq!(found.iter().map(|line| line.fact.as_str()).collect::<Vec<_>>(), ["slow", "quick", "last"]);
    }

    #[test]
    fn a_job_that_panics_is_no_silence() {
        let found = all(vec![("broken", Box::new(|| panic!("on purpose"))), job("last")], &Cancel::default()).unwrap();
        assert_eq!((found[0].fact.as_str(), found[0].level, found.len()), ("broken", Level::Failure, 2));
    }

    #[test]
    fn asked_to_end_it_does_not_wait_for_what_hangs() {
        let (keep, never) = channel::<()>();
        let hangs: Job = Box::new(move || {
            let _ = never.recv();
            Vec::new()
        });
        let cancel = Cancel::default();
        cancel.cancel();
        assert_eq!(all(vec![("hangs", hangs)], &cancel), None);
        drop(keep);
    }

    #[test]
    fn the_longest_tick_pulls_waits_and_rolls_back() {
        let config = Config::parse(
            "c",
            "env_id: e\ntenancy:\n  host: t\nbao:\n  addr: https://b:1\npull_timeout_s: 100\nhealthy_timeout_s: 10\n",
        );
        assert_eq!(longest_tick_s(&config.unwrap().settings), 720);
    }
}
