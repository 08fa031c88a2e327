//! The resolved compose file: what `docker compose config --format json --no-interpolate` says, as far as decisions need it.
//!
//! Invariant: a service's digest changes exactly when what it mounts of the bundle does, wherever the release lies; a
//! [`Model`] names nothing below the state directory but the bundle's own files, and says which of its mounts must be
//! closed so that no container changes what Compose reads of its release. [`check_resolved`] sees to both once every
//! variable has its value and the override is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::bundle::{Bundle, hex_sha};
use super::compose_file;
use super::failure::{Code, Refusal};
use super::policy::{self, Demand};

/// A resolved project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// The services that `up` would start, by name.
    pub services: BTreeMap<String, Service>,
    /// What is allowed but not wise, for the journal.
    pub warnings: Vec<String>,
    /// What it asks of the box, for the owner's policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub demands: Vec<Demand>,
    /// The mounts, by service, through which what Compose itself reads of the release could be written to: the override
    /// makes them read-only.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub closed: BTreeMap<String, Vec<Closed>>,
    /// A variable decides where something that is mounted is.
    #[serde(default, skip_serializing_if = "is_false")]
    pub decided: bool,
}

/// For serde.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
pub(crate) fn is_false(flag: &bool) -> bool {
    !*flag
}

/// A bind of bundle content that becomes read-only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// Where in the container, variables not filled in: Compose merges mounts by this text.
    pub target: String,
    /// What of the bundle; the empty path is all of it.
    pub path: String,
    /// Its other options (`bind:`), as Compose tells them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind: Option<Value>,
}

/// One service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Its image, variables not filled in.
    pub image: Option<String>,
    /// Digest of the bundle content that it mounts; none if it mounts none.
    pub mounts: Option<String>,
    /// The bundle paths that it mounts, in order; `.` is the whole bundle.
    pub mounted: Vec<String>,
    /// How many containers it should have; 1 if a variable decides.
    pub scale: u32,
    /// Digest of what Compose compares of its definition, variables not filled in, wherever the release lies.
    pub definition: String,
    /// The services that it depends on, in whatever way, and how (Compose's own JSON).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub depends: BTreeMap<String, String>,
    /// Those whose network, processes, memory or volumes it shares.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub shares: BTreeSet<String>,
    /// What its definition is filled in with: variables, those too that only its environment names, and `env_file`. In order.
    pub variables: Vec<String>,
    /// The variables whose values are in files that it mounts (`configs` and `secrets` by `content` or `environment`):
    /// Compose does not look at them when it compares.
    pub mounted_variables: Vec<String>,
}

impl Model {
    /// Reads Compose's answer for a bundle that lies in `project_dir`, a folder below `state_dir` (absolute paths, as
    /// Compose was given them). `engine` is the engine's address (`DOCKER_HOST`); empty if Docker is told none.
    ///
    /// Compose lists services of every profile here; those behind one are left out, as `up` leaves them out. A service
    /// whose profile a variable decides is left out too, but not for what it may not do.
    ///
    /// # Errors
    /// `COMPOSE_REFUSED` for a mount that the next release would lose, for a file of the agent's own, or for `build:`;
    /// `COMPOSE_INVALID` if there is nothing to start.
    pub fn parse(
        json: &[u8],
        bundle: &Bundle,
        project_dir: &str,
        state_dir: &str,
        engine: &str,
    ) -> Result<Model, Refusal> {
        let top: Value = serde_json::from_slice(json)
            .map_err(|e| Refusal::new(Code::ComposeInvalid, format!("`docker compose config` gave no JSON: {e}")))?;
        let ground = Ground::new(bundle, project_dir, state_dir);
        for (name, volume) in entries(top.get("volumes")) {
            ground.named_volume(name, volume)?;
        }
        let site = policy::Site { project: &ground.project, state: &ground.state, engine };
        let options = entries(top.get("volumes")).filter_map(|(_, volume)| volume.get("driver_opts"));
        let files = ["configs", "secrets"].into_iter().flat_map(|kind| entries(top.get(kind)));
        let decided = options.chain(files.filter_map(|(_, definition)| definition.get("file")));
        let mut model =
            Model { decided: decided.into_iter().any(|value| has_variable(&value.to_string())), ..Model::default() };
        for (name, service) in entries(top.get("services")) {
            let scale = scale(service);
            let starts = starts(service);
            if starts != Starts::No {
                // Also of a service without containers Compose would do these.
                runs_nothing_itself(name, service)?;
            }
            if scale > 0 && starts != Starts::No {
                let mounts = Mounts::of(name, service, &top, &ground)?;
                ground.read_files(name, service)?;
                model.demands.extend(policy::demands(name, service, &top, site));
                if !mounts.closed.is_empty() {
                    model.closed.insert(name.clone(), mounts.closed.clone());
                }
                model.decided |= mounts.decided;
                if starts == Starts::Maybe {
                    continue;
                }
                model.warnings.extend(mounts.warnings.iter().cloned());
                let definition = compared(service).to_string();
                let depends = entries(service.get("depends_on")).map(|(name, how)| (name.clone(), how.to_string()));
                let service = Service {
                    image: text(service, "image").map(str::to_owned),
                    mounts: mounts.digest(),
                    mounted: mounts.paths(),
                    scale,
                    definition: hex_sha(&definition.replace(&ground.project, ".")),
                    depends: depends.collect(),
                    shares: shares(service),
                    variables: filled_in(service, &definition),
                    mounted_variables: mounts.variables.into_iter().collect(),
                };
                model.services.insert(name.clone(), service);
            }
        }
        if model.services.is_empty() {
            let why = "no service selected: compose.yaml has none, or each is behind a profile or has scale 0";
            return Err(Refusal::new(Code::ComposeInvalid, why));
        }
        Ok(model)
    }
}

/// Whether `up` starts a service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Starts {
    Yes,
    No,
    /// A variable decides.
    Maybe,
}

/// With no profile chosen, Compose has chosen the one whose name is empty (tried on 2.26.1 and 2.40.3).
fn starts(service: &Value) -> Starts {
    let profiles: Vec<&str> = items(service.get("profiles")).iter().filter_map(Value::as_str).collect();
    if profiles.is_empty() || profiles.contains(&"") {
        Starts::Yes
    } else if profiles.iter().any(|profile| has_variable(profile)) {
        Starts::Maybe
    } else {
        Starts::No
    }
}

