//! What a compose file asks of the box beyond its own containers, and what the box's owner says to that.
//!
//! Invariant: `demands` looks at the resolved model alone, and whatever a variable decides is a demand: it is not shown
//! to be harmless. [`Policy::judge`] is the only decision, and it names all that it refuses.
//!
//! Paths are judged by their letters. A link on the box, and what an existing volume or container mounts, cannot be
//! seen here.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::failure::{Code, Refusal};
use super::model::{below, clean, entries, has_variable, items, text};

/// The owner's answer to a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stance {
    /// Nothing is said.
    Allow,
    /// It is deployed, and the journal says so.
    Warn,
    /// The bundle is refused.
    Refuse,
}

impl Stance {
    /// The words of the configuration, mildest first.
    pub const WORDS: &'static [&'static str] = &["allow", "warn", "refuse"];

    /// The stance that this word of the configuration means.
    pub fn of(word: &str) -> Option<Stance> {
        match word {
            "allow" => Some(Stance::Allow),
            "warn" => Some(Stance::Warn),
            "refuse" => Some(Stance::Refuse),
            _ => None,
        }
    }
}

macro_rules! rules {
    ($( $rule:ident = $name:literal, $usual:ident, $doc:literal; )*) => {
        /// What can be asked for. The order is that of the configuration.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Rule { $( #[doc = $doc] #[serde(rename = $name)] $rule, )* }

        impl Rule {
            /// All of them.
            pub const ALL: &'static [Rule] = &[ $( Rule::$rule, )* ];

            /// Its name below `policy`.
            pub const fn as_str(self) -> &'static str { match self { $( Rule::$rule => $name, )* } }

            /// What holds if the owner has said nothing. It never refuses: a bundle that deployed before there was a
            /// policy still does.
            pub const fn usual(self) -> Stance { match self { $( Rule::$rule => Stance::$usual, )* } }
        }
    };
}

// What is a way out of the container warns, for somebody should know. What is everyday in good bundles does not.
rules! {
    Privileged = "privileged", Warn, "`privileged`, also of a hook.";
    HostNamespaces = "host_namespaces", Warn, "A namespace of the box, or of a container outside of the project.";
    Devices = "devices", Warn, "Devices of the box, GPUs too.";
    Capabilities = "capabilities", Warn, "`cap_add` beyond what Docker gives to every container.";
    SecurityOpt = "security_opt", Warn, "`security_opt` that changes how a container is confined.";
    Runtime = "runtime", Allow, "Another runtime than the usual one.";
    DockerSocket = "docker_socket", Warn, "The socket of a container engine, or a folder that holds it or the agent's credentials.";
    Binds = "binds", Allow, "Files of the box outside of `policy.bind_roots`.";
    Images = "images", Allow, "An image without a digest.";
}

/// What the box's owner allows. The default is that nothing was said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// The rules that something was said about.
    pub rules: BTreeMap<Rule, Stance>,
    /// Absolute folders; what is in them may be mounted whatever [`Rule::Binds`] says.
    pub bind_roots: Vec<String>,
}

/// One thing that a compose file asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Demand {
    /// Which rule it is for.
    pub rule: Rule,
    /// The service that gets it.
    pub service: String,
    /// Where it stands, such as `services.web.privileged`.
    pub key: String,
    /// What is asked for, as it goes on after the key: `is true`.
    pub what: String,
    /// Of [`Rule::Binds`]: the path on the box, without `.` and `..`. None: nobody can tell, so it is in no root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// What a policy says to a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// What the journal should know, in the order of the rules.
    pub warnings: Vec<String>,
    /// `POLICY_REFUSED`, if anything is refused.
    pub refusal: Option<Refusal>,
}

/// So many characters of a refusal name what is refused; the rest of a report's detail is code and remedy.
const ROOM: usize = 680;

/// So many mounts stand in one line.
const MAX_OF_A_LINE: usize = 10;

/// So many lines of one judgement reach the journal.
const MAX_WARNINGS: usize = 100;

impl Policy {
    /// What is said to a rule.
    pub fn stance(&self, rule: Rule) -> Stance {
        self.rules.get(&rule).copied().unwrap_or(rule.usual())
    }

    /// What is said to all that a model asks for.
    pub fn judge(&self, demands: &[Demand]) -> Judgement {
        let asked: BTreeSet<&Demand> = demands.iter().filter(|demand| !self.is_within_roots(demand)).collect();
        let to = |stance: Stance| -> Vec<String> {
            let those = asked.iter().filter(|demand| self.stance(demand.rule) == stance);
            those.map(|demand| demand.words()).collect()
        };
        let refused = to(Stance::Refuse);
        let warned = in_few_lines(asked.iter().copied().filter(|demand| self.stance(demand.rule) == Stance::Warn));
        let refusal = (!refused.is_empty()).then(|| Refusal::new(Code::PolicyRefused, in_short(&refused)));
        // What did not fit into the refusal is in the journal, whole.
        let cut = refusal.as_ref().is_some_and(|refusal| refused.iter().any(|words| !refusal.detail.contains(words)));
        let lines = refused.iter().filter(|_| cut).map(|words| format!("refused: {words}"));
        let mut warnings: Vec<String> = lines.chain(warned).collect();
        if warnings.len() > MAX_WARNINGS {
            let more = warnings.len() - MAX_WARNINGS;
            warnings.truncate(MAX_WARNINGS);
            warnings.push(format!("compose.yaml asks for {more} more things that the policy of this box speaks of"));
        }
        Judgement { warnings, refusal }
    }

    fn is_within_roots(&self, demand: &Demand) -> bool {
        let within = |path: &String| self.bind_roots.iter().any(|root| below(path, &clean(root)).is_some());
        demand.rule == Rule::Binds && demand.path.as_ref().is_some_and(within)
    }
}

