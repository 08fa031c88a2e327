//! The stand-in's verbs: what a call prints and how it ends.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use serde_json::{Map, Value, json};

use super::DockerStandIn;
use super::compose::{self, Common, Project, Refused};
use super::world::{Behaviour, Container, Daemon, Fault, Image, World, now_ms, split_reference};

/// How a call ended.
#[derive(Debug, Default)]
pub struct Ended {
    pub status: u8,
    pub stdout: String,
    pub stderr: String,
}

fn ok(stdout: impl Into<String>) -> Ended {
    Ended { stdout: stdout.into(), ..Ended::default() }
}

fn fails(status: u8, stderr: impl AsRef<str>) -> Ended {
    Ended { status, stderr: format!("{}\n", stderr.as_ref()), ..Ended::default() }
}

/// How the agent asks for what is to replace another and has not got its name yet.
const NOT_YET_NAMED: &str = "name=^/?[0-9a-f]{12}_";
/// How the agent asks for names and folders.
const ORIGIN: &str = "{{.Names}}\t{{.Label \"com.docker.compose.project.working_dir\"}}";

/// Longer than any deadline: whoever waits for this has to end it.
const FOREVER: Duration = Duration::from_secs(3600);

/// Runs one call.
pub fn run(stand_in: &DockerStandIn, args: &[String]) -> Ended {
    run_in(stand_in, args).unwrap_or_else(|error| fails(64, format!("docker stand-in: {error}")))
}

fn run_in(stand_in: &DockerStandIn, args: &[String]) -> io::Result<Ended> {
    stand_in.log(args)?;
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let call = match Call::parse(&words) {
        Ok(call) => call,
        Err(why) => return Ok(fails(64, format!("docker stand-in: {why}: docker {}", args.join(" ")))),
    };
    let (mishap, daemon, has_compose) =
        stand_in.edit(|world| (world.mishap(call.verb()), world.daemon, world.compose.is_some()))?;
    match mishap {
        Some(Fault::Hang) => std::thread::sleep(FOREVER),
        Some(Fault::Slow(ms)) => std::thread::sleep(Duration::from_millis(ms)),
        Some(Fault::Fail(status, stderr)) => return Ok(fails(status, stderr)),
        None => {}
    }
    if call.is_compose() && !has_compose {
        let flag =
            if words.contains(&"--short") { "unknown flag: --short" } else { "unknown shorthand flag: 'p' in -p" };
        let usage = "Usage:  docker [OPTIONS] COMMAND [ARG...]\n\nRun 'docker --help' for more information";
        return Ok(fails(125, format!("{flag}\n\n{usage}")));
    }
    if !call.is_local() {
        match daemon {
            Daemon::Up => {}
            Daemon::Hangs => std::thread::sleep(FOREVER),
            Daemon::Down => {
                let host = std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned());
                return Ok(fails(
                    1,
                    format!("Cannot connect to the Docker daemon at {host}. Is the docker daemon running?"),
                ));
            }
        }
    }
    stand_in.edit(|world| call.carry_out(world))
}