/// Refuses what Compose would do on the box itself for a service.
fn runs_nothing_itself(name: &str, service: &Value) -> Result<(), Refusal> {
    let given = |key: &str| match service.get(key) {
        None | Some(Value::Null) => false,
        Some(value) => !value.as_array().is_some_and(Vec::is_empty) && !value.as_object().is_some_and(Map::is_empty),
    };
    for key in ["provider", "models"] {
        if given(key) {
            return Err(refused(format!("service {name:?} has `{key}`: it would run a program of the box itself")));
        }
    }
    if given("build") {
        return Err(refused(format!("service {name:?} has `build`: a box only pulls; name a pushed `image`")));
    }
    Ok(())
}

/// What one service mounts of the bundle.
#[derive(Default)]
struct Mounts {
    /// What is mounted as what, and its digest.
    lines: BTreeSet<String>,
    paths: BTreeSet<String>,
    variables: BTreeSet<String>,
    warnings: Vec<String>,
    /// What Compose reads could be written to there.
    closed: Vec<Closed>,
    /// The sources that a variable decides from the start.
    anywhere: Vec<String>,
    /// A variable decides where something is.
    decided: bool,
}

impl Mounts {
    fn of(name: &str, service: &Value, top: &Value, ground: &Ground<'_>) -> Result<Mounts, Refusal> {
        let mut mounts = Mounts::default();
        for volume in items(service.get("volumes")) {
            let (kind, source) = (text(volume, "type").unwrap_or_default(), text(volume, "source"));
            // `${X}` alone is shown as a target, and becomes a mount of whatever its value says.
            let given = source.or_else(|| text(volume, "target")).unwrap_or_default();
            if has_variable(kind) || has_variable(given) {
                mounts.decided = true;
                // Compose 2.26.1 cuts `${X:-/a}:/b` at its first colon (2.40.3 does not); together the parts are what was written.
                let whole = source.zip(text(volume, "target")).map(|(source, target)| format!("{source}:{target}"));
                if ground.may_lead_to_state(given) || whole.is_some_and(|whole| ground.may_lead_to_state(&whole)) {
                    let why = "it may lead into the agent's state directory, by what it says itself";
                    return Err(refused(format!("service {name:?} mounts {given:?}: {why}")));
                }
            }
            let (Some("bind"), Some(source)) = (text(volume, "type"), text(volume, "source")) else { continue };
            let target = text(volume, "target").unwrap_or_default();
            let who = format!("service {name:?} mounts {source:?} at {target:?}");
            let place = ground.place(source).map_err(|why| refused(format!("{who}: {why}")))?;
            mounts.add(&format!("bind {target}"), &place, ground);
            let mut told = Vec::new();
            match &place {
                Place::Elsewhere => continue,
                // What that asks of the box is told by the policy.
                Place::Anywhere => {
                    mounts.anywhere.push(format!("{:?}", below(source, &ground.project).unwrap_or(source)));
                    continue;
                }
                Place::Bundle(path) if path.is_empty() => told.push(
                    "that is the whole release, its .env with every secret included; mount the files that it needs",
                ),
                Place::Bundle(_) => {}
                Place::Below(_) => told.push("a variable decides, so nobody can tell whether it is in the bundle"),
            }
            match &place {
                Place::Bundle(path) if volume.get("read_only") != Some(&Value::Bool(true)) && ground.decides(path) => {
                    let bind = volume.get("bind").filter(|bind| !bind.is_null()).cloned();
                    mounts.closed.push(Closed { target: target.to_owned(), path: path.clone(), bind });
                    told.push("writable it cannot be: Compose itself reads what is there, so it is mounted read-only; add `:ro`");
                }
                // A variable there decides only in the end: nothing to warn of.
                _ if matches!(volume.get("read_only"), None | Some(Value::Null | Value::Bool(false))) => {
                    told.push(
                        "writable: what it writes there is lost with the next release; add `:ro` or use a volume",
                    );
                }
                _ => {}
            }
            if !told.is_empty() {
                mounts.warnings.push(format!("{who}: {}", told.join("; ")));
            }
        }
        if !mounts.anywhere.is_empty() {
            mounts.warnings.push(format!(
                "service {name:?} mounts {}: a variable decides where that is; if in the bundle, a change of it recreates nothing",
                mounts.anywhere.join(", ")
            ));
        }
        for kind in ["configs", "secrets"] {
            for used in items(service.get(kind)) {
                let Some(source) = used.as_str().or_else(|| text(used, "source")) else { continue };
                let Some(definition) = top.get(kind).and_then(|all| all.get(source)) else { continue };
                let label = format!("{kind} {source}");
                if let Some(file) = text(definition, "file") {
                    let who = format!("service {name:?} uses {file:?} of {kind} {source:?}");
                    let place = ground.place(file).map_err(|why| refused(format!("{who}: {why}")))?;
                    mounts.add(&label, &place, ground);
                } else if let Some(content) = text(definition, "content") {
                    // It stands in compose.yaml, but Compose does not look at it when it compares either.
                    mounts.lines.insert(format!("{label} {}", hex_sha(content)));
                    mounts.variables.extend(variables(content));
                } else if let Some(variable) = text(definition, "environment") {
                    mounts.lines.insert(format!("{label} ${variable}"));
                    mounts.variables.insert(variable.to_owned());
                }
                // Tried on 2.26.1 and 2.40.3: neither recreates for these, and the mounted value stays the old one.
                let variable = text(definition, "content").is_some_and(has_variable);
                if variable || text(definition, "environment").is_some() {
                    mounts.warnings.push(format!(
                        "service {name:?} is given the value of a variable as one of its {kind}, {source:?}: Compose keeps the old value when only that changes; give it in `environment` instead"
                    ));
                }
            }
        }
        Ok(mounts)
    }

    fn add(&mut self, label: &str, place: &Place, ground: &Ground<'_>) {
        let (Place::Bundle(path) | Place::Below(path)) = place else { return };
        if let Some(digest) = ground.bundle.digest_below(path) {
            self.lines.insert(format!("{label} {digest} {path}"));
            self.paths.insert(if path.is_empty() { ".".to_owned() } else { path.clone() });
        }
    }

    fn digest(&self) -> Option<String> {
        // No line holds a line break that could make two sets of lines one: each is quoted.
        let text: String = self.lines.iter().map(|line| format!("{line:?}\n")).collect();
        (!self.lines.is_empty()).then(|| hex_sha(&text))
    }

    fn paths(&self) -> Vec<String> {
        self.paths.iter().cloned().collect()
    }
}