impl Demand {
    /// Key, what, whose, and the rule to look for.
    fn words(&self) -> String {
        format!("{} (policy.{})", self.asked(&self.what), self.rule.as_str())
    }

    fn asked(&self, what: &str) -> String {
        let Demand { rule: _, service, key, what: _, path: _ } = self;
        let whose = match key.strip_prefix("services.").is_some_and(|rest| rest.starts_with(service.as_str())) {
            true => String::new(),
            false => format!(", for service {service:?}"),
        };
        format!("{key} {what}{whose}")
    }

    /// What is mounted, if a variable decides that.
    fn undecided_mount(&self) -> Option<&str> {
        self.what.strip_suffix(BY_VARIABLE)?.strip_suffix(": ").filter(|what| what.starts_with("mounts "))
    }
}

/// The lines of the journal: what two rules speak of is one line, and so are all mounts of a service that variables
/// decide.
fn in_few_lines<'d>(demands: impl Iterator<Item = &'d Demand>) -> Vec<String> {
    let mut lines: Vec<Line<'d>> = Vec::new();
    let mut places: BTreeMap<[&str; 3], usize> = BTreeMap::new();
    for demand in demands {
        let Demand { rule, service, key, what, path: _ } = demand;
        let undecided = demand.undecided_mount();
        let place = if undecided.is_some() {
            [service.as_str(), "", ""]
        } else {
            [service.as_str(), key.as_str(), what.as_str()]
        };
        let at = *places.entry(place).or_insert(lines.len());
        if at == lines.len() {
            lines.push(Line { first: demand, asked: BTreeSet::new(), rules: BTreeSet::new() });
        }
        if let Some(line) = lines.get_mut(at) {
            line.asked.insert(demand.asked(undecided.unwrap_or(what)));
            line.rules.insert(*rule);
        }
    }
    lines.into_iter().map(Line::words).collect()
}

/// What goes into one line of the journal.
struct Line<'d> {
    first: &'d Demand,
    asked: BTreeSet<String>,
    rules: BTreeSet<Rule>,
}

impl Line<'_> {
    fn words(self) -> String {
        let more = self.asked.len().saturating_sub(MAX_OF_A_LINE);
        let asked: Vec<String> = self.asked.into_iter().take(MAX_OF_A_LINE).collect();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let why = if self.first.undecided_mount().is_some() { format!(": {BY_VARIABLE}") } else { String::new() };
        let rules: Vec<String> = self.rules.iter().map(|rule| format!("policy.{}", rule.as_str())).collect();
        format!("{}{more}{why} ({})", asked.join(", "), rules.join(", "))
    }
}

/// As many of these as there is room for, and how many there are besides.
fn in_short(all: &[String]) -> String {
    let mut room = ROOM;
    // One that is too long does not hide those after it.
    let fits = |words: &&String| {
        let left = room.checked_sub(words.chars().count() + 2);
        room = left.unwrap_or(room);
        left.is_some()
    };
    let named: Vec<&str> = all.iter().filter(fits).map(String::as_str).collect();
    match all.len() - named.len() {
        0 => named.join("; "),
        more if named.is_empty() => format!("{more} things, which the journal names"),
        more => format!("{}; and {more} more, which the journal names", named.join("; ")),
    }
}

/// The box, as far as a compose file can be about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'s> {
    /// The folder that the bundle lies in; clean.
    pub project: &'s str,
    /// The agent's state directory, somewhere above it; clean.
    pub state: &'s str,
    /// The address of the engine, as Docker is told it; empty: Docker's own default.
    pub engine: &'s str,
}

/// Sockets that give the whole box to whoever may write to them.
const SOCKETS: &[&str] = &[
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/docker/containerd/containerd.sock",
    "/run/podman/podman.sock",
];

/// What Docker gives to each container anyway: to add it, mostly after `cap_drop: [ALL]`, is no demand.
const USUAL_CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Docker's own confinement, named.
const USUAL_SECURITY: &[&str] =
    &["no-new-privileges", "no-new-privileges=true", "apparmor=docker-default", "seccomp=builtin"];

/// Docker's own runtime, by both of its names.
const USUAL_RUNTIMES: &[&str] = &["", "runc", "io.containerd.runc.v2"];

/// File systems that are not of this box: made anew, or another machine's.
const REMOTE_FILE_SYSTEMS: &[&str] = &["tmpfs", "nfs", "nfs3", "nfs4", "cifs", "smb3"];

/// Drivers of networks that lead no further than Docker's own.
const USUAL_NETWORKS: &[&str] = &["", "bridge", "default", "none", "null", "overlay"];

const BY_VARIABLE: &str = "a variable decides, so nobody can tell that it is harmless";

/// Whether a volume of this type is made anew, or another machine's.
pub(super) fn is_remote(kind: &str) -> bool {
    REMOTE_FILE_SYSTEMS.contains(&kind)
}

/// All that one service of a resolved model (`top`) asks for.
pub(super) fn demands(name: &str, service: &Value, top: &Value, site: Site<'_>) -> Vec<Demand> {
    let mut asks = Asks { name, service, top, site, all: Vec::new() };
    asks.privileged();
    asks.namespaces();
    asks.devices();
    asks.confinement();
    asks.volumes();
    asks.files();
    asks.images();
    asks.all
}

struct Asks<'m> {
    name: &'m str,
    service: &'m Value,
    top: &'m Value,
    site: Site<'m>,
    all: Vec<Demand>,
}

impl<'m> Asks<'m> {
    /// A demand by a key of the service.
    fn own(&mut self, rule: Rule, key: &str, what: impl Into<String>) {
        self.add(rule, format!("services.{}.{key}", self.name), what, None);
    }

    fn add(&mut self, rule: Rule, key: String, what: impl Into<String>, path: Option<String>) {
        self.all.push(Demand { rule, service: self.name.to_owned(), key, what: what.into(), path });
    }

