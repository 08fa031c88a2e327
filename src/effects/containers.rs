//! The project's containers, read from `docker inspect`.
//!
//! Invariant: what is here is what Docker said; a word that is not known is an error, never a guess.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::words::{ending, one_line, plain};
use super::{Scrub, Scrubbed, Stamp};

/// The label by which Compose names a container's service.
const SERVICE_LABEL: &str = "com.docker.compose.service";
/// Of what a healthcheck prints Docker keeps so many bytes.
const PROBE_OUTPUT: usize = 4096;
/// Of that so many characters are kept here.
const PROBE_WORDS: usize = 160;
/// So many failures in a row make a container unhealthy, unless its healthcheck says otherwise.
const RETRIES: u64 = 3;

/// Docker's word for what a container does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerState {
    /// Made, never started.
    Created,
    /// Its process runs.
    Running,
    /// Frozen.
    Paused,
    /// Between a crash and the next start.
    Restarting,
    /// Being removed.
    Removing,
    /// Its process ended.
    Exited,
    /// Half removed.
    Dead,
}

/// Docker's word for a healthcheck's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// No verdict yet.
    Starting,
    /// The check passes.
    Healthy,
    /// It failed too often.
    Unhealthy,
}

/// When Docker starts a container again by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// Never.
    #[default]
    No,
    /// After an exit that is not 0.
    OnFailure,
    /// After any exit.
    Always,
    /// After any exit, unless a person stopped it.
    UnlessStopped,
}

/// The last run of a container's healthcheck since its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// What it exited with; -1 if it took too long.
    pub exit_code: i64,
    /// The end of what it printed, on one line, if it failed and Docker kept all of it; else empty.
    pub said: Scrubbed,
    /// So often in a row the check has failed.
    pub streak: u64,
    /// So often in a row it may fail before the container is unhealthy.
    pub retries: u64,
}

/// One container of the project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Container {
    /// Docker's id, whole.
    pub id: String,
    /// Its name, without the leading slash.
    pub name: String,
    /// Its service.
    pub service: String,
    /// The id of its image.
    pub image_id: String,
    /// What it does.
    pub state: ContainerState,
    /// Its healthcheck's verdict; none without a healthcheck.
    pub health: Option<Health>,
    /// The last run of its healthcheck; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,
    /// Its exit code, as inspect tells it (0 while it runs).
    pub exit_code: i64,
    /// Why it could not be started; empty if nothing was said.
    pub error: Scrubbed,
    /// How often Docker started it again.
    pub restart_count: u64,
    /// When Docker starts it again by itself.
    pub restart_policy: RestartPolicy,
    /// When it was started, in Docker's own words: to be compared, not computed with.
    pub started_at: String,
    /// The same, to the millisecond; none if never.
    pub started: Option<Stamp>,
}

/// Reads the answer of `docker inspect ID…`.
///
/// A field that is missing is taken as Docker's own zero; only an id and a state must be there.
///
/// # Errors
/// What is wrong with it, for a person.
pub fn parse_inspect(json: &[u8], scrub: &dyn Scrub) -> Result<Vec<Container>, String> {
    let list: Vec<Inspected> =
        serde_json::from_slice(json).map_err(|e| format!("`docker inspect` gave no list of containers: {e}"))?;
    list.into_iter().map(|inspected| inspected.into_container(scrub)).collect()
}