/// Where a source of a mount is.
enum Place {
    /// Outside of everything that is the agent's.
    Elsewhere,
    /// A file or folder of the bundle; the empty path is all of it.
    Bundle(String),
    /// Decided by a variable, below this folder of the bundle.
    Below(String),
    /// Decided by a variable from the start. Compose puts the project's folder in front of it even if its value is an
    /// absolute path, so this is most likely data; to count it as bundle content would recreate its service each time.
    Anywhere,
}

/// Where a bundle lies.
struct Ground<'b> {
    bundle: &'b Bundle,
    project: String,
    state: String,
    /// The paths of the bundle whose content decides what Compose does.
    deciding: BTreeSet<String>,
}

impl<'b> Ground<'b> {
    fn new(bundle: &'b Bundle, project_dir: &str, state_dir: &str) -> Ground<'b> {
        let deciding = compose_file::deciding(bundle);
        Ground { bundle, project: clean(project_dir), state: clean(state_dir), deciding }
    }

    /// Whether a path is in the state directory, and not in this release.
    fn is_the_agents(&self, path: &str) -> bool {
        let path = if path.starts_with('/') { clean(path) } else { clean(&format!("{}/{path}", self.project)) };
        below(&path, &self.state).is_some() && below(&path, &self.project).is_none()
    }

    /// Whether a text with variables, as far as it says itself what it can become, leads into the state directory.
    fn may_lead_to_state(&self, text: &str) -> bool {
        // Compose writes the project's folder in front of `${X}/y`, which is gone again if the value is absolute.
        let own = below(text, &self.project).filter(|rest| rest.starts_with('$'));
        let becomes = [Some(text), own].into_iter().flatten().flat_map(both);
        // A variable can be a whole `SOURCE:TARGET`.
        becomes.into_iter().any(|text| {
            let source = text.split(':').next().unwrap_or_default();
            self.is_the_agents(&text) || self.is_the_agents(source)
        })
    }

    /// Whether Compose reads what is at this path of the bundle, or below.
    fn decides(&self, path: &str) -> bool {
        path.is_empty() || self.deciding.iter().any(|file| below(file, path).is_some())
    }

    /// Whether one of the paths in a volume's options is in the state directory, releases included. They are the kernel's
    /// business: it takes a relative one from the engine's folder (`/`), and a backslash for what it is in front of.
    fn option_leads_to_state(&self, value: &str) -> bool {
        let own = |text: &str| {
            let text = text.replace('\\', "");
            text.split([',', '=', ':']).any(|part| below(&clean(&format!("/{part}")), &self.state).is_some())
        };
        // Compose writes the project's folder in front of `${X}`.
        let value = below(value, &self.project).filter(|rest| rest.starts_with('$')).unwrap_or(value);
        own(value) || both(value).iter().any(|text| own(text))
    }

    fn place(&self, source: &str) -> Result<Place, &'static str> {
        // `$$` is how a `$` is written where variables are filled in.
        let (literal, variable) = match source.replace("$$", "\0").split_once('$') {
            None => (source.replace("$$", "$"), false),
            Some((before, _)) => (before.replace('\0', "$"), true),
        };
        let known = if variable { literal.rsplit_once('/').map_or("", |(folder, _)| folder) } else { &literal };
        let known = clean(known);
        match (below(&known, &self.project), variable) {
            (Some(""), true) => Ok(Place::Anywhere),
            (Some(folder), true) => Ok(Place::Below(folder.to_owned())),
            (Some(path), false) if self.bundle.digest_below(path).is_some() => Ok(Place::Bundle(path.to_owned())),
            (Some(_), false) => Err(
                "it is not in the bundle, and what is written there would be lost with the next release: use a named volume or an absolute path",
            ),
            (None, _) if below(&known, &self.state).is_some() => Err(
                "it is in the agent's state directory, which changes with every release: use a named volume or another path",
            ),
            (None, _) => Ok(Place::Elsewhere),
        }
    }

    /// What Compose itself would read for a service. In the state directory there are secrets that no bundle may have.
    fn read_files(&self, name: &str, service: &Value) -> Result<(), Refusal> {
        for kind in ["env_file", "label_file"] {
            let single = service.get(kind).filter(|value| value.is_string());
            for file in single.into_iter().chain(items(service.get(kind))) {
                let Some(path) = file.as_str().or_else(|| text(file, "path")) else { continue };
                let known = path.replace("$$", "\0").split('$').next().unwrap_or_default().replace('\0', "$");
                let decided = has_variable(path);
                let known = if decided { known.rsplit_once('/').map_or("", |(folder, _)| folder) } else { &known };
                let leads = decided && self.may_lead_to_state(path);
                if leads || (!known.is_empty() && self.is_the_agents(known)) {
                    let why = "it is in the agent's state directory, and no file of the bundle";
                    return Err(refused(format!("service {name:?} reads {path:?} as {kind}: {why}")));
                }
            }
        }
        Ok(())
    }

    /// A named volume that is a bind in disguise (`driver_opts: {o: bind, device: …}`) keeps its first path for ever.
    fn named_volume(&self, name: &str, volume: &Value) -> Result<(), Refusal> {
        let Some(options) = volume.get("driver_opts") else { return Ok(()) };
        let remote = policy::is_remote(text(options, "type").unwrap_or_default());
        let mut given = entries(Some(options)).filter_map(|(_, value)| value.as_str());
        if let Some(given) = given.find(|given| !remote && self.option_leads_to_state(given)) {
            let why = "it leads into the agent's state directory: use a volume without options or another path";
            return Err(refused(format!("volume {name:?} with {given:?}: {why}")));
        }
        let Some(device) = text(options, "device") else { return Ok(()) };
        if !text(options, "o").unwrap_or_default().split(',').any(|o| matches!(o.trim(), "bind" | "rbind")) {
            return Ok(());
        }
        let inside = below(&clean(device), &self.state).is_some() || below(&clean(device), &self.project).is_some();
        if inside || !device.starts_with(['/', '$']) {
            let why = "it is bound to a path of this release, which the next one does not have: use an absolute path elsewhere";
            return Err(refused(format!("volume {name:?} with device {device:?}: {why}")));
        }
        Ok(())
    }
}

/// What Compose says once every variable has its value (`config --format json`), as far as it is about places. It holds
/// secrets, so nothing else of it is kept.
#[derive(Deserialize)]
struct Resolved {
    #[serde(default)]
    services: BTreeMap<String, ResolvedService>,
    #[serde(default)]
    volumes: BTreeMap<String, Option<ResolvedVolume>>,
    #[serde(default)]
    configs: BTreeMap<String, ResolvedFile>,
    #[serde(default)]
    secrets: BTreeMap<String, ResolvedFile>,
}