    fn value(&self, key: &str) -> Option<&'m Value> {
        self.service.get(key).filter(|value| !value.is_null())
    }

    fn list(&self, key: &str) -> impl Iterator<Item = (usize, &'m Value)> + use<'m> {
        items(self.service.get(key)).iter().enumerate()
    }

    fn privileged(&mut self) {
        if let Some(what) = self.value("privileged").and_then(switched_on) {
            self.own(Rule::Privileged, "privileged", what);
        }
        // `post_start`, `pre_stop`, and whatever other list of commands Compose may come to know.
        for (key, value) in entries(Some(self.service)) {
            for (index, hook) in items(Some(value)).iter().enumerate() {
                if let Some(what) = hook.get("privileged").and_then(switched_on) {
                    self.own(Rule::Privileged, &format!("{key}[{index}].privileged"), what);
                }
            }
        }
    }

    fn namespaces(&mut self) {
        for key in ["network_mode", "pid", "ipc", "uts", "userns_mode", "cgroup"] {
            let Some(value) = self.value(key) else { continue };
            let what = match value.as_str() {
                Some("host") => "is host: that of the box".to_owned(),
                Some(text) if text.starts_with("service:") => continue,
                Some(text) if text.starts_with("container:") => {
                    format!("is {}: a container that need not be of this project; write service:NAME", shown(text))
                }
                Some(text) if has_variable(text) => format!("is {}: {BY_VARIABLE}", shown(text)),
                Some(_) => continue,
                None => format!("is {}", shown(&value.to_string())),
            };
            self.own(Rule::HostNamespaces, key, what);
        }
        if let Some(given) = self.value("cgroup_parent").map(plain).filter(|given| !given.is_empty()) {
            self.own(Rule::HostNamespaces, "cgroup_parent", format!("{}, a control group of the box", is(&given)));
        }
        // The engine's network `host` is the box's, however it is come by. None named, by whatever kind of nothing, is
        // the default one (tried on 2.26.1 and 2.40.3).
        let mut used: Vec<&str> = match self.service.get("networks") {
            Some(Value::Object(map)) => map.keys().map(String::as_str).collect(),
            networks => items(networks).iter().filter_map(Value::as_str).collect(),
        };
        if used.is_empty() && self.value("network_mode").is_none() {
            used.push("default");
        }
        for network in used {
            let definition = self.top.get("networks").and_then(|all| all.get(network));
            let real = definition.and_then(|definition| text(definition, "name")).unwrap_or(network);
            let driver = definition.and_then(|definition| text(definition, "driver")).unwrap_or_default();
            if !USUAL_NETWORKS.contains(&driver) {
                let what =
                    format!("{}: what such a driver reaches of the box and around it, nobody can tell", is(driver));
                self.add(Rule::HostNamespaces, format!("networks.{network}.driver"), what, None);
            }
            let what = if has_variable(real) {
                format!("is {}: {BY_VARIABLE}", shown(real))
            } else if real == "host" || real.starts_with("container:") {
                format!("is {real}: that of the box")
            } else {
                continue;
            };
            self.add(Rule::HostNamespaces, format!("networks.{network}.name"), what, None);
        }
    }

    fn devices(&mut self) {
        for key in ["devices", "device_cgroup_rules", "gpus"] {
            if let Some(value) = self.value(key).filter(|value| !value.is_array()) {
                self.own(Rule::Devices, key, format!("is {}", shown(&plain(value))));
            }
            for (index, item) in self.list(key) {
                let what = text(item, "source").map_or_else(|| plain(item), str::to_owned);
                self.own(Rule::Devices, &format!("{key}[{index}]"), format!("is {}", shown(&what)));
            }
        }
        let reserved = self.service.pointer("/deploy/resources/reservations/devices");
        for (index, item) in items(reserved).iter().enumerate() {
            let key = format!("deploy.resources.reservations.devices[{index}]");
            self.own(Rule::Devices, &key, format!("is {}", shown(&plain(item))));
        }
    }

    fn confinement(&mut self) {
        for (index, item) in self.list("cap_add") {
            let given = plain(item);
            let upper = given.trim().to_ascii_uppercase();
            let capability = upper.strip_prefix("CAP_").unwrap_or(&upper);
            if !USUAL_CAPABILITIES.contains(&capability) {
                self.own(Rule::Capabilities, &format!("cap_add[{index}]"), is(&given));
            }
        }
        for (index, item) in self.list("security_opt") {
            let given = plain(item);
            // Docker takes both `key:value` and `key=value`.
            if !USUAL_SECURITY.contains(&given.replacen(':', "=", 1).as_str()) {
                self.own(Rule::SecurityOpt, &format!("security_opt[{index}]"), is(&given));
            }
        }
        if let Some(value) = self.value("credential_spec") {
            self.own(Rule::SecurityOpt, "credential_spec", format!("is {}", shown(&plain(value))));
        }
        let annotated = entries(self.service.get("annotations")).map(|(key, _)| key.clone());
        let listed = items(self.service.get("annotations")).iter().map(plain);
        for given in annotated.chain(listed) {
            let what = format!("has {}: what a runtime makes of it, nobody can tell", shown(&given));
            self.own(Rule::Runtime, "annotations", what);
        }
        if let Some(value) = self.value("runtime") {
            let given = plain(value);
            if !USUAL_RUNTIMES.contains(&given.as_str()) {
                self.own(Rule::Runtime, "runtime", is(&given));
            }
        }
    }

    fn volumes(&mut self) {
        if let Some(what) = self.value("use_api_socket").and_then(switched_on) {
            self.own(Rule::DockerSocket, "use_api_socket", what);
        }
        for (index, volume) in self.list("volumes") {
            let key = format!("services.{}.volumes[{index}]", self.name);
            let (kind, source) = (text(volume, "type").unwrap_or("bind"), text(volume, "source"));
            // `${X}:/data` and `${X}` become binds once the variable is a path, though Compose calls them volumes here.
            let decided = source.or_else(|| text(volume, "target")).unwrap_or_default();
            match (kind, source) {
                ("tmpfs", _) => {}
                (kind, _) if has_variable(kind) => self.unknown(key, decided),
                ("volume" | "cluster", _) if has_variable(decided) => self.unknown(key, decided),
                ("volume" | "cluster", Some(source)) => self.named_volume(source),
                ("image", Some(image)) => self.image(key, image),
                (_, Some(source)) => {
                    let read_only = volume.get("read_only") == Some(&Value::Bool(true));
                    if !read_only && matches!(self.site.see(source, false), Seen::OfTheBundle) {
                        // The engine follows links: what is written there may lead it anywhere at the next start.
                        let what = format!(
                            "mounts {} of the bundle, writable: a link put there leads anywhere",
                            shown(source)
                        );
                        self.add(Rule::Binds, key.clone(), what, None);
                    }
                    self.source(key, source, false);
                }
                (_, None) => {}
            }
        }
        for (index, item) in self.list("volumes_from") {
            let given = plain(item);
            let what = if given.starts_with("container:") {
                format!("is {}: whatever a container outside of this project mounts", shown(&given))
            } else if has_variable(&given) {
                is(&given)
            } else {
                continue;
            };
            self.own(Rule::DockerSocket, &format!("volumes_from[{index}]"), what.clone());
            self.own(Rule::Binds, &format!("volumes_from[{index}]"), what);
        }
    }

    /// A volume with a name. With the local driver's options it can be any mount that the box can make.
    fn named_volume(&mut self, name: &str) {
        let Some(volume) = self.top.get("volumes").and_then(|all| all.get(name)) else { return };
        let key = |last: &str| format!("volumes.{name}.{last}");
        let driver = text(volume, "driver").unwrap_or_default();
        if !matches!(driver, "" | "local") {
            let what = format!("is {}: where such a driver keeps data, nobody can tell", shown(driver));
            return self.add(Rule::Binds, key("driver"), what, None);
        }
        let option = |wanted: &str| {
            let mut found = entries(volume.get("driver_opts")).filter(|(key, _)| key.eq_ignore_ascii_case(wanted));
            found.next().map(|(_, value)| plain(value)).unwrap_or_default()
        };
        let (kind, options, device) = (option("type"), option("o"), option("device"));
        let is_plain = kind.is_empty() && device.is_empty();
        let key = key("driver_opts");
        if let Some(given) = [&options, &kind, &device].into_iter().find(|text| has_variable(text)) {
            self.unknown(key, given);
        } else if options.split(',').any(|o| matches!(o.trim(), "bind" | "rbind")) {
            self.source(key, &device, true);
        } else if !is_plain && !is_remote(&kind) {
            let what =
                format!("mounts {} as {}: what that shows of the box, nobody can tell", shown(&device), shown(&kind));
            self.add(Rule::Binds, key.clone(), what.clone(), None);
            if below(&clean(&device), "/dev").is_some() {
                self.add(Rule::Devices, key, what, None);
            }
        }
    }

    /// What Compose or the engine reads or mounts for this service besides volumes.
    fn files(&mut self) {
        for kind in ["configs", "secrets"] {
            for (_, used) in self.list(kind) {
                let Some(source) = used.as_str().or_else(|| text(used, "source")) else { continue };
                // If a variable says which, it can be each.
                let may_be = |name: &str| name == source || has_variable(source);
                for (name, definition) in entries(self.top.get(kind)).filter(|(name, _)| may_be(name)) {
                    if let Some(file) = text(definition, "file") {
                        self.source(format!("{kind}.{name}.file"), file, false);
                    }
                }
            }
        }
        for kind in ["env_file", "label_file"] {
            let single = self.service.get(kind).filter(|value| value.is_string());
            for (index, file) in single.into_iter().chain(items(self.service.get(kind))).enumerate() {
                let Some(path) = file.as_str().or_else(|| text(file, "path")) else { continue };
                let key = format!("services.{}.{kind}[{index}]", self.name);
                match self.site.see(path, true) {
                    Seen::OfTheBundle => {}
                    Seen::Unknown(why) => self.add(Rule::Binds, key, format!("reads {}: {why}", shown(path)), None),
                    Seen::OfTheBox(clean) => {
                        self.add(Rule::Binds, key, format!("reads {} of the box", shown(path)), Some(clean));
                    }
                }
            }
        }
    }

    fn images(&mut self) {
        if let Some(image) = self.value("image").map(plain) {
            self.image(format!("services.{}.image", self.name), &image);
        }
    }

    fn image(&mut self, key: String, image: &str) {
        if !has_digest(image) {
            let why = if has_variable(image) { format!(", and {BY_VARIABLE}") } else { String::new() };
            self.add(Rule::Images, key, format!("is {}, without a digest{why}", shown(image)), None);
        }
    }

    /// A variable says what is mounted: it may be the socket, and it may be anything else.
    fn unknown(&mut self, key: String, given: &str) {
        let what = format!("mounts {}: {BY_VARIABLE}", shown(self.site.written(given)));
        self.add(Rule::DockerSocket, key.clone(), what.clone(), None);
        self.add(Rule::Binds, key, what, None);
    }

    /// Something is mounted. `as_it_is`: whoever mounts it does not take `..` out of the path before, as Docker does.
    fn source(&mut self, key: String, source: &str, as_it_is: bool) {
        let path = match self.site.see(source, as_it_is) {
            Seen::OfTheBundle => return,
            Seen::Unknown(why) => {
                let what = format!("mounts {}: {why}", shown(self.site.written(source)));
                self.add(Rule::DockerSocket, key.clone(), what.clone(), None);
                return self.add(Rule::Binds, key, what, None);
            }
            Seen::OfTheBox(path) => path,
        };
        let sockets = self.site.sockets();
        if sockets.contains(&path) {
            // The one rule that speaks of just this decides.
            let what = format!("mounts {}: whoever may write to it owns the box", shown(source));
            return self.add(Rule::DockerSocket, key, what, None);
        }
        let socket = sockets.iter().find(|socket| below(socket, &path).is_some());
        let own = below(self.site.state, &path).map(|_| "the agent's own credentials (its state directory)");
        let held: Vec<&str> = socket.map(String::as_str).into_iter().chain(own).collect();
        if !held.is_empty() {
            let what = format!("mounts {}, which holds {}", shown(source), held.join(" and "));
            self.add(Rule::DockerSocket, key.clone(), what, None);
        }
        if own.is_some() {
            let what = format!("mounts {} of the box, which holds the agent's state directory", shown(source));
            return self.add(Rule::Binds, key, what, None);
        }
        self.add(Rule::Binds, key, format!("mounts {} of the box", shown(source)), Some(path));
    }
}