/// One item of `docker inspect`, as far as it matters.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    name: Option<String>,
    image: Option<String>,
    restart_count: Option<u64>,
    state: InspectedState,
    host_config: Option<InspectedHost>,
    config: Option<InspectedConfig>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedState {
    status: ContainerState,
    exit_code: Option<i64>,
    error: Option<String>,
    started_at: Option<String>,
    health: Option<InspectedHealth>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedHealth {
    status: Option<String>,
    failing_streak: Option<u64>,
    log: Option<Vec<InspectedProbe>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedProbe {
    end: Option<String>,
    exit_code: Option<i64>,
    output: Option<String>,
}

impl InspectedProbe {
    /// Docker keeps the runs from before a container's last start.
    fn is_of(&self, start: Option<Stamp>) -> bool {
        let end = self.end.as_deref().and_then(moment);
        end.zip(start).is_none_or(|(end, start)| end >= start)
    }

    /// The end of what it printed. What was cut off may end in the beginning of a secret, which nobody would know for one.
    fn said(&self, scrub: &dyn Scrub) -> Scrubbed {
        let output = self.output.as_deref().unwrap_or_default();
        let whole = if matches!(self.exit_code, None | Some(0)) || output.len() >= PROBE_OUTPUT { "" } else { output };
        let mut told = scrub.scrub(whole);
        // Of a check that took too long Docker says so, and newer versions then quote what it had printed by then.
        if self.exit_code == Some(-1)
            && let Some((sentence, _)) = told.split_once("):")
        {
            told = format!("{sentence})");
        }
        Scrubbed::new(scrub, &ending(&one_line(&plain(told.as_bytes())), PROBE_WORDS))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedHost {
    restart_policy: Option<InspectedPolicy>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedPolicy {
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedConfig {
    labels: Option<BTreeMap<String, String>>,
    healthcheck: Option<InspectedCheck>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectedCheck {
    retries: Option<u64>,
}

impl Inspected {
    fn into_container(self, scrub: &dyn Scrub) -> Result<Container, String> {
        let Inspected { id, name, image, restart_count, state, host_config, config } = self;
        let name = name.unwrap_or_default().trim_start_matches('/').to_owned();
        let unknown = |what: &str, word: &str| format!("container {name:?} has a {what} {word:?} that is not known");
        let (status, streak, runs) = match state.health {
            Some(health) => (health.status, health.failing_streak, health.log),
            None => (None, None, None),
        };
        let health = match status.as_deref() {
            // Docker's word for "has no healthcheck".
            None | Some("" | "none") => None,
            Some("starting") => Some(Health::Starting),
            Some("healthy") => Some(Health::Healthy),
            Some("unhealthy") => Some(Health::Unhealthy),
            Some(other) => return Err(unknown("health", other)),
        };
        let policy = host_config.and_then(|host| host.restart_policy).and_then(|policy| policy.name);
        let restart_policy = match policy.as_deref() {
            None | Some("" | "no") => RestartPolicy::No,
            Some("on-failure") => RestartPolicy::OnFailure,
            Some("always") => RestartPolicy::Always,
            Some("unless-stopped") => RestartPolicy::UnlessStopped,
            Some(other) => return Err(unknown("restart policy", other)),
        };
        let (labels, check) = config.map_or((None, None), |config| (config.labels, config.healthcheck));
        let labels = labels.unwrap_or_default();
        let started_at = state.started_at.unwrap_or_default();
        let started = moment(&started_at);
        let run = runs.and_then(|mut runs| runs.pop()).filter(|run| run.is_of(started));
        let probe = run.map(|run| Probe {
            exit_code: run.exit_code.unwrap_or_default(),
            said: run.said(scrub),
            streak: streak.unwrap_or_default(),
            retries: check.and_then(|check| check.retries).filter(|retries| *retries > 0).unwrap_or(RETRIES),
        });
        Ok(Container {
            service: labels.get(SERVICE_LABEL).cloned().unwrap_or_default(),
            image_id: image.unwrap_or_default(),
            state: state.status,
            health,
            probe,
            exit_code: state.exit_code.unwrap_or_default(),
            error: Scrubbed::new(scrub, &state.error.unwrap_or_default()),
            restart_count: restart_count.unwrap_or_default(),
            restart_policy,
            started,
            started_at,
            id,
            name,
        })
    }
}

/// A moment in Docker's words (RFC 3339, with nanoseconds), to the millisecond; none for its zero, which means never.
fn moment(text: &str) -> Option<Stamp> {
    let moment = OffsetDateTime::parse(text, &Rfc3339).ok().filter(|moment| moment.year() > 1)?;
    i64::try_from(moment.unix_timestamp_nanos().div_euclid(1_000_000)).ok().map(Stamp)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Keep;

    impl Scrub for Keep {
        fn scrub(&self, text: &str) -> String {
            text.replace("hidden", "***")
        }
    }

    #[test]
    fn the_least_that_docker_could_say_is_read() {
        let least = br#"[{"Id":"i","State":{"Status":"created"}},
            {"Id":"j","Name":"/n","State":{"Status":"dead","Health":null,"Error":null},"HostConfig":{"RestartPolicy":null},
             "Config":{"Labels":null}}]"#;
        let [first, second] = parse_inspect(least, &Keep).unwrap().try_into().unwrap();
        assert_eq!((first.state, first.health, first.started), (ContainerState::Created, None, None));
        assert_eq!((second.state, second.name.as_str()), (ContainerState::Dead, "n"));
        assert_eq!(parse_inspect(b"[]", &Keep).unwrap(), []);
    }

    #[test]
    fn restart_policies_and_health_are_read_in_every_spelling() {
        let read = |policy: &str, health: &str| {
            let json = format!(
                r#"[{{"Id":"i","State":{{"Status":"running","Health":{{"Status":"{health}"}}}},
                    "HostConfig":{{"RestartPolicy":{{"Name":"{policy}","MaximumRetryCount":0}}}}}}]"#
            );
            parse_inspect(json.as_bytes(), &Keep).map(|list| (list[0].restart_policy, list[0].health))
        };
        assert_eq!(read("", "none"), Ok((RestartPolicy::No, None)));
        assert_eq!(read("no", ""), Ok((RestartPolicy::No, None)));
        assert_eq!(read("on-failure", "starting"), Ok((RestartPolicy::OnFailure, Some(Health::Starting))));
        assert_eq!(read("always", "healthy"), Ok((RestartPolicy::Always, Some(Health::Healthy))));
        assert_eq!(read("unless-stopped", "unhealthy"), Ok((RestartPolicy::UnlessStopped, Some(Health::Unhealthy))));
        assert!(read("sometimes", "").unwrap_err().contains("sometimes"));
        assert!(read("", "fine").unwrap_err().contains("fine"));
    }

    #[test]
    fn the_last_run_of_a_healthcheck_is_read_and_its_words_are_scrubbed() {
        let read = |log: &str| {
            let health = format!(r#"{{"Status":"unhealthy","FailingStreak":2,"Log":{log}}}"#);
            let start = "2026-01-01T00:00:01Z";
            let state = format!(r#"{{"Status":"running","StartedAt":"{start}","Health":{health}}}"#);
            let json = format!(r#"[{{"Id":"i","State":{state},"Config":{{"Healthcheck":{{"Retries":5}}}}}}]"#);
            parse_inspect(json.as_bytes(), &Keep).unwrap().remove(0).probe
        };
        let said =
            |exit_code, said: &str| Some(Probe { exit_code, said: Scrubbed::new(&Keep, said), streak: 2, retries: 5 });
        let run =
            |end: &str, exit: i64, output: &str| json!({"End": end, "ExitCode": exit, "Output": output}).to_string();
        let (early, start, late) = ("2026-01-01T00:00:00.999Z", "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z");
        let (first, last) = (run(start, 0, "fine"), run(late, 7, "a hidden\r\n \u{1b}[1mthing\n"));
        assert_eq!(read(&format!("[{first},{last}]")), said(7, "a *** | thing"));
        assert_eq!(read(&format!("[{last},{first}]")), said(0, ""));
        assert_eq!(read(&format!("[{}]", run(early, 7, "of the last start"))), None);
        assert_eq!(read(&format!("[{}]", run("soon", 7, "who knows"))), said(7, "who knows"));
        let long = |count: usize| read(&format!("[{}]", run(late, 1, &"x".repeat(count))));
        assert_eq!(long(PROBE_WORDS), said(1, &"x".repeat(PROBE_WORDS)));
        assert_eq!(long(PROBE_OUTPUT - 1), said(1, &format!("…{}", "x".repeat(PROBE_WORDS))));
        assert_eq!(long(PROBE_OUTPUT), said(1, ""));
        let ended = |after: &str| read(&format!("[{}]", run(late, -1, &format!("check exceeded timeout (5s){after}"))));
        assert_eq!(ended(""), said(-1, "check exceeded timeout (5s)"));
        assert_eq!(ended(": half of a hid"), ended(""));
        assert_eq!(read("[{}]"), said(0, ""));
        assert_eq!((read("[]"), read("null")), (None, None));
    }

    #[test]
    fn a_healthcheck_that_says_no_number_of_retries_has_dockers_own() {
        let read = |config: &str| {
            let json =
                format!(r#"[{{"Id":"i","State":{{"Status":"running","Health":{{"Log":[{{}}]}}}},"Config":{config}}}]"#);
            parse_inspect(json.as_bytes(), &Keep).unwrap().remove(0).probe.map(|probe| (probe.streak, probe.retries))
        };
        assert_eq!(read("{}"), Some((0, 3)));
        assert_eq!(read(r#"{"Healthcheck":{"Retries":0}}"#), Some((0, 3)));
        assert_eq!(read(r#"{"Healthcheck":{"Retries":1}}"#), Some((0, 1)));
    }

    #[test]
    fn a_start_is_told_to_the_millisecond_and_never_is_none() {
        assert_eq!(moment("1970-01-01T00:00:01.234999999Z"), Some(Stamp(1234)));
        assert_eq!(moment("2026-01-01T02:00:00.5+02:00"), Some(Stamp(1_767_225_600_500)));
        assert_eq!(moment("1969-12-31T23:59:59.9999Z"), Some(Stamp(-1)));
        for never in ["0001-01-01T00:00:00Z", "", "yesterday"] {
            assert_eq!(moment(never), None, "{never}");
        }
    }

    #[test]
    fn a_start_error_is_scrubbed() {
        let json = br#"[{"Id":"i","State":{"Status":"created","Error":"bad hidden thing"}}]"#;
        assert_eq!(parse_inspect(json, &Keep).unwrap()[0].error.as_str(), "bad *** thing");
    }

    #[test]
    fn what_is_no_list_of_containers_is_told() {
        for json in ["", "{}", "[1]", r#"[{"Id":"i"}]"#, r#"[{"Id":"i","State":{"Status":"odd"}}]"#] {
            assert!(parse_inspect(json.as_bytes(), &Keep).unwrap_err().contains("docker inspect"), "{json}");
        }
    }
}