#[derive(Deserialize)]
struct ResolvedService {
    #[serde(default)]
    volumes: Vec<ResolvedMount>,
    #[serde(default)]
    scale: Value,
    #[serde(default)]
    deploy: Value,
}

impl ResolvedService {
    /// Whether it has containers.
    fn runs(&self) -> bool {
        let replicas = self.deploy.get("replicas").unwrap_or(&Value::Null);
        count(if self.scale.is_null() { replicas } else { &self.scale }) != Some(0)
    }
}

#[derive(Deserialize)]
struct ResolvedMount {
    #[serde(default, rename = "type")]
    kind: String,
    source: Option<String>,
    #[serde(default)]
    read_only: bool,
}

#[derive(Deserialize)]
struct ResolvedVolume {
    #[serde(default)]
    driver_opts: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct ResolvedFile {
    file: Option<String>,
}

/// Looks where the mounts of a complete release lead, by what Compose says of it with every variable filled in.
///
/// # Errors
/// `COMPOSE_INVALID` (it comes after a lease, so it is no refusal of contract §3), without a value in it, if one leads
/// into the state directory, or to what Compose itself reads and is not read-only; also for what is no such answer.
pub fn check_resolved(json: &[u8], bundle: &Bundle, project_dir: &str, state_dir: &str) -> Result<(), Refusal> {
    let refused = |what: String| Refusal::new(Code::ComposeInvalid, what);
    // Its words could quote a value.
    let no_json = |_| refused("`docker compose config` gave no JSON of a project".to_owned());
    let resolved: Resolved = serde_json::from_slice(json).map_err(no_json)?;
    let ground = Ground::new(bundle, project_dir, state_dir);
    let into = |key: String| {
        Err(refused(format!("{key}: with the value of its variable it leads into the agent's state directory")))
    };
    // `config` writes each `$` so that it can be read again.
    let plain = |text: &str| text.replace("$$", "$");
    for (name, service) in resolved.services.iter().filter(|(_, service)| service.runs()) {
        for (index, mount) in service.volumes.iter().enumerate() {
            let (Some(source), "bind") = (&mount.source, mount.kind.as_str()) else { continue };
            let (key, source) = (format!("services.{name}.volumes[{index}]"), clean(&plain(source)));
            if ground.is_the_agents(&source) {
                return into(key);
            }
            if !mount.read_only && below(&source, &ground.project).is_some_and(|path| ground.decides(path)) {
                let why =
                    "it is what Compose itself reads of this release, and writable: add `:ro` (`read_only: true`)";
                return Err(refused(format!("{key}: {why}")));
            }
        }
    }
    for (name, volume) in &resolved.volumes {
        let options = volume.iter().flat_map(|volume| &volume.driver_opts);
        let mut values = options.filter_map(|(_, value)| value.as_str());
        if values.any(|value| ground.option_leads_to_state(&plain(value))) {
            return into(format!("volumes.{name}.driver_opts"));
        }
    }
    for (kind, all) in [("configs", &resolved.configs), ("secrets", &resolved.secrets)] {
        for (name, definition) in all {
            if definition.file.as_ref().is_some_and(|file| ground.is_the_agents(&plain(file))) {
                return into(format!("{kind}.{name}.file"));
            }
        }
    }
    Ok(())
}

fn refused(what: impl fmt::Display) -> Refusal {
    Refusal::new(Code::ComposeRefused, what.to_string())
}

/// The rest of a path below a folder; empty for the folder itself.
pub(super) fn below<'p>(path: &'p str, folder: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(folder)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
}

/// A path without empty, `.` and `..` parts, as the letters say (no link is followed) and without a slash at the end.
pub(super) fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.iter().fold(String::new(), |path, part| path + "/" + part)
}

/// Whether a variable decides a part of it. `$$` is how a `$` is written where variables are filled in.
pub(super) fn has_variable(text: &str) -> bool {
    text.replace("$$", "").contains('$')
}

/// So deep are variables within variables looked at.
const DEEPEST: u8 = 16;

fn both(text: &str) -> [String; 2] {
    [spoken(text, true, 0), spoken(text, false, 0)]
}

/// What a text says if no variable has a value (`default`: `${X:-this}`), or if each has one that is given in it
/// (`${X:+this}`). What only a value can tell is empty.
fn spoken(text: &str, default: bool, depth: u8) -> String {
    let mut said = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        said.push_str(before);
        rest = after;
        if let Some(after) = rest.strip_prefix('$') {
            said.push('$');
            rest = after;
            continue;
        }
        let braced = rest.strip_prefix('{');
        let name = braced.unwrap_or(rest);
        let end = name.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(name.len());
        let (_, after) = name.split_at_checked(end).unwrap_or_default();
        let Some(_) = braced else {
            rest = after;
            continue;
        };
        let mut open = 1_usize;
        let closing = after.char_indices().find(|(_, c)| {
            open = match c {
                '{' => open.saturating_add(1),
                '}' => open.saturating_sub(1),
                _ => open,
            };
            open == 0
        });
        let (inner, after) = closing.and_then(|(at, _)| after.split_at_checked(at)).unwrap_or((after, ""));
        rest = after.strip_prefix('}').unwrap_or(after);
        let inner = inner.strip_prefix(':').unwrap_or(inner);
        if let Some(this) = inner.strip_prefix(if default { '-' } else { '+' })
            && depth < DEEPEST
        {
            said.push_str(&spoken(this, default, depth + 1));
        }
    }
    said + rest
}

/// The names of the variables in a text (`$NAME`, `${NAME…}`; `$$` is no variable), each once, in order.
fn variables(text: &str) -> Vec<String> {
    let text = text.replace("$$", "");
    let name = |rest: &str| -> Option<String> {
        let rest = rest.strip_prefix('{').unwrap_or(rest);
        let end = rest.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let name = rest.get(..end).unwrap_or_default();
        name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic()).then(|| name.to_owned())
    };
    let names: BTreeSet<String> = text.split('$').skip(1).filter_map(name).collect();
    names.into_iter().collect()
}

/// What stands among variables for the files of a service's `env_file`.
pub const ENV_FILE: &str = "env_file";

/// What a definition is filled in with, each once, in order. A name in `environment` that has no value there takes that of
/// the variable.
fn filled_in(service: &Value, definition: &str) -> Vec<String> {
    let bare = entries(service.get("environment")).filter(|(_, value)| value.is_null()).map(|(name, _)| name.clone());
    let files = service.get("env_file").filter(|files| !files.is_null()).map(|_| ENV_FILE.to_owned());
    let names: BTreeSet<String> = variables(definition).into_iter().chain(bare).chain(files).collect();
    names.into_iter().collect()
}