/// What a path of a compose file is about.
enum Seen {
    OfTheBundle,
    OfTheBox(String),
    Unknown(&'static str),
}

impl Site<'_> {
    /// A source as it stands in the file: in front of `${X}/y` Compose writes the project's folder.
    fn written<'t>(&self, source: &'t str) -> &'t str {
        below(source, self.project).filter(|rest| rest.starts_with('$')).unwrap_or(source)
    }

    fn see(&self, source: &str, as_it_is: bool) -> Seen {
        if has_variable(source) {
            return Seen::Unknown(BY_VARIABLE);
        }
        let source = source.replace("$$", "$");
        let path = clean(&source);
        let climbs = source.split('/').any(|part| part == "..");
        if !source.starts_with('/') {
            Seen::Unknown("it is no absolute path, so nobody can tell where it is")
        } else if below(&path, self.project).is_some() {
            Seen::OfTheBundle
        } else if climbs && as_it_is {
            Seen::Unknown("what `..` leads to depends on links of the box, so nobody can tell where it is")
        } else if below(&path, "/proc").is_some_and(|rest| rest.contains('/')) || below(&path, "/dev/fd").is_some() {
            // /proc/1/root is the whole box, by another name.
            Seen::Unknown("it leads through a process of the box, so nobody can tell where it is")
        } else {
            Seen::OfTheBox(path)
        }
    }

    /// The sockets, each by both names of its folder: `/var/run` is a link to `/run` nearly everywhere.
    fn sockets(&self) -> Vec<String> {
        let engine = self.engine.strip_prefix("unix://").map(clean).unwrap_or_default();
        let all = SOCKETS.iter().map(|socket| (*socket).to_owned()).chain([engine]).filter(|socket| !socket.is_empty());
        all.flat_map(|socket| {
            let other = match (below(&socket, "/var/run"), below(&socket, "/run")) {
                (Some(rest), _) => Some(format!("/run/{rest}")),
                (None, Some(rest)) => Some(format!("/var/run/{rest}")),
                (None, None) => None,
            };
            other.into_iter().chain([socket])
        })
        .collect()
    }
}