/// A call that the agent makes.
enum Call<'a> {
    Version,
    ComposeVersion,
    Config { common: Common, quiet: bool, interpolate: bool },
    Pull(Common),
    Up { common: Common, remove_orphans: bool },
    Ps(Vec<&'a str>),
    Origins(Vec<&'a str>),
    Names(Vec<&'a str>),
    Rename { from: &'a str, to: &'a str },
    DataRoot,
    Rm(Vec<&'a str>),
    Inspect(Vec<&'a str>),
    Logs { id: &'a str, tail: usize },
    ImageRm(Vec<&'a str>),
}

impl<'a> Call<'a> {
    fn parse(words: &[&'a str]) -> Result<Call<'a>, String> {
        match words {
            ["version", "--format", "{{.Server.Version}}"] => Ok(Call::Version),
            ["compose", "version", "--short"] => Ok(Call::ComposeVersion),
            ["compose", rest @ ..] => Call::parse_compose(rest),
            ["info", "--format", "{{.DockerRootDir}}"] => Ok(Call::DataRoot),
            ["ps", "-a", "--no-trunc", "--filter", filter, "--format", ORIGIN] => Ok(Call::Origins(vec![filter])),
            ["ps", "-a", "--no-trunc", filters @ .., "--format", "{{.Names}}"] => {
                Ok(Call::Names(filters.iter().copied().filter(|word| *word != "--filter").collect()))
            }
            ["ps", rest @ ..] => Call::parse_ps(rest),
            ["rename", from, to] => Ok(Call::Rename { from, to }),
            ["rm", "-f", ids @ ..] if !ids.is_empty() => Ok(Call::Rm(ids.to_vec())),
            ["inspect", "--type", "container", ids @ ..] if !ids.is_empty() => Ok(Call::Inspect(ids.to_vec())),
            ["logs", "--tail", tail, "--timestamps=false", id] => {
                Ok(Call::Logs { id, tail: tail.parse().map_err(|_| "--tail wants a number".to_owned())? })
            }
            ["image", "rm", ids @ ..] if !ids.is_empty() => Ok(Call::ImageRm(ids.to_vec())),
            _ => Err("a call that the agent does not make".to_owned()),
        }
    }

    fn parse_compose(words: &[&'a str]) -> Result<Call<'a>, String> {
        let mut common = Common::default();
        let mut quiet_progress = false;
        let mut rest = words;
        loop {
            rest = match rest {
                ["-p", project, rest @ ..] => {
                    common.project = (*project).to_owned();
                    rest
                }
                ["--project-directory", folder, rest @ ..] => {
                    common.folder = PathBuf::from(folder);
                    rest
                }
                ["-f", file, rest @ ..] => {
                    common.files.push(PathBuf::from(file));
                    rest
                }
                ["--env-file", file, rest @ ..] => {
                    common.env_file = PathBuf::from(file);
                    rest
                }
                ["--progress", "quiet", rest @ ..] => {
                    quiet_progress = true;
                    rest
                }
                rest => break self::verb(common, quiet_progress, rest),
            };
        }
    }

    fn parse_ps(words: &[&'a str]) -> Result<Call<'a>, String> {
        let mut filters = Vec::new();
        let mut rest = match words {
            ["-a", "-q", "--no-trunc", rest @ ..] => rest,
            _ => return Err("ps is called with -a -q --no-trunc".to_owned()),
        };
        while let ["--filter", filter, more @ ..] = rest {
            filters.push(*filter);
            rest = more;
        }
        if rest.is_empty() { Ok(Call::Ps(filters)) } else { Err("ps takes only filters".to_owned()) }
    }

    const fn verb(&self) -> &'static str {
        match self {
            Call::Version => "version",
            Call::ComposeVersion => "compose version",
            Call::Config { .. } => "config",
            Call::Pull(_) => "pull",
            Call::Up { .. } => "up",
            Call::Ps(_) | Call::Origins(_) | Call::Names(_) => "ps",
            Call::Rename { .. } => "rename",
            Call::DataRoot => "info",
            Call::Rm(_) => "rm",
            Call::Inspect(_) => "inspect",
            Call::Logs { .. } => "logs",
            Call::ImageRm(_) => "image rm",
        }
    }

    const fn is_compose(&self) -> bool {
        matches!(self, Call::ComposeVersion | Call::Config { .. } | Call::Pull(_) | Call::Up { .. })
    }

    /// It calls no daemon.
    const fn is_local(&self) -> bool {
        matches!(self, Call::ComposeVersion | Call::Config { .. })
    }

    fn carry_out(self, world: &mut World) -> Ended {
        match self {
            Call::Version => ok(format!("{}\n", world.engine)),
            Call::ComposeVersion => ok(format!("{}\n", world.compose.as_deref().unwrap_or_default())),
            Call::Config { common, quiet, interpolate } => with_project(world, &common, interpolate, |_, project| {
                if quiet { Ended::default() } else { ok(format!("{:#}\n", project.model)) }
            }),
            Call::Pull(common) => with_project(world, &common, true, pull),
            Call::Up { common, remove_orphans } => {
                with_project(world, &common, true, |world, project| up(world, &common, project, remove_orphans))
            }
            Call::Ps(filters) => ps(world, &filters, |it| it.id.clone()),
            Call::Origins(filters) => {
                ps(world, &filters, |it| format!("{}\t{}", it.name, it.label("com.docker.compose.project.working_dir")))
            }
            Call::Names(filters) => ps(world, &filters, |it| it.name.clone()),
            Call::Rename { from, to } => rename(world, from, to),
            // The engine is elsewhere: this machine has no such folder.
            Call::DataRoot => ok("/nowhere/docker\n"),
            Call::Rm(ids) => rm(world, &ids),
            Call::Inspect(ids) => inspect(world, &ids),
            Call::Logs { id, tail } => logs(world, id, tail),
            Call::ImageRm(ids) => image_rm(world, &ids),
        }
    }
}

fn verb<'a>(common: Common, quiet: bool, words: &[&'a str]) -> Result<Call<'a>, String> {
    match words {
        ["config", "-q"] => Ok(Call::Config { common, quiet: true, interpolate: true }),
        ["config", "--format", "json"] => Ok(Call::Config { common, quiet: false, interpolate: true }),
        ["config", "--format", "json", "--no-interpolate"] => {
            Ok(Call::Config { common, quiet: false, interpolate: false })
        }
        ["pull"] if quiet => Ok(Call::Pull(common)),
        ["up", "-d", "--remove-orphans", "--no-build", "--pull", "never"] if quiet => {
            Ok(Call::Up { common, remove_orphans: true })
        }
        _ => Err("a call of Compose that the agent does not make".to_owned()),
    }
}

/// Compose before 2.30 had an exit status for each kind of error.
fn has_old_statuses(world: &World) -> bool {
    let version = world.compose.as_deref().unwrap_or_default();
    let mut numbers = version.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or_default());
    (numbers.next(), numbers.next()) < (Some(2), Some(30))
}

fn with_project(
    world: &mut World,
    common: &Common,
    interpolate: bool,
    then: impl FnOnce(&mut World, &Project) -> Ended,
) -> Ended {
    let project = match compose::read(common, interpolate) {
        Ok(project) => project,
        Err(Refused(status, why)) => return fails(if has_old_statuses(world) { status } else { 1 }, why),
    };
    let warn = |name: &String| {
        format!(
            "time=\"2026-01-01T00:00:00Z\" level=warning msg=\"The \\\"{name}\\\" variable is not set. Defaulting to a blank string.\"\n"
        )
    };
    let warnings: String = project.unset.iter().map(warn).collect();
    let mut ended = then(world, &project);
    ended.stderr.insert_str(0, &warnings);
    ended
}

fn image_of(service: &Map<String, Value>) -> &str {
    service.get("image").and_then(Value::as_str).unwrap_or_default()
}

/// The credential in `DOCKER_CONFIG` for a host; or the warning that it cannot be read.
fn credential(host: &str) -> Result<Option<String>, String> {
    let Some(folder) = std::env::var_os("DOCKER_CONFIG") else { return Ok(None) };
    let path = PathBuf::from(folder).join("config.json");
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
    let warning =
        |why: &dyn std::fmt::Display| format!("WARNING: Error parsing config file ({}): {why}\n", path.display());
    let config: Value = serde_json::from_str(&text).map_err(|why| warning(&why))?;
    let key = if host == "registry-1.docker.io" { "https://index.docker.io/v1/" } else { host };
    let Some(auth) = config.get("auths").and_then(|all| all.get(key)).and_then(|one| one.get("auth")) else {
        return Ok(None);
    };
    let decoded = base64::engine::general_purpose::STANDARD
        .decode(auth.as_str().unwrap_or_default())
        .map_err(|why| warning(&why))?;
    Ok(Some(String::from_utf8_lossy(&decoded).into_owned()))
}

fn pull(world: &mut World, project: &Project) -> Ended {
    let status = if has_old_statuses(world) { 18 } else { 1 };
    for service in project.services().values() {
        if let Err(why) = pull_one(world, image_of(service)) {
            return fails(status, why);
        }
    }
    Ended::default()
}

fn pull_one(world: &mut World, reference: &str) -> Result<(), String> {
    let (host, name) = split_reference(reference);
    let registry = world.registries.get(&host).ok_or_else(|| {
        let bare = host.split(':').next().unwrap_or_default();
        format!("Error response from daemon: Get \"https://{host}/v2/\": dial tcp: lookup {bare} on 10.0.0.2:53: no such host")
    })?;
    let mut warning = String::new();
    if let Some((user, password)) = &registry.login {
        let given = credential(&host).unwrap_or_else(|why| {
            warning = why;
            None
        });
        match given {
            None => {
                let (repository, tag) = name.rsplit_once(':').unwrap_or((&name, "latest"));
                let head = format!("Head \"https://{host}/v2/{repository}/manifests/{tag}\"");
                return Err(format!("{warning}Error response from daemon: {head}: no basic auth credentials"));
            }
            Some(given) if given != format!("{user}:{password}") => {
                return Err("Error response from daemon: unauthorized: authentication required".to_owned());
            }
            Some(_) => {}
        }
    }
    let image = registry.images.get(&name).cloned().ok_or_else(|| {
        format!("Error response from daemon: manifest for {reference} not found: manifest unknown: manifest unknown")
    })?;
    if world.disk_full && !world.images.contains_key(reference) {
        return Err("failed to register layer: write /app/data.bin: no space left on device".to_owned());
    }
    world.images.insert(reference.to_owned(), image);
    Ok(())
}

fn up(world: &mut World, common: &Common, project: &Project, remove_orphans: bool) -> Ended {
    let services = project.services();
    if services.is_empty() {
        return fails(1, "no service selected");
    }
    for service in services.values() {
        let reference = image_of(service);
        if !world.images.contains_key(reference) {
            return fails(1, format!("Error response from daemon: No such image: {reference}"));
        }
    }
    if remove_orphans {
        world.containers.retain(|it| it.project() != common.project || services.contains_key(it.service()));
    }
    for (name, service) in &services {
        if let Err(why) = up_service(world, common, name, service) {
            return fails(1, why);
        }
    }
    Ended::default()
}

fn up_service(world: &mut World, common: &Common, name: &str, service: &Map<String, Value>) -> Result<(), String> {
    let Some(mut image) = world.images.get(image_of(service)).cloned() else { return Ok(()) };
    if let Some(behaviour) = world.behaviours.get(name) {
        image.behaviour = behaviour.clone();
    }
    let hash = compose::config_hash(service);
    let now = now_ms();
    let is_ours = |it: &Container| it.project() == common.project && it.service() == name;
    let number = |it: &Container| it.label("com.docker.compose.container-number").parse::<u64>().unwrap_or_default();
    let scale = compose::scale(service);
    world.containers.retain(|it| !is_ours(it) || number(it) <= scale);
    for wanted in 1..=scale {
        let same = |it: &&mut Container| is_ours(it) && number(it) == wanted;
        match world.containers.iter_mut().find(same) {
            Some(old) if old.label("com.docker.compose.config-hash") == hash && old.image.id == image.id => {
                // A one-shot that ended runs again on each `up`.
                if !matches!(old.state(now).0, "running" | "restarting") {
                    start(old, service, now, &world.busy_ports)?;
                }
            }
            _ => {
                world.containers.retain(|it| !(is_ours(it) && number(it) == wanted));
                let id = world.new_id();
                let mut made = container(id, common, name, service, &image, wanted, &hash, now);
                let started = start(&mut made, service, now, &world.busy_ports);
                world.containers.push(made);
                started?;
            }
        }
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "one call, and each argument is a different fact")]
fn container(
    id: String,
    common: &Common,
    name: &str,
    service: &Map<String, Value>,
    image: &Image,
    number: u64,
    hash: &str,
    now: u64,
) -> Container {
    let files: Vec<String> = common.files.iter().map(|path| path.display().to_string()).collect();
    let mut labels: BTreeMap<String, String> =
        service.get("labels").map(compose::pairs).unwrap_or_default().into_iter().collect();
    let composes = [
        ("project", common.project.clone()),
        ("service", name.to_owned()),
        ("config-hash", hash.to_owned()),
        ("container-number", number.to_string()),
        ("image", image.id.clone()),
        ("oneoff", "False".to_owned()),
        ("project.config_files", files.join(",")),
        ("project.working_dir", common.folder.display().to_string()),
    ];
    labels.extend(composes.map(|(key, value)| (format!("com.docker.compose.{key}"), value)));
    let disabled = |check: &Value| check.get("disable").and_then(Value::as_bool).unwrap_or(false);
    let named = service.get("container_name").and_then(Value::as_str);
    Container {
        id,
        name: named.map_or_else(|| format!("{}-{name}-{number}", common.project), str::to_owned),
        image: image.clone(),
        labels,
        environment: service.get("environment").map(compose::pairs).unwrap_or_default().into_iter().collect(),
        healthcheck: service.get("healthcheck").is_some_and(|check| !disabled(check)),
        restart: service.get("restart").and_then(Value::as_str).unwrap_or("no").to_owned(),
        created_ms: now,
        started_ms: None,
        error: String::new(),
        looks: 0,
    }
}

fn start(
    container: &mut Container,
    service: &Map<String, Value>,
    now: u64,
    busy: &std::collections::BTreeSet<u16>,
) -> Result<(), String> {
    container.started_ms = None;
    container.looks = 0;
    container.error = String::new();
    let ports = service.get("ports").and_then(Value::as_array).into_iter().flatten();
    let published = ports.filter_map(|port| port.get("published")?.as_str()?.parse::<u16>().ok());
    let why = if let Some(port) = published.into_iter().find(|port| busy.contains(port)) {
        let endpoint = format!("driver failed programming external connectivity on endpoint {}", container.name);
        Some(format!("{endpoint}: Bind for 0.0.0.0:{port} failed: port is already allocated"))
    } else if let Behaviour::NotStartable { error } = &container.image.behaviour {
        Some(error.clone())
    } else {
        None
    };
    if let Some(why) = why {
        container.error.clone_from(&why);
        return Err(format!("Error response from daemon: {why}"));
    }
    container.started_ms = Some(now);
    Ok(())
}

fn ps(world: &World, filters: &[&str], show: impl Fn(&Container) -> String) -> Ended {
    let now = now_ms();
    let passes = |it: &Container, filter: &str| {
        let (kind, want) = filter.split_once('=').unwrap_or((filter, ""));
        match (kind, want.split_once('=')) {
            ("label", Some((key, value))) => it.labels.get(key).is_some_and(|has| has == value),
            ("label", None) => it.labels.contains_key(want),
            ("status", None) => it.state(now).0 == want,
            ("name", None) if filter == NOT_YET_NAMED => is_not_yet_named(&it.name),
            _ => false,
        }
    };
    let found = world.containers.iter().rev().filter(|it| filters.iter().all(|filter| passes(it, filter)));
    ok(found.map(|it| format!("{}\n", show(it))).collect::<String>())
}

fn is_not_yet_named(name: &str) -> bool {
    name.split_once('_').is_some_and(|(id, _)| {
        id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
}

/// Does something with each container that is there, and says of the others that they are not.
fn each(world: &mut World, ids: &[&str], status: u8, mut then: impl FnMut(&mut World, usize) -> String) -> Ended {
    let mut ended = Ended::default();
    for id in ids {
        match world.containers.iter().position(|it| it.id.starts_with(id) || it.name == *id) {
            Some(at) => ended.stdout.push_str(&then(world, at)),
            None => {
                ended.status = status;
                ended.stderr.push_str(&format!("Error response from daemon: No such container: {id}\n"));
            }
        }
    }
    ended
}

fn rename(world: &mut World, from: &str, to: &str) -> Ended {
    if let Some(other) = world.containers.iter().find(|it| it.name == to) {
        let id = &other.id;
        let words = format!(
            "Error response from daemon: Error when allocating new name: Conflict. The container name \"/{to}\" is already in use by container \"{id}\".\n"
        );
        return Ended { status: 1, stderr: words, ..Ended::default() };
    }
    each(world, &[from], 1, |world, at| {
        if let Some(it) = world.containers.get_mut(at) {
            to.clone_into(&mut it.name);
        }
        String::new()
    })
}

fn rm(world: &mut World, ids: &[&str]) -> Ended {
    each(world, ids, 0, |world, at| format!("{}\n", world.containers.remove(at).id))
}

fn inspect(world: &mut World, ids: &[&str]) -> Ended {
    let now = now_ms();
    let mut all = Vec::new();
    let mut ended = each(world, ids, 1, |world, at| {
        if let Some(container) = world.containers.get_mut(at) {
            container.looks += 1;
            all.push(container.inspect(now));
        }
        String::new()
    });
    ended.stdout = format!("{:#}\n", json!(all));
    ended
}

fn logs(world: &mut World, id: &str, tail: usize) -> Ended {
    each(world, &[id], 1, |world, at| {
        let lines = world.containers.get(at).map(|it| it.image.logs.as_slice()).unwrap_or_default();
        lines.iter().skip(lines.len().saturating_sub(tail)).map(|line| format!("{line}\n")).collect()
    })
}

fn image_rm(world: &mut World, ids: &[&str]) -> Ended {
    let mut ended = Ended::default();
    for id in ids {
        let names: Vec<String> =
            world.images.iter().filter(|(_, image)| image.id == *id).map(|(name, _)| name.clone()).collect();
        let short = |id: &str| id.trim_start_matches("sha256:").chars().take(12).collect::<String>();
        let refusal = if let Some(user) = world.containers.iter().find(|it| it.image.id == *id) {
            let how = if user.state(now_ms()).0 == "running" { ("cannot", "running") } else { ("must", "stopped") };
            let being = format!("image is being used by {} container {}", how.1, short(&user.id));
            Some(match how.0 {
                "cannot" => format!("conflict: unable to delete {} (cannot be forced) - {being}", short(id)),
                _ => format!("conflict: unable to delete {} (must be forced) - {being}", short(id)),
            })
        } else if names.len() > 1 {
            Some(format!(
                "conflict: unable to delete {} (must be forced) - image is referenced in multiple repositories",
                short(id)
            ))
        } else if names.is_empty() {
            Some(format!("No such image: {id}"))
        } else {
            None
        };
        if let Some(why) = refusal {
            ended.status = 1;
            ended.stderr.push_str(&format!("Error response from daemon: {why}\n"));
            continue;
        }
        for name in names {
            world.images.remove(&name);
            ended.stdout.push_str(&format!("Untagged: {name}\n"));
        }
        ended.stdout.push_str(&format!("Deleted: {id}\n"));
    }
    ended
}