/// What Compose compares to know whether a container is still what its service says: all but how many there are, when it
/// pulls, and (not at first: with 2.26 this recreates) what it depends on.
fn compared(service: &Value) -> Value {
    let mut compared = service.clone();
    if let Some(keys) = compared.as_object_mut() {
        for key in ["scale", "pull_policy", "depends_on"] {
            keys.remove(key);
        }
        if let Some(deploy) = keys.get_mut("deploy").and_then(Value::as_object_mut) {
            deploy.remove("replicas");
        }
    }
    compared
}

/// The services whose network, processes, memory or volumes one shares.
fn shares(service: &Value) -> BTreeSet<String> {
    let namespaces =
        ["network_mode", "pid", "ipc"].into_iter().filter_map(|key| text(service, key)?.strip_prefix("service:"));
    let volumes = items(service.get("volumes_from")).iter().filter_map(Value::as_str);
    // `service[:ro]`, or `container:name[:ro]`, which is none of the project's.
    let volumes = volumes.filter(|from| !from.starts_with("container:"));
    namespaces.chain(volumes.map(|from| from.split(':').next().unwrap_or(from))).map(str::to_owned).collect()
}

/// `scale` goes before `deploy.replicas`, as in Compose.
fn scale(service: &Value) -> u32 {
    let replicas = || service.get("deploy").and_then(|deploy| deploy.get("replicas"));
    service.get("scale").or_else(replicas).and_then(count).unwrap_or(1)
}