/// Whether the content of an image is fixed, whatever the variables before the digest are.
fn has_digest(image: &str) -> bool {
    let hex = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let fixed = |algorithm: &str, len: usize| {
        let digest = image.rsplit_once(algorithm).map_or("", |(_, digest)| digest);
        digest.len() == len && hex(digest)
    };
    fixed("@sha256:", 64) || fixed("@sha512:", 128)
}

/// What to say of a switch that is not shown to be off. Compose takes words for it too.
fn switched_on(value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::Bool(false) => None,
        Value::String(word) if matches!(word.to_ascii_lowercase().as_str(), "false" | "no" | "off" | "n") => None,
        other => Some(is(&plain(other))),
    }
}

fn is(given: &str) -> String {
    if has_variable(given) { format!("is {}: {BY_VARIABLE}", shown(given)) } else { format!("is {}", shown(given)) }
}

/// A value as it stands in a compose file, in one line.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A value for people: short, and with nothing in it that a terminal would obey.
fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(100).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SITE: Site<'static> = Site { project: "/state/releases/r", state: "/state", engine: "" };

    fn of(service: Value) -> Vec<Demand> {
        of_top(service, json!({}))
    }

    fn of_top(service: Value, top: Value) -> Vec<Demand> {
        demands("web", &service, &top, SITE)
    }

    fn keys(demands: &[Demand]) -> Vec<String> {
        demands.iter().map(|demand| format!("{} {}", demand.rule.as_str(), demand.key)).collect()
    }

    fn rules_of_bind(source: &str) -> Vec<Rule> {
        of(json!({"volumes": [{"type": "bind", "source": source, "target": "/t"}]})).iter().map(|d| d.rule).collect()
    }

    fn refuses(rules: &[Rule], roots: &[&str]) -> Policy {
        Policy {
            rules: rules.iter().map(|rule| (*rule, Stance::Refuse)).collect(),
            bind_roots: roots.iter().map(|root| (*root).to_owned()).collect(),
        }
    }

    #[test]
    fn nothing_refuses_until_the_owner_says_so() {
        for rule in Rule::ALL {
            assert_ne!(rule.usual(), Stance::Refuse, "{rule:?}");
        }
        for word in Stance::WORDS {
            assert_eq!(serde_json::to_value(Stance::of(word)).unwrap(), json!(word));
        }
        assert_eq!(Stance::of("forbid"), None);
    }

    #[test]
    fn a_switch_is_off_only_if_it_says_so() {
        for off in [json!(null), json!(false), json!("false"), json!("No"), json!("off"), json!("n")] {
            assert_eq!(of(json!({"privileged": off})), [], "{off}");
        }
        for on in [
            json!(true),
            json!("true"),
            json!("Yes"),
            json!("on"),
            json!("y"),
            json!("${X:-false}"),
            json!("1"),
            json!(1),
        ] {
            assert_eq!(keys(&of(json!({"privileged": on}))), ["privileged services.web.privileged"], "{on}");
        }
        let hooks =
            json!({"post_start": [{}, {"privileged": true}], "later": [{"privileged": "${X}"}, {"privileged": false}]});
        let mut found = keys(&of(hooks));
        found.sort();
        assert_eq!(
            found,
            ["privileged services.web.later[0].privileged", "privileged services.web.post_start[1].privileged"]
        );
    }

    #[test]
    fn namespaces_of_services_of_the_project_are_fine() {
        for fine in ["service:db", "service:${X}", "none", "bridge", "some-network", "private", "shareable", ""] {
            assert_eq!(of(json!({"network_mode": fine, "pid": fine, "ipc": fine})), [], "{fine}");
        }
        for not in ["host", "container:x", "${X}", "h${X}", "container:${X}"] {
            assert_eq!(of(json!({"network_mode": "none", "cgroup": not})).len(), 1, "{not}");
        }
    }

    #[test]
    fn the_network_of_the_box_is_seen_by_its_real_name() {
        let top = |name: &str| json!({"networks": {"n": {"name": name, "external": true}, "default": {"name": name}}});
        for service in [json!({"networks": {"n": null}}), json!({"networks": ["n"]}), json!({})] {
            assert_eq!(of_top(service.clone(), top("host")).len(), 1, "{service}");
            assert_eq!(of_top(service.clone(), top("${N}")).len(), 1, "{service}");
            assert_eq!(of_top(service.clone(), top("hosts")), [], "{service}");
        }
        assert_eq!(of_top(json!({"networks": {"${N}": null}}), top("x")).len(), 1);
        assert_eq!(of_top(json!({"network_mode": "none"}), top("host")), []);
    }

    #[test]
    fn no_network_named_is_the_default_one_by_whatever_kind_of_nothing() {
        let top = json!({"networks": {"default": {"name": "host", "external": true}}});
        for nothing in [json!({}), json!([]), json!(null)] {
            let found = of_top(json!({"networks": nothing}), top.clone());
            assert_eq!(keys(&found), ["host_namespaces networks.default.name"], "{nothing}");
        }
        assert_eq!(of_top(json!({"networks": {}, "network_mode": "none"}), top), []);
    }

    #[test]
    fn a_network_of_a_driver_that_reaches_around_the_box_is_a_demand() {
        let of_driver = |driver: &str| {
            let top = json!({"networks": {"n": {"driver": driver}, "unused": {"driver": "macvlan"}}});
            of_top(json!({"networks": ["n"]}), top).len()
        };
        assert_eq!(["", "bridge", "overlay"].map(of_driver), [0, 0, 0]);
        assert_eq!(["macvlan", "ipvlan", "host", "${D}", "vendor/x"].map(of_driver), [1, 1, 1, 1, 1]);
    }

    #[test]
    fn what_else_of_a_service_is_about_the_box_is_a_demand() {
        for (service, key) in [
            (json!({"cgroup_parent": "/system.slice"}), "host_namespaces services.web.cgroup_parent"),
            (json!({"credential_spec": {"file": "x"}}), "security_opt services.web.credential_spec"),
            (json!({"annotations": {"a": "b"}}), "runtime services.web.annotations"),
            (json!({"annotations": ["a=b"]}), "runtime services.web.annotations"),
            (json!({"use_api_socket": true}), "docker_socket services.web.use_api_socket"),
        ] {
            assert_eq!(keys(&of(service)), [key]);
        }
        let nothing = json!({"cgroup_parent": "", "credential_spec": null, "annotations": {}, "use_api_socket": false});
        assert_eq!(of(nothing), []);
    }

    #[test]
    fn a_folder_above_the_state_directory_is_told_with_what_is_in_it() {
        let site = Site { state: "/var/lib/agent", ..SITE };
        let bind = |source: &str| {
            let service = json!({"volumes": [{"type": "bind", "source": source, "target": "/t"}]});
            demands("web", &service, &json!({}), site)
        };
        let usual = |source: &str| Policy::default().judge(&bind(source));
        assert_eq!(
            usual("/var/lib").warnings,
            [
                "services.web.volumes[0] mounts \"/var/lib\", which holds the agent's own credentials (its state directory) (policy.docker_socket)"
            ]
        );
        let [whole] = &usual("/").warnings[..] else { panic!("{:?}", usual("/")) };
        assert!(whole.contains("docker.sock and the agent's own credentials"), "{whole}");
        assert_eq!((usual("/").refusal, usual("/var/libs").warnings), (None, Vec::new()));
        let all = refuses(&[Rule::Binds], &["/"]);
        assert!(all.judge(&bind("/var/lib")).refusal.is_some());
        assert_eq!(all.judge(&bind("/var/libs")).refusal, None);
    }

    #[test]
    fn what_variables_decide_is_one_line_a_service() {
        let bind = |source: &str| json!({"type": "bind", "source": source, "target": "/t"});
        let service = json!({"volumes": [bind("${DATA}"), bind("/x/${LOGS}"), bind("/etc")]});
        let of_two = [of(service.clone()), demands("db", &service, &json!({}), SITE)].concat();
        let usual = Policy::default().judge(&of_two).warnings;
        let line = |service: &str, rules: &str| {
            format!(
                "services.{service}.volumes[0] mounts \"${{DATA}}\", services.{service}.volumes[1] mounts \"/x/${{LOGS}}\": {BY_VARIABLE} ({rules})"
            )
        };
        assert_eq!(usual, ["db", "web"].map(|service| line(service, "policy.docker_socket")));
        let both = Policy { rules: BTreeMap::from([(Rule::Binds, Stance::Warn)]), ..Policy::default() };
        let warned = both.judge(&of(service)).warnings;
        assert_eq!(warned.len(), 2, "{warned:?}");
        assert_eq!(warned[0], line("web", "policy.docker_socket, policy.binds"));
        let many: Vec<Value> = (0..30_000).map(|n| bind(&format!("${{X{n}}}"))).collect();
        let [one] = &Policy::default().judge(&of(json!({ "volumes": many }))).warnings[..] else { panic!() };
        assert!(one.contains(" and 29990 more: "), "{one}");
    }

    #[test]
    fn capabilities_that_every_container_has_may_be_added_after_all_were_dropped() {
        let added = |capability: &str| of(json!({"cap_add": [capability]})).len();
        for usual in ["CHOWN", "cap_chown", "CAP_NET_BIND_SERVICE"] {
            assert_eq!(added(usual), 0, "{usual}");
        }
        for more in ["ALL", "SYS_ADMIN", "cap_net_admin", "CAP_${X}", "CHOWN${X}"] {
            assert_eq!(added(more), 1, "{more}");
        }
    }

    #[test]
    fn the_socket_is_seen_by_each_of_its_names_and_in_its_folders() {
        for socket in
            ["/var/run/docker.sock", "/run/docker.sock", "//run/./x/../docker.sock/", "/run/podman/podman.sock"]
        {
            assert_eq!(rules_of_bind(socket), [Rule::DockerSocket], "{socket}");
        }
        for folder in [
            "/",
            "/run",
            "/var",
            "/var/run/",
            "/srv/..",
            "/run/containerd",
            "/proc/1/root",
            "/proc/self/cwd/run",
            "/dev/fd/3",
        ] {
            assert_eq!(rules_of_bind(folder), [Rule::DockerSocket, Rule::Binds], "{folder}");
        }
        for other in ["/run/docker.sock2", "/runs", "/srv", "/proc", "/proc/cpuinfo", "/dev"] {
            assert_eq!(rules_of_bind(other), [Rule::Binds], "{other}");
        }
        let own = |source: &str| {
            let site = Site { engine: "unix:///srv/e/d.sock", ..SITE };
            let service = json!({"volumes": [{"type": "bind", "source": source, "target": "/t"}]});
            demands("web", &service, &json!({}), site).iter().map(|d| d.rule).collect::<Vec<_>>()
        };
        assert_eq!(own("/srv/e/d.sock"), [Rule::DockerSocket]);
        assert_eq!(own("/srv/e"), [Rule::DockerSocket, Rule::Binds]);
        assert_eq!(own("/srv/f"), [Rule::Binds]);
        let site = Site { engine: "tcp://10.0.0.1:2376", ..SITE };
        assert_eq!(site.sockets(), SITE.sockets());
    }

    #[test]
    fn a_bind_within_a_root_is_fine_whatever_the_rule_says() {
        let policy = refuses(&[Rule::Binds, Rule::DockerSocket], &["/srv", "/mnt/data"]);
        let refused = |source: &str| {
            let service = json!({"volumes": [{"type": "bind", "source": source, "target": "/t"}]});
            policy.judge(&of(service)).refusal.is_some()
        };
        for fine in ["/srv", "/srv/app/./x/", "/srv/a/../b", "/mnt/data/x"] {
            assert!(!refused(fine), "{fine}");
        }
        // Of the bundle, read-only: the engine follows a link that a container put where it may write.
        let bundled = |read_only: Value| {
            let bind =
                json!({"type": "bind", "source": "/state/releases/r/conf", "target": "/t", "read_only": read_only});
            policy.judge(&of(json!({"volumes": [bind]}))).refusal.is_some()
        };
        assert_eq!([json!(true), json!(false), json!(null), json!("${X}")].map(bundled), [false, true, true, true]);
        for not in ["/srvs", "/srv/../etc", "/mnt", "/mnt/datas", "/srv/${X}", "/", "/etc", "~/x", "", "srv"] {
            assert!(refused(not), "{not}");
        }
        // Everything is within the root of all, but for what nobody can tell and what holds the agent's own files.
        let all = refuses(&[Rule::Binds], &["/"]);
        let bind = |source: &str| of(json!({"volumes": [{"type": "bind", "source": source, "target": "/t"}]}));
        assert_eq!(all.judge(&bind("/etc")), Judgement::default());
        assert!(all.judge(&bind("/")).refusal.is_some() && all.judge(&bind("/${X}")).refusal.is_some());
    }

    #[test]
    fn what_a_variable_says_of_a_mount_counts_as_the_worst_of_it() {
        for volume in [
            json!({"type": "volume", "source": "${X}", "target": "/t"}),
            json!({"type": "volume", "target": "${X}"}),
            json!({"type": "${X}", "source": "/srv", "target": "/t"}),
            json!({"type": "bind", "source": "/srv/${X}", "target": "/t"}),
            json!({"type": "bind", "source": "/state/releases/r/conf/${X}", "target": "/t"}),
        ] {
            let rules: Vec<Rule> = of(json!({"volumes": [volume]})).iter().map(|d| d.rule).collect();
            assert_eq!(rules, [Rule::DockerSocket, Rule::Binds], "{volume}");
        }
        // `$$` is no variable.
        assert_eq!(rules_of_bind("/srv/$$x"), [Rule::Binds]);
    }

    #[test]
    fn a_named_volume_is_what_the_local_driver_makes_of_it() {
        let volume = |definition: Value| {
            let service = json!({"volumes": [{"type": "volume", "source": "v", "target": "/t"}]});
            of_top(service, json!({"volumes": {"v": definition, "unused": {"driver": "x"}}}))
        };
        for fine in [
            json!(null),
            json!({}),
            json!({"external": true, "name": "x"}),
            json!({"driver": "local", "driver_opts": {"size": "1"}}),
            json!({"driver_opts": {"type": "nfs", "o": "addr=${HOST}x".replace("${HOST}", ""), "device": ":/x"}}),
            json!({"driver_opts": {"type": "tmpfs", "device": "tmpfs"}}),
        ] {
            assert_eq!(volume(fine.clone()), [], "{fine}");
        }
        let path = |definition: Value| volume(definition).first().and_then(|demand| demand.path.clone());
        let bind = |device: &str| json!({"driver_opts": {"type": "none", "O": "ro, bind", "device": device}});
        assert_eq!(path(bind("/srv/x")).as_deref(), Some("/srv/x"));
        assert_eq!(path(bind("/srv/a/../x")), None);
        assert_eq!(volume(bind("/run/docker.sock"))[0].rule, Rule::DockerSocket);
        for (definition, rules) in [
            (json!({"driver_opts": {"type": "ext4", "device": "/dev/sda1"}}), vec![Rule::Binds, Rule::Devices]),
            (json!({"driver_opts": {"type": "proc", "device": "proc"}}), vec![Rule::Binds]),
            (json!({"driver_opts": {"type": "overlay", "device": "o", "o": "lowerdir=/etc"}}), vec![Rule::Binds]),
            (json!({"driver_opts": {"type": "tmpfs", "o": "bind", "device": "/etc"}}), vec![Rule::Binds]),
            (
                json!({"driver_opts": {"type": "none", "o": "${O}", "device": "/srv"}}),
                vec![Rule::DockerSocket, Rule::Binds],
            ),
            (json!({"driver": "${D}"}), vec![Rule::Binds]),
            (json!({"driver": "vendor/x"}), vec![Rule::Binds]),
        ] {
            let found: Vec<Rule> = volume(definition.clone()).iter().map(|demand| demand.rule).collect();
            assert_eq!(found, rules, "{definition}");
        }
    }

    #[test]
    fn an_image_is_fixed_by_a_digest_and_nothing_else() {
        let hex = "0123456789abcdef".repeat(4);
        for fixed in [format!("a@sha256:{hex}"), format!("${{R}}/a:1@sha256:{hex}"), format!("a@sha512:{hex}{hex}")] {
            assert_eq!(of(json!({"image": fixed})), [], "{fixed}");
        }
        let open = ["a", "a:1", "${I}", "a@sha256:${D}"].map(str::to_owned);
        let odd =
            [format!("${{X:-a@sha256:{hex}}}"), format!("a@sha256:{}", &hex[1..]), format!("a@sha256:{}G", &hex[1..])];
        for image in open.into_iter().chain(odd) {
            assert_eq!(keys(&of(json!({"image": image}))), ["images services.web.image"], "{image}");
        }
    }

    #[test]
    fn files_that_compose_reads_count_as_binds() {
        let files = json!({"env_file": [{"path": "/etc/x", "required": true}, "/state/releases/r/.env"], "label_file": "/srv/y"});
        let found = of(files);
        assert_eq!(keys(&found), ["binds services.web.env_file[0]", "binds services.web.label_file[0]"]);
        assert_eq!(found[1].path.as_deref(), Some("/srv/y"));
        let top = json!({"secrets": {"a": {"file": "/etc/a"}, "b": {"environment": "B"}, "c": {"file": "/etc/c"}}});
        assert_eq!(keys(&of_top(json!({"secrets": [{"source": "c"}]}), top.clone())), ["binds secrets.c.file"]);
        assert_eq!(of_top(json!({"secrets": ["${S}"]}), top).len(), 2);
    }

    #[test]
    fn everything_refused_is_named_and_what_has_no_room_is_in_the_journal() {
        let policy = refuses(&[Rule::Privileged, Rule::Capabilities], &[]);
        let few = policy.judge(&of(json!({"privileged": true, "cap_add": ["ALL"], "devices": ["/dev/kvm"]})));
        assert_eq!(
            few.refusal.unwrap().detail,
            "services.web.privileged is \"true\" (policy.privileged); services.web.cap_add[0] is \"ALL\" (policy.capabilities)"
        );
        assert_eq!(few.warnings, ["services.web.devices[0] is \"/dev/kvm\" (policy.devices)"]);
        let many = policy.judge(&of(json!({"privileged": true, "cap_add": vec!["ALL"; 40]})));
        let detail = many.refusal.unwrap().detail;
        assert!(detail.chars().count() < ROOM + 60 && detail.contains(" more, which the journal names"), "{detail}");
        assert_eq!(many.warnings.len(), 41);
        let long = "x".repeat(1000);
        let hidden = demands(&long, &json!({"privileged": true}), &json!({}), SITE);
        let named = policy.judge(&[hidden, of(json!({"privileged": true}))].concat()).refusal.unwrap().detail;
        assert!(named.contains("services.web.privileged") && named.contains("and 1 more"), "{named}");
        let flood = policy.judge(&of(json!({"cap_add": vec!["ALL"; 40_000]})));
        assert_eq!(flood.warnings.len(), MAX_WARNINGS + 1);
        assert!(flood.warnings[MAX_WARNINGS].contains("39900 more"), "{}", flood.warnings[MAX_WARNINGS]);
    }

    #[test]
    fn a_value_is_shown_short_and_without_what_a_terminal_obeys() {
        let long = of(json!({"runtime": format!("\u{1b}[2J{}", "x".repeat(5000))}));
        assert!(long[0].what.len() < 130 && !long[0].what.contains('\u{1b}'), "{}", long[0].what);
    }

    #[test]
    fn a_policy_of_an_older_recording_is_the_usual_one() {
        assert_eq!(serde_json::from_str::<Policy>("{}").unwrap(), Policy::default());
        assert_eq!(Policy::default().stance(Rule::Binds), Stance::Allow);
    }
}