fn count(value: &Value) -> Option<u32> {
    match value {
        Value::Number(n) => n.as_u64().map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
        // A quoted number, or a variable.
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

pub(super) fn entries(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

pub(super) fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key).and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    #[test]
    fn variables_are_found_in_every_way_they_are_written() {
        let text = "$A ${B} ${C:-x} ${D?no} $$E $${F} $1 ${} x$_G- \"${C}\"";
        assert_eq!(super::variables(text), ["A", "B", "C", "D", "_G"]);
    }

    use super::*;
    use serde_json::json;

    const DIR: &str = "/state/releases/r";

    fn bundle(files: Value) -> Bundle {
        Bundle::read(json!({ "files": files }).to_string().as_bytes()).unwrap()
    }

    fn usual() -> Bundle {
        bundle(json!({"conf/a": "1", "conf/b": "2", "c": "3"}))
    }

    fn model_in(dir: &str, bundle: &Bundle, web: Value) -> Result<Model, Refusal> {
        let project =
            json!({"services": {"web": web}, "configs": {"f": {"file": format!("{dir}/c")}, "t": {"content": "x"}}});
        Model::parse(project.to_string().as_bytes(), bundle, dir, "/state", "")
    }

    fn bind(source: &str) -> Value {
        json!({"volumes": [{"type": "bind", "source": source, "target": "/t", "read_only": true}]})
    }

    fn web(volumes: Value) -> Result<Service, Refusal> {
        model_in(DIR, &usual(), volumes).map(|model| model.services["web"].clone())
    }

    #[test]
    fn bundle_content_is_found_and_other_paths_are_not() {
        let mounted = |source: &str| web(bind(source)).unwrap().mounted;
        assert_eq!(mounted("/state/releases/r/conf"), ["conf"]);
        assert_eq!(mounted("/state/releases/r/conf/./../conf/a/"), ["conf/a"]);
        assert_eq!(mounted("/state/releases/r"), ["."]);
        for elsewhere in ["/var/run/docker.sock", "/", "/statement/x", "/x/../y", "${DATA}/x", "/data/${X}"] {
            let service = web(bind(elsewhere)).unwrap();
            assert_eq!((service.mounted.len(), service.mounts), (0, None), "{elsewhere}");
        }
    }

    #[test]
    fn a_mount_that_the_next_release_would_lose_is_refused_by_service() {
        for lost in [
            "/state/releases/r/data",
            "/state/releases/r/.env",
            "/state/releases/r/con",
            "/state/releases/data",
            "/state/current/conf",
            "/state",
            "/state/x",
            "/y/../state/x",
            "/state/releases/r/a$$b",
            "/state/${X}",
        ] {
            let refusal = web(bind(lost)).unwrap_err();
            assert_eq!(refusal.code, Code::ComposeRefused, "{lost}");
            assert!(refusal.detail.contains("\"web\"") && refusal.detail.contains(lost), "{refusal}");
        }
    }

    #[test]
    fn the_digest_tells_content_and_place_but_not_where_the_release_lies() {
        let mounts =
            |bundle: &Bundle, web: Value| model_in(DIR, bundle, web).unwrap().services["web"].mounts.clone().unwrap();
        let conf = mounts(&usual(), bind("/state/releases/r/conf"));
        let moved = model_in("/state/current", &usual(), bind("/state/current/conf")).unwrap();
        assert_eq!(moved.services["web"].mounts.as_ref(), Some(&conf));
        let unrelated = bundle(json!({"conf/a": "1", "conf/b": "2", "c": "changed"}));
        assert_eq!(mounts(&unrelated, bind("/state/releases/r/conf")), conf);
        for changed in
            [json!({"conf/a": "1!", "conf/b": "2"}), json!({"conf/a": "1"}), json!({"conf/a": "1", "conf/x": "2"})]
        {
            assert_ne!(mounts(&bundle(changed), bind("/state/releases/r/conf")), conf);
        }
        // Two mounts that change places are a change.
        let two = |a: &str, b: &str| {
            json!({"volumes": [{"type": "bind", "source": format!("{DIR}/{a}"), "target": "/1"},
                               {"type": "bind", "source": format!("{DIR}/{b}"), "target": "/2"}]})
        };
        assert_ne!(mounts(&usual(), two("conf/a", "conf/b")), mounts(&usual(), two("conf/b", "conf/a")));
    }

    #[test]
    fn configs_count_when_a_service_uses_them() {
        assert_eq!(web(json!({"configs": [{"source": "f"}]})).unwrap().mounted, ["c"]);
        assert_eq!(web(json!({"configs": ["f", "missing"]})).unwrap().mounted, ["c"]);
        let inline = web(json!({"configs": [{"source": "t"}]})).unwrap();
        assert!(inline.mounts.is_some() && inline.mounted.is_empty());
        assert_eq!(web(json!({})).unwrap().mounts, None);
    }

    #[test]
    fn a_mounted_value_that_compose_would_not_renew_is_a_warning() {
        let warned = |definition: Value| {
            let project = json!({"services": {"web": {"secrets": [{"source": "s"}]}}, "secrets": {"s": definition}});
            let model = Model::parse(project.to_string().as_bytes(), &usual(), DIR, "/state", "").unwrap();
            model.warnings.iter().any(|warning| warning.contains("old value"))
        };
        assert!(warned(json!({"environment": "PASSWORD"})));
        assert!(warned(json!({"content": "x ${PASSWORD}"})));
        assert!(!warned(json!({"content": "x $$"})));
        assert!(!warned(json!({"file": "/elsewhere"})));
    }

    #[test]
    fn a_variable_within_the_bundle_counts_as_the_folder_it_is_below() {
        let model = model_in(DIR, &usual(), bind("/state/releases/r/conf/${X}/y")).unwrap();
        assert_eq!(model.services["web"].mounted, ["conf"]);
        assert!(model.warnings[0].contains("variable"));
        let model = model_in(DIR, &usual(), bind("/state/releases/r/${DATA}/y")).unwrap();
        let [warning] = &model.warnings[..] else { panic!("{:?}", model.warnings) };
        assert!(warning.contains("mounts \"${DATA}/y\": a variable decides where that is"), "{warning}");
        assert_eq!(model.services["web"].mounts.as_ref(), None);
        assert!(model.demands.iter().all(|demand| demand.what.starts_with("mounts \"${DATA}/y\": a variable")));
    }

    #[test]
    fn a_writable_bind_of_bundle_content_is_a_warning() {
        let warnings = |read_only: Value| {
            let web = json!({"volumes": [{"type": "bind", "source": format!("{DIR}/c"), "target": "/t", "read_only": read_only}]});
            model_in(DIR, &usual(), web).unwrap().warnings.len()
        };
        assert_eq!([json!(true), json!("${RO}"), json!(false), json!(null)].map(warnings), [0, 0, 1, 1]);
    }

    #[test]
    fn scale_comes_from_scale_then_replicas_then_is_one() {
        let scale = |service: Value| web(service).map_or(0, |service| service.scale);
        assert_eq!(scale(json!({})), 1);
        assert_eq!(scale(json!({"deploy": {"replicas": 3}})), 3);
        assert_eq!(scale(json!({"scale": 2, "deploy": {"replicas": 3}})), 2);
        assert_eq!(scale(json!({"scale": "${N}"})), 1);
        assert_eq!(scale(json!({"scale": "4"})), 4);
        assert_eq!(scale(json!({"deploy": {"replicas": 0}})), 0);
    }

    #[test]
    fn what_a_definition_is_filled_in_with_is_named_also_without_a_dollar() {
        let variables = |service: Value| web(service).unwrap().variables;
        let service = json!({"image": "a:${TAG}", "environment": {"P": null, "Q": "q", "R": "$S"}});
        assert_eq!(variables(service), ["P", "S", "TAG"]);
        assert_eq!(variables(json!({"image": "a", "env_file": [{"path": "/p/.env", "required": true}]})), ["env_file"]);
        assert_eq!(variables(json!({"image": "a", "env_file": null})), [] as [&str; 0]);
    }

    #[test]
    fn how_many_there_are_and_what_is_depended_on_is_no_part_of_a_definition() {
        let definition = |service: Value| web(service).unwrap().definition;
        let plain = definition(json!({"image": "a"}));
        let same = [
            json!({"image": "a", "scale": 2}),
            json!({"image": "a", "pull_policy": "always"}),
            json!({"image": "a", "depends_on": {"db": {"condition": "service_started", "required": true}}}),
        ];
        for service in same {
            assert_eq!(definition(service.clone()), plain, "{service}");
        }
        let replicas = |n: u8| definition(json!({"image": "a", "deploy": {"replicas": n}}));
        assert_eq!(replicas(1), replicas(2));
        assert_ne!(replicas(1), plain, "Compose compares that there is a `deploy`");
        assert_ne!(definition(json!({"image": "a", "labels": {"a": "b"}})), plain);
    }

    #[test]
    fn what_a_service_depends_on_and_what_it_shares_is_known() {
        let how = json!({"condition": "service_healthy", "required": true});
        let service = json!({"depends_on": {"db": how}, "network_mode": "service:net", "pid": "host", "ipc": "service:i",
            "volumes_from": ["data:ro", "more", "container:old:ro"]});
        let service = web(service).unwrap();
        assert_eq!(service.depends, BTreeMap::from([("db".to_owned(), how.to_string())]));
        assert_eq!(service.shares, ["data", "i", "more", "net"].map(str::to_owned).into());
        let alone = web(json!({"network_mode": "bridge"})).unwrap();
        assert!(alone.depends.is_empty() && alone.shares.is_empty(), "{alone:?}");
    }

    #[test]
    fn without_a_service_to_start_there_is_no_model() {
        let of = |services: Value| {
            Model::parse(json!({ "services": services }).to_string().as_bytes(), &usual(), DIR, "/state", "")
        };
        for none in [json!({}), json!(null), json!({"a": {"profiles": ["x"]}}), json!({"a": {"scale": 0}})] {
            let refusal = of(none).unwrap_err();
            assert_eq!(refusal.code, Code::ComposeInvalid);
            assert!(refusal.detail.contains("no service selected"));
        }
        assert_eq!(of(json!({"a": {"profiles": []}, "b": {"profiles": ["x"]}})).unwrap().services.len(), 1);
        assert_eq!(Model::parse(b"?", &usual(), DIR, "/state", "").unwrap_err().code, Code::ComposeInvalid);
    }

    #[test]
    fn a_service_whose_profile_is_empty_is_started_and_one_that_a_variable_hides_is_looked_at() {
        let of = |profiles: Value, more: &str| {
            let mut hidden = json!({ "profiles": profiles });
            hidden[more] = json!(true);
            let project = json!({"services": {"web": {}, "hidden": hidden}});
            Model::parse(project.to_string().as_bytes(), &usual(), DIR, "/state", "")
        };
        let started = |profiles: Value| {
            let model = of(profiles, "privileged").unwrap();
            (model.services.contains_key("hidden"), !model.demands.is_empty())
        };
        assert_eq!(started(json!(["", "x"])), (true, true));
        assert_eq!(started(json!(["${X}"])), (false, true));
        assert_eq!(started(json!(["x"])), (false, false));
        assert!(of(json!(["x"]), "build").is_ok());
        assert_eq!(of(json!(["${X}"]), "provider").unwrap_err().code, Code::ComposeRefused);
    }

    #[test]
    fn a_bundle_reads_no_file_of_the_agents_own() {
        let reads = |key: &str, path: &str| model_in(DIR, &usual(), json!({ key: [{ "path": path }] }));
        for own in
            ["/state/token.json", "/state/current/.env", "/state/releases/other/.env", "/etc/../state/grant.json"]
        {
            let refusal = reads("env_file", own).unwrap_err();
            assert!(refusal.code == Code::ComposeRefused && refusal.detail.contains(own), "{refusal}");
            assert!(model_in(DIR, &usual(), json!({"label_file": own})).is_err());
        }
        for fine in ["/state/releases/r/.env", "/state/releases/r/missing.env", "/etc/environment", "/statement"] {
            assert!(reads("env_file", fine).is_ok(), "{fine}");
        }
    }

    #[test]
    fn a_variable_that_says_itself_that_it_leads_into_the_state_directory_is_refused() {
        let state = "/var/lib/agent";
        let dir = "/var/lib/agent/releases/r";
        let of = |web: Value, volumes: Value| {
            let project = json!({"services": {"web": web}, "volumes": volumes});
            Model::parse(project.to_string().as_bytes(), &usual(), dir, state, "")
        };
        for text in [
            "/var/lib/${Z:-agent}/token.json",
            "/var/lib/${Z-agent}",
            "/var/${A:-lib}/${Z:-${Y:-agent}/x}",
            "/var/lib/${Z:+agent}/token.json",
            "${Z:-/var/lib/agent}/docker",
            "/var/lib/agent/releases/r/${Z:-/var/lib/agent}/docker",
            "${Z:-../../token.json}",
            "/x/${Z:-..}/var/lib/agent/x",
            "/var/lib/agent/${Z}",
            "/var/lib/agent$X/",
        ] {
            for kind in ["bind", "volume", "${K}"] {
                let volume = json!({"type": kind, "source": text, "target": "/t"});
                let refusal = of(json!({ "volumes": [volume] }), json!({})).unwrap_err();
                assert_eq!(refusal.code, Code::ComposeRefused, "{text}");
            }
            for file in
                [json!({"env_file": text}), json!({"label_file": [text]}), json!({"env_file": [{"path": text}]})]
            {
                assert!(of(file.clone(), json!({})).is_err(), "{file}");
            }
            let options = |kind: &str| json!({"v": {"driver_opts": {"type": kind, "o": "bind", "device": text}}});
            if !text.contains("..") && text.starts_with('/') {
                assert!(of(json!({}), options("none")).is_err(), "{text}");
            }
        }
        // As Compose 2.26.1 tells of `/var/lib/${Z:-agent}/token.json:/x`.
        let cut = json!({"volumes": [{"type": "bind", "source": "/var/lib/${Z", "target": "-agent}/token.json"}]});
        assert!(of(cut, json!({})).is_err());
        let cut = json!({"volumes": [{"type": "volume", "source": "${Z", "target": "-/srv}"}]});
        assert!(of(cut, json!({})).is_ok());
        // A variable that is a whole mount, and one that says what an honest bundle says.
        let target = json!({"volumes": [{"type": "volume", "target": "${Z:-/var/lib/agent:/x}"}]});
        assert!(of(target, json!({})).is_err());
        for fine in ["/var/lib/${APP}/data", "/var/lib/${APP:-shop}/data", "${DATA:-/srv}/x", "${DATA}", "${A:-./conf}"]
        {
            let volume = json!({"type": "bind", "source": fine, "target": "/t", "read_only": true});
            let model = of(json!({ "volumes": [volume], "env_file": fine }), json!({})).unwrap();
            assert!(model.decided, "{fine}");
        }
        assert!(
            !of(json!({"volumes": [{"type": "bind", "source": "/etc", "target": "${T}"}]}), json!({})).unwrap().decided
        );
    }

    #[test]
    fn no_option_of_a_volume_leads_into_the_state_directory() {
        let of = |opts: Value| {
            let project = json!({"services": {"a": {}}, "volumes": {"v": {"driver_opts": opts}}});
            Model::parse(project.to_string().as_bytes(), &usual(), DIR, "/state", "")
        };
        for opts in [
            json!({"type": "overlay", "device": "overlay", "o": "lowerdir=/srv:/state/docker,upperdir=/u"}),
            json!({"type": "none", "o": "${O}", "device": "/state/token.json"}),
            json!({"mountpoint": "/srv/../state"}),
            json!({"type": "none", "o": "bind", "device": "/${Z:-state}"}),
            json!({"type": "ext4", "device": "/state/image", "o": "loop"}),
            json!({"type": "overlay", "device": "overlay", "o": "lowerdir=/srv:state/docker"}),
            json!({"type": "overlay", "device": "overlay", "o": "lowerdir=/sta\\te/docker"}),
            json!({"type": "overlay", "device": "overlay", "o": "lowerdir=x/../state:/srv"}),
            json!({"type": "overlay", "device": "overlay", "o": "lowerdir=/state/releases/r/conf"}),
        ] {
            assert_eq!(of(opts.clone()).unwrap_err().code, Code::ComposeRefused, "{opts}");
        }
        assert!(of(json!({"type": "nfs", "o": "addr=h", "device": ":/state"})).is_ok());
        assert!(of(json!({"type": "none", "o": "bind", "device": "${D}"})).unwrap().decided);
        assert!(!of(json!({"type": "none", "o": "bind", "device": "/statement"})).unwrap().decided);
        // As Compose tells of `device: ${D}`.
        assert!(of(json!({"type": "none", "o": "x", "device": format!("{DIR}/${{D}}")})).is_ok());
    }

    #[test]
    fn what_a_deep_text_says_is_found_out_in_bounded_time() {
        for text in ["${A:-".repeat(100_000), "${A".repeat(100_000), "$".repeat(100_001), "${A:+}".repeat(50_000)] {
            assert!(both(&text).iter().all(|said| said.len() <= text.len()));
        }
        assert_eq!(both("a${B:-c${D-e}}$$f$G${H}${I:?x}${J:+k}/l"), ["ace$f/l", "a$fk/l"]);
    }

    #[test]
    fn where_a_mount_leads_is_looked_at_again_with_every_value() {
        let look = |project: Value| check_resolved(project.to_string().as_bytes(), &usual(), DIR, "/state");
        let mount = |source: &str, read_only: bool| {
            let mount = json!({"type": "bind", "source": source, "target": "/secret-target", "read_only": read_only});
            json!({"services": {"web": {"environment": {"A": null, "B": 1}, "volumes": [{"type": "volume", "source": "v"}, mount]}}})
        };
        for into in ["/state/token.json", "/state", "/x/../state/docker", "/state/releases/other/.env"] {
            let refusal = look(mount(into, true)).unwrap_err();
            assert_eq!(refusal.code, Code::ComposeInvalid);
            let says = "services.web.volumes[1]: with the value of its variable";
            assert!(refusal.detail.starts_with(says) && !refusal.detail.contains(into), "{refusal}");
        }
        for fine in ["/srv", "/statement", "/state/releases/r/conf", "/state/releases/r/nothing", "/"] {
            assert_eq!(look(mount(fine, false)), Ok(()), "{fine}");
        }
        for compose in [DIR, "/state/releases/r/compose.yaml", "/state/releases/r/x/../.env"] {
            assert_eq!(look(mount(compose, true)), Ok(()), "{compose}");
            let refusal = look(mount(compose, false)).unwrap_err();
            assert_eq!(refusal.code, Code::ComposeInvalid);
            assert!(refusal.detail.contains("writable: add `:ro`"), "{refusal}");
        }
        for other in [
            json!({"volumes": {"v": {"driver_opts": {"device": "/state"}}, "w": null}}),
            json!({"volumes": {"v": {"driver_opts": {"device": DIR}}}}),
            json!({"secrets": {"s": {"file": "/state/token.json"}}}),
            json!({"configs": {"s": {"file": "/state/token.json"}}}),
        ] {
            assert_eq!(look(other.clone()).unwrap_err().code, Code::ComposeInvalid, "{other}");
        }
        let nothing = check_resolved(b"secret", &usual(), DIR, "/state").unwrap_err();
        assert!(nothing.code == Code::ComposeInvalid && !nothing.detail.contains("secret"));
    }

    #[test]
    fn a_service_without_containers_is_not_looked_at_again() {
        let look = |more: Value| {
            let mut web = json!({"volumes": [{"type": "bind", "source": "/state", "target": "/t"}]});
            web.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let project = json!({"services": {"web": web}});
            check_resolved(project.to_string().as_bytes(), &usual(), DIR, "/state").is_ok()
        };
        for none in
            [json!({"scale": 0}), json!({"deploy": {"replicas": 0}}), json!({"scale": 0, "deploy": {"replicas": 1}})]
        {
            assert!(look(none.clone()), "{none}");
        }
        for some in [
            json!({}),
            json!({"scale": 1, "deploy": {"replicas": 0}}),
            json!({"deploy": {"replicas": null}}),
            json!({"deploy": null}),
        ] {
            assert!(!look(some.clone()), "{some}");
        }
    }

    #[test]
    fn a_dollar_in_a_name_is_written_twice_and_looked_at_once() {
        let bundle = bundle(json!({"compose.yaml": "include: [a$b.yaml]", "c": "3"}));
        let look = |source: &str| {
            let mount = json!({"type": "bind", "source": source, "target": "/t"});
            let project = json!({"services": {"web": {"volumes": [mount]}}});
            check_resolved(project.to_string().as_bytes(), &bundle, DIR, "/s$tate").is_ok()
        };
        assert!(!look("/s$$tate/token.json") && look("/other$$/token.json"));
    }

    #[test]
    fn a_mount_through_which_compose_itself_could_be_changed_is_closed() {
        let bundle = bundle(json!({
            "compose.yaml": "include: [inc/a.yaml]\nservices: {w: {env_file: e/w.env, label_file: [l/w]}}",
            "inc/a.yaml": "services: {}", "conf/a": "1", "e/w.env": "", "l/w": "", "c": "3",
        }));
        let closed = |source: &str, read_only: Value| {
            let volume = json!({
                "type": "bind", "source": format!("{DIR}{source}"), "target": "/${T}/", "read_only": read_only,
                "bind": {"selinux": "z"},
            });
            let model = model_in(DIR, &bundle, json!({ "volumes": [volume] })).unwrap();
            let told = model.warnings.iter().any(|warning| warning.contains("so it is mounted read-only"));
            assert_eq!(told, !model.closed.is_empty(), "{:?}", model.warnings);
            model.closed
        };
        for place in ["", "/.", "/compose.yaml", "/inc", "/inc/a.yaml", "/e", "/l/w"] {
            for writable in [json!(false), json!(null), json!("${RO}")] {
                let path = clean(place).trim_start_matches('/').to_owned();
                let one = Closed { target: "/${T}/".to_owned(), path, bind: Some(json!({"selinux": "z"})) };
                assert_eq!(closed(place, writable), BTreeMap::from([("web".to_owned(), vec![one])]), "{place}");
            }
            assert_eq!(closed(place, json!(true)), BTreeMap::new(), "{place}");
        }
        assert!(closed("/conf", json!(false)).is_empty() && closed("/conf/a", json!(false)).is_empty());
    }

    #[test]
    fn what_compose_would_run_itself_is_refused_also_of_a_service_without_containers() {
        let of = |web: Value| {
            let project = json!({"services": {"web": web, "other": {}}});
            Model::parse(project.to_string().as_bytes(), &usual(), DIR, "/state", "")
        };
        for mut service in [
            json!({"provider": {"type": "x"}}),
            json!({"models": {"llm": null}}),
            json!({"models": ["llm"]}),
            json!({"build": "."}),
        ] {
            assert_eq!(of(service.clone()).unwrap_err().code, Code::ComposeRefused, "{service}");
            service["scale"] = json!(0);
            assert_eq!(of(service.clone()).unwrap_err().code, Code::ComposeRefused, "{service}");
            service["profiles"] = json!(["x"]);
            assert!(of(service.clone()).is_ok(), "{service}");
        }
        assert!(of(json!({"models": {}, "provider": null, "build": null})).is_ok());
    }

    #[test]
    fn a_volume_that_is_a_bind_in_disguise_is_refused_within_a_release() {
        let of = |opts: Value| {
            let project = json!({"services": {"a": {}}, "volumes": {"v": {"driver_opts": opts}, "w": {}, "x": null}});
            Model::parse(project.to_string().as_bytes(), &usual(), DIR, "/state", "").is_ok()
        };
        assert!(!of(json!({"type": "none", "o": "bind", "device": "./data"})));
        assert!(!of(json!({"type": "none", "o": "ro,rbind", "device": "/state/current/data"})));
        assert!(of(json!({"type": "none", "o": "bind", "device": "/data"})));
        assert!(of(json!({"type": "none", "o": "bind", "device": "${DATA}"})));
        assert!(of(json!({"type": "nfs", "o": "addr=h", "device": ":/x"})));
    }
}
