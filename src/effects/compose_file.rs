//! What a compose file may never ask for, seen in the file itself, before Compose is called at all: Compose would
//! fetch a remote `include` or `extends` while it only reads the file.
//!
//! Invariant: a bundle that passes makes Compose read no compose file but the bundle's own, and build nothing. The
//! work is bounded ([`MAX_NODES`]) whatever aliases the YAML holds.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, VariantAccess as _, Visitor,
};

use super::bundle::{Bundle, COMPOSE};
use super::failure::{Code, Refusal};
use super::model::has_variable;

/// How many values all compose files of a bundle may have, aliases filled in; one more for each 64 bytes of text.
pub const MAX_NODES: usize = 200_000;
/// How many `[` and `{` a compose file may have.
pub const MAX_BRACKETS: usize = 10_000;

/// Checks `compose.yaml` and every file of the bundle that it includes or extends.
///
/// # Errors
/// `COMPOSE_REFUSED` for a remote `include` or `extends`, `build:`, or a path that leaves the bundle (also the
/// `env_file` of an `include`);
/// `COMPOSE_INVALID` if a file is no YAML mapping.
pub fn check(bundle: &Bundle) -> Result<(), Refusal> {
    Check::of(bundle).all()
}

/// Every path of the bundle that Compose itself reads (`env_file` and `label_file` of a service too), the agent's own two
/// files included; some may not be there.
pub fn deciding(bundle: &Bundle) -> BTreeSet<String> {
    let mut check = Check::of(bundle);
    // A bundle that is refused here was refused before; so far as it was read, this is what was read.
    let _ = check.all();
    let own = [COMPOSE, ".env", ".monky-deployd.yaml"].map(str::to_owned);
    check.parsed.into_keys().chain(check.more).chain(own).collect()
}

/// Which part of a file is used.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Whole,
    Service(String),
}

struct Check<'b> {
    bundle: &'b Bundle,
    budget: Cell<usize>,
    /// The documents of a file, so that each is read (and paid for) once.
    parsed: BTreeMap<String, Rc<Vec<Node>>>,
    /// What is to be checked: file, folder that its paths are relative to, part.
    todo: Vec<(String, String, Part)>,
    /// What was, or is about to be, so that a circle ends.
    seen: BTreeSet<(String, String, Part)>,
    /// What else Compose reads: files of variables and of labels.
    more: BTreeSet<String>,
}

impl<'b> Check<'b> {
    fn of(bundle: &'b Bundle) -> Check<'b> {
        Check {
            bundle,
            budget: Cell::new(MAX_NODES),
            parsed: BTreeMap::new(),
            todo: Vec::new(),
            seen: BTreeSet::new(),
            more: BTreeSet::new(),
        }
    }

    fn all(&mut self) -> Result<(), Refusal> {
        self.file(COMPOSE, "", Part::Whole);
        // No recursion: one service can extend the next many thousand times.
        while let Some((path, base, part)) = self.todo.pop() {
            for document in self.documents(&path)?.iter() {
                self.document(&path, &base, document, &part)?;
            }
        }
        Ok(())
    }

    /// Has a file checked, whose relative paths are meant from the folder `base`.
    fn file(&mut self, path: &str, base: &str, part: Part) {
        let one = (path.to_owned(), base.to_owned(), part);
        if self.seen.insert(one.clone()) {
            self.todo.push(one);
        }
    }

    /// The documents of a file; Compose merges them.
    fn documents(&mut self, path: &str) -> Result<Rc<Vec<Node>>, Refusal> {
        if let Some(documents) = self.parsed.get(path) {
            return Ok(Rc::clone(documents));
        }
        let content = self.bundle.get(path).ok_or_else(|| invalid(path, "is not in the bundle"))?;
        affordable(content).map_err(|why| refused(path, why))?;
        let mut documents = Vec::new();
        for document in serde_yaml::Deserializer::from_slice(content) {
            match Seed(&self.budget).deserialize(document) {
                Ok(Node::Null) => {}
                Ok(map @ Node::Map(_)) => documents.push(map),
                Ok(_) => return Err(invalid(path, "is not a mapping")),
                Err(e) if self.budget.get() == 0 || e.to_string().contains("limit exceeded") => {
                    return Err(refused(path, "is too large once its aliases are filled in"));
                }
                Err(e) => return Err(invalid(path, e)),
            }
        }
        if documents.is_empty() {
            return Err(invalid(path, "is empty"));
        }
        let documents = Rc::new(documents);
        self.parsed.insert(path.to_owned(), Rc::clone(&documents));
        Ok(documents)
    }

    fn document(&mut self, path: &str, base: &str, top: &Node, part: &Part) -> Result<(), Refusal> {
        if let (Part::Whole, Some(include)) = (part, top.get("include")) {
            for item in include.items() {
                self.include(path, base, item)?;
            }
        }
        let services = top.get("services");
        let used: Vec<(&str, &Node)> = match part {
            Part::Whole => services.map(Node::entries).unwrap_or_default(),
            Part::Service(name) => {
                services.and_then(|all| all.get(name)).map(|it| (name.as_str(), it)).into_iter().collect()
            }
        };
        for (name, service) in used {
            self.service(path, base, name, service, part)?;
        }
        if *part != Part::Whole {
            // All that Compose takes of such a file.
            return Ok(());
        }
        for kind in ["configs", "secrets"] {
            for (name, definition) in top.get(kind).map(Node::entries).unwrap_or_default() {
                let file = definition.get("file").and_then(Node::text);
                stays_within(base, file).map_err(|why| refused(path, format!("{kind} {name:?} {why}")))?;
            }
        }
        for (name, volume) in top.get("volumes").map(Node::entries).unwrap_or_default() {
            for (_, given) in volume.get("driver_opts").map(Node::entries).unwrap_or_default() {
                not_eaten(given.text().unwrap_or_default())
                    .map_err(|why| refused(path, format!("volume {name:?} {why}")))?;
            }
        }
        Ok(())
    }

    /// `include: [PATH | {path: PATH | [PATH], project_directory: PATH}]`
    fn include(&mut self, path: &str, base: &str, item: &Node) -> Result<(), Refusal> {
        let paths = item.get("path").unwrap_or(item);
        let mut own_base = match item.get("project_directory").and_then(Node::text) {
            None => None,
            Some(folder) => {
                let folder = within(base, folder).ok_or_else(|| {
                    refused(path, format!("`include` with project_directory {folder:?} leaves the bundle"))
                })?;
                Some(folder)
            }
        };
        for given in item.get("env_file").map(Node::items).unwrap_or_default() {
            let given = given.text().ok_or_else(|| invalid(path, "has an `include` whose env_file is no path"))?;
            if given != "/dev/null" {
                let file = within(base, given).ok_or_else(|| {
                    refused(path, format!("`include` with env_file {:?} leaves the bundle", shown(given)))
                })?;
                self.more.insert(file);
            }
        }
        for given in paths.items() {
            let given = given.text().ok_or_else(|| invalid(path, "has an `include` that is no path"))?;
            let file = self.local(path, base, "`include`", given)?;
            // The first file's folder is what Compose takes the others' paths from, too.
            let own_base = own_base.get_or_insert_with(|| folder_of(&file).to_owned()).clone();
            self.more.insert(format!("{own_base}/.env").trim_start_matches('/').to_owned());
            self.file(&file, &own_base, Part::Whole);
        }
        Ok(())
    }

    fn service(&mut self, path: &str, base: &str, name: &str, service: &Node, of: &Part) -> Result<(), Refusal> {
        if service.get("build").is_some_and(|build| !build.is_null()) {
            let what =
                format!("service {name:?} has `build`: a box only pulls; build the image, push it, name it in `image`");
            return Err(refused(path, what));
        }
        if let Some(extends) = service.get("extends") {
            let part = match extends.text().or_else(|| extends.get("service").and_then(Node::text)) {
                Some(other) => Part::Service(other.to_owned()),
                None => Part::Whole,
            };
            match extends.get("file").and_then(Node::text) {
                Some(given) => {
                    let file = self.local(path, base, &format!("service {name:?}: `extends`"), given)?;
                    let own_base = folder_of(&file).to_owned();
                    self.file(&file, &own_base, part);
                }
                // Of a file of which only one service is looked at, this is another one.
                None if *of != Part::Whole => self.file(path, base, part),
                None => {}
            }
        }
        let whose = |why: String| refused(path, format!("service {name:?} {why}"));
        for volume in service.get("volumes").map(Node::items).unwrap_or_default() {
            match volume.text() {
                // Where its source ends, a variable may decide.
                Some(short) if has_variable(short) => not_eaten(short),
                Some(short) => stays_within(base, short.split(':').next()),
                None => {
                    let kind = volume.get("type").and_then(Node::text).unwrap_or_default();
                    let source = volume.get("source").and_then(Node::text);
                    let no_path = !matches!(kind, "" | "bind") && !has_variable(kind);
                    not_eaten(source.unwrap_or_default()).and_then(|()| stays_within(base, source.filter(|_| !no_path)))
                }
            }
            .map_err(whose)?;
        }
        for kind in ["env_file", "label_file"] {
            for file in service.get(kind).map(Node::items).unwrap_or_default() {
                let Some(given) = file.text().or_else(|| file.get("path").and_then(Node::text)) else { continue };
                // Which file it becomes, no later look tells: only what is in it.
                if has_variable(given) {
                    let why = "a variable decides which file that is: name the file itself";
                    return Err(whose(format!("has {kind} {given:?}: {why}")));
                }
                stays_within(base, Some(given)).map_err(|why| whose(format!("({kind}) {why}")))?;
                self.more.extend(within(base, given));
            }
        }
        Ok(())
    }

    /// The bundle's file that a path means.
    fn local(&self, path: &str, base: &str, who: &str, given: &str) -> Result<String, Refusal> {
        match within(base, given).filter(|file| self.bundle.get(file).is_some()) {
            Some(file) => Ok(file),
            None if looks_remote(given) => {
                Err(refused(path, format!("{who} of {:?} is remote: only files of the bundle are read", shown(given))))
            }
            None => Err(refused(path, format!("{who} of {:?} is not in the bundle", shown(given)))),
        }
    }
}

/// Refuses what the YAML parser would need minutes for: its time grows with the square of how deep brackets nest.
/// Counting all of them is crude and cannot be tricked with quotes.
fn affordable(content: &[u8]) -> Result<(), String> {
    let open = |b: &&u8| matches!(b, b'[' | b'{');
    if content.iter().filter(open).count() <= MAX_BRACKETS {
        return Ok(());
    }
    Err(format!("has more than {MAX_BRACKETS} opening brackets: put large contents into files of their own"))
}

fn refused(file: &str, what: impl fmt::Display) -> Refusal {
    Refusal::new(Code::ComposeRefused, format!("{file}: {what}"))
}

fn invalid(file: &str, what: impl fmt::Display) -> Refusal {
    Refusal::new(Code::ComposeInvalid, format!("{file}: {what}"))
}

/// An address without what may be secret in it.
fn shown(given: &str) -> String {
    super::words::without_credentials(given)
}

fn looks_remote(given: &str) -> bool {
    given.contains("://") || given.starts_with("git@") || given.starts_with("github.com/") || given.contains(".git")
}

/// Refuses a source that climbs out of the bundle: once Compose has resolved it, it does not tell any more that it was
/// relative, and what it means changes when the release is promoted. Everything else is checked in `model`.
fn stays_within(base: &str, source: Option<&str>) -> Result<(), String> {
    not_eaten(source.unwrap_or_default())?;
    match source.filter(|source| is_relative(source) && !source.contains('$')) {
        Some(source) if within(base, source).is_none() => {
            Err(format!("uses {source:?}, which leaves the bundle: use an absolute path or a named volume"))
        }
        _ => Ok(()),
    }
}

/// Refuses a path with a variable and a `..`: Compose cleans paths before it fills variables in, so the `..` takes away
/// what is in front of it, be it half of a variable (`${X:-a/../b}` is told as `b}`), and what it leads to nobody sees.
fn not_eaten(path: &str) -> Result<(), String> {
    let climbs = || path.split(['/', ':', ',', '=', ' ']).any(|part| part == "..");
    if !path.contains('$') || !climbs() {
        return Ok(());
    }
    Err(format!("has {path:?}, a path with a variable and with `..`: write it without `..`"))
}

/// Compose's own rule for a short volume: anything else than `.`, `/` or `~` in front is the name of a volume. In the
/// long form everything is a path; a name without a dot cannot leave anything.
fn is_relative(source: &str) -> bool {
    source.starts_with('.') || source.contains("../") || source.ends_with("/..")
}

fn folder_of(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Where a relative path leads from a folder of the bundle; none if it leads out, or is not relative.
fn within(base: &str, path: &str) -> Option<String> {
    if path.starts_with(['/', '~']) || path.contains(['\\', '$']) {
        return None;
    }
    let mut parts: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// YAML, as far as it matters here: scalars are text, tags are told from values only where a tag removes them.
enum Node {
    Null,
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// The value of a key, also one that a merge (`<<`) brings in.
    fn get(&self, key: &str) -> Option<&Node> {
        let Node::Map(map) = self else { return None };
        let own = map.iter().find(|(k, _)| k == key).map(|(_, value)| value);
        own.or_else(|| self.merged().into_iter().find_map(|other| other.get(key)))
    }

    /// The entries of a mapping, also those that a merge brings in.
    fn entries(&self) -> Vec<(&str, &Node)> {
        let Node::Map(map) = self else { return Vec::new() };
        let own = map.iter().map(|(key, value)| (key.as_str(), value)).filter(|(key, _)| *key != "<<");
        own.chain(self.merged().into_iter().flat_map(Node::entries)).collect()
    }

    fn merged(&self) -> Vec<&Node> {
        let Node::Map(map) = self else { return Vec::new() };
        map.iter().filter(|(key, _)| key == "<<").flat_map(|(_, value)| value.items()).collect()
    }

    /// The items of a list, or the one thing that stands in its place.
    fn items(&self) -> Vec<&Node> {
        match self {
            Node::Null => Vec::new(),
            Node::List(list) => list.iter().collect(),
            other => vec![other],
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    fn is_null(&self) -> bool {
        matches!(self, Node::Null)
    }
}

/// Builds a [`Node`] and pays for it.
#[derive(Clone, Copy)]
struct Seed<'b>(&'b Cell<usize>);

impl Seed<'_> {
    fn pay<E: serde::de::Error>(self, bytes: usize) -> Result<(), E> {
        let left = self.0.get().saturating_sub(1 + bytes / 64);
        self.0.set(left);
        if left == 0 { Err(E::custom("too large")) } else { Ok(()) }
    }

    fn scalar<E: serde::de::Error>(self, value: impl fmt::Display) -> Result<Node, E> {
        let text = value.to_string();
        self.pay(text.len())?;
        Ok(Node::Text(text))
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<Node, D::Error> {
        de.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_bool<E: serde::de::Error>(self, v: bool) -> Result<Node, E> {
        self.scalar(v)
    }

    fn visit_i64<E: serde::de::Error>(self, v: i64) -> Result<Node, E> {
        self.scalar(v)
    }

    fn visit_u64<E: serde::de::Error>(self, v: u64) -> Result<Node, E> {
        self.scalar(v)
    }

    fn visit_i128<E: serde::de::Error>(self, v: i128) -> Result<Node, E> {
        self.scalar(v)
    }

    fn visit_u128<E: serde::de::Error>(self, v: u128) -> Result<Node, E> {
        self.scalar(v)
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Node, E> {
        self.scalar(v)
    }

    fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<Node, E> {
        self.pay(v.len())?;
        Ok(Node::Text(v.to_owned()))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Node, E> {
        self.pay(0)?;
        Ok(Node::Null)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Node, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, de: D) -> Result<Node, D::Error> {
        de.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        self.pay(0)?;
        let mut list = Vec::new();
        while let Some(item) = seq.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        self.pay(0)?;
        let mut entries: Vec<(String, Node)> = Vec::new();
        let mut keys = BTreeSet::new();
        while let Some(key) = map.next_key_seed(self)? {
            let Node::Text(key) = key else { return Err(A::Error::custom("a key that is no text")) };
            if key != "<<" && !keys.insert(key.clone()) {
                return Err(A::Error::custom(format_args!("the key {key:?} is there twice in one mapping")));
            }
            entries.push((key, map.next_value_seed(self)?));
        }
        Ok(Node::Map(entries))
    }

    /// A value with a tag. `!reset` is Compose's word for "as if it were not there"; others change nothing here.
    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Node, A::Error> {
        let (tag, value) = data.variant_seed(self)?;
        let node = value.newtype_variant_seed(self)?;
        Ok(if tag.text().is_some_and(|tag| tag.trim_start_matches('!') == "reset") { Node::Null } else { node })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(files: &[(&str, &str)]) -> Bundle {
        let files: BTreeMap<&str, &str> = files.iter().copied().collect();
        Bundle::read(serde_json::json!({ "files": files }).to_string().as_bytes()).unwrap()
    }

    fn checked(files: &[(&str, &str)]) -> Result<(), Refusal> {
        check(&bundle(files))
    }

    fn refusal(files: &[(&str, &str)]) -> String {
        let refusal = checked(files).unwrap_err();
        assert_eq!(refusal.code, Code::ComposeRefused, "{refusal}");
        refusal.detail
    }

    fn main(text: &str) -> String {
        refusal(&[("compose.yaml", text)])
    }

    #[test]
    fn an_ordinary_file_passes() {
        let text = "x-a: &a {image: i, deploy: {replicas: 1, x: 1.5}}\nservices:\n  a: *a\n  b:\n    <<: *a\n    build: null\n    volumes: ['./conf:/c', 'data:/d', '/x:/x', '../*.x']\nvolumes: {data: }\n";
        checked(&[("compose.yaml", &text.replace(", '../*.x'", ""))]).unwrap();
    }

    #[test]
    fn build_is_refused_by_service_however_it_gets_there() {
        for text in [
            "services: {web: {build: .}}",
            "services: {web: {build: {context: x}}}",
            "x-a: &a {build: .}\nservices: {web: {<<: *a, image: i}}",
            "x-a: &a {build: .}\nx-b: &b {<<: *a}\nservices: {web: {<<: [{image: i}, *b]}}",
            "x-s: &s {web: {build: .}}\nservices: {<<: *s}",
            "services: {web: {image: i}}\n---\nservices: {web: {build: .}}",
            "services: {web: !override {build: .}}",
        ] {
            let detail = main(text);
            assert!(detail.contains("\"web\"") && detail.contains("build"), "{text}: {detail}");
        }
        checked(&[("compose.yaml", "services: {web: {build: !reset null, image: i}}")]).unwrap();
        checked(&[("compose.yaml", "services: {web: {build: !reset {context: x}, image: i}}")]).unwrap();
    }

    #[test]
    fn a_remote_include_or_extends_is_refused_without_its_credentials() {
        for remote in [
            "https://u:hidden@example.com/x.git?hidden",
            "git@github.com:a/b.git",
            "oci://example.com/x:1",
            "github.com/a/b",
            "ssh://git@example.com/x",
            "http://example.com/compose.yaml",
            "git://example.com/x",
        ] {
            for text in [
                format!("include: ['{remote}']"),
                format!("include: '{remote}'"),
                format!("include: [{{path: '{remote}'}}]"),
                format!("include: [{{path: [local.yaml, '{remote}']}}]"),
                format!("services: {{web: {{extends: {{file: '{remote}', service: a}}}}}}"),
            ] {
                let detail = refusal(&[("compose.yaml", &text), ("local.yaml", "services: {}")]);
                assert!(detail.contains("remote") && !detail.contains("hidden"), "{text}: {detail}");
            }
        }
    }

    #[test]
    fn an_include_of_anything_but_a_bundle_file_is_refused() {
        for given in ["/etc/x.yaml", "../x.yaml", "./missing.yaml", "${X}.yaml", "~/x.yaml", "conf/../../conf/x.yaml"] {
            let detail = refusal(&[("compose.yaml", &format!("include: ['{given}']")), ("conf/x.yaml", "a: 1")]);
            assert!(detail.contains("not in the bundle"), "{given}: {detail}");
        }
        checked(&[("compose.yaml", "include: [./conf/../conf/x.yaml]"), ("conf/x.yaml", "services: {}")]).unwrap();
    }

    #[test]
    fn the_variables_of_what_is_included_come_from_the_bundle() {
        let of = |env_file: &str| {
            let text = format!("include: [{{path: a.yaml, env_file: {env_file}}}]");
            checked(&[("compose.yaml", &text), ("a.yaml", "services: {}"), ("conf/a.env", "A=1")])
        };
        for fine in ["conf/a.env", "[./conf/a.env, .env]", "/dev/null"] {
            assert_eq!(of(fine), Ok(()), "{fine}");
        }
        for out in ["/var/lib/monky-deployd/token.json", "[conf/a.env, ../../token.json]", "'${X}'", "~/x"] {
            assert!(of(out).unwrap_err().detail.contains("leaves the bundle"), "{out}");
        }
    }

    #[test]
    fn what_decides_is_every_file_that_compose_reads() {
        let files = [
            (
                "compose.yaml",
                "include: [{path: sub/a.yaml, env_file: v.env}]\nservices: {w: {extends: {file: e.yaml, service: x}, env_file: s.env}}",
            ),
            ("sub/a.yaml", "services: {y: {label_file: [./labels, /etc/labels]}}"),
            ("e.yaml", "services: {x: {image: i}}"),
            ("v.env", ""),
            ("s.env", ""),
            ("other.yaml", ""),
        ];
        let found: Vec<String> = deciding(&bundle(&files)).into_iter().collect();
        let expected = [
            ".env",
            ".monky-deployd.yaml",
            "compose.yaml",
            "e.yaml",
            "s.env",
            "sub/.env",
            "sub/a.yaml",
            "sub/labels",
            "v.env",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn included_and_extended_files_are_checked_from_their_own_folder() {
        let files = |sub: &'static str| {
            [("compose.yaml", "include: [sub/a.yaml]"), ("sub/a.yaml", "include: [b.yaml]"), ("sub/b.yaml", sub)]
        };
        assert!(refusal(&files("services: {x: {build: .}}")).starts_with("sub/b.yaml"));
        assert!(refusal(&files("services: {x: {extends: {file: ../c.yaml, service: y}}}")).contains("c.yaml"));
        checked(&files("services: {x: {image: i, volumes: ['../conf:/c']}}")).unwrap();
        assert!(refusal(&files("services: {x: {image: i, volumes: ['../../conf:/c']}}")).contains("leaves"));
        let base = "services: {x: {image: i}, dev: {build: .}}";
        let of = |service| format!("services: {{web: {{extends: {{file: base.yaml, service: {service}}}}}}}");
        checked(&[("compose.yaml", &of("x")), ("base.yaml", base)]).unwrap();
        assert!(refusal(&[("compose.yaml", &of("dev")), ("base.yaml", base)]).contains("dev"));
    }

    #[test]
    fn a_circle_of_includes_ends() {
        checked(&[
            ("compose.yaml", "include: [a.yaml]\nservices: {x: {extends: {file: compose.yaml, service: x}}}"),
            ("a.yaml", "include: [compose.yaml, a.yaml]"),
        ])
        .unwrap();
    }

    #[test]
    fn a_bind_that_climbs_out_is_refused() {
        for volume in [
            "../data:/d",
            "./../data:/d",
            "./a/../../b:/d:ro",
            "{type: bind, source: ../x, target: /d}",
            "..:/d",
            "{type: '${K:-bind}', source: ../x, target: /d}",
            "{source: ../x, target: /d}",
        ] {
            let volume = if volume.starts_with('{') { volume.to_owned() } else { format!("'{volume}'") };
            let detail = main(&format!("services: {{web: {{image: i, volumes: [{volume}]}}}}"));
            assert!(detail.contains("\"web\"") && detail.contains("leaves the bundle"), "{detail}");
        }
        assert!(main("services: {}\nsecrets: {key: {file: ../../key}}").contains("\"key\""));
    }

    #[test]
    fn a_path_with_a_variable_and_a_climb_is_refused_wherever_it_stands() {
        let eaten = "${X:-a/../b}";
        for service in [
            format!("volumes: [{{type: bind, source: '{eaten}', target: /u}}]"),
            format!("volumes: [{{type: '${{K:-bind}}', source: './{eaten}', target: /u}}]"),
            format!("volumes: ['{eaten}:/u']"),
            "volumes: ['./${X:-y}/..:/u']".to_owned(),
            "volumes: ['./a$$b/../../c:/u']".to_owned(),
        ] {
            let detail = main(&format!("services: {{web: {{image: i, {service}}}}}"));
            assert!(detail.contains("\"web\"") && detail.contains("write it without `..`"), "{service}: {detail}");
        }
        for kind in ["configs", "secrets"] {
            let detail = main(&format!("services: {{}}\n{kind}: {{key: {{file: '{eaten}'}}}}"));
            assert!(detail.contains("\"key\"") && detail.contains("without `..`"), "{detail}");
        }
        for option in ["device", "o"] {
            let detail =
                main(&format!("services: {{}}\nvolumes: {{v: {{driver_opts: {{{option}: 'lowerdir={eaten}'}}}}}}"));
            assert!(detail.contains("\"v\"") && detail.contains("without `..`"), "{detail}");
        }
        for fine in ["${X:-../b}", "${X:-./conf}:/c:ro", "${X}/a..b:/c", "${A:-x:y}:/c"] {
            checked(&[("compose.yaml", &format!("services: {{web: {{image: i, volumes: ['{fine}']}}}}"))]).unwrap();
        }
    }

    #[test]
    fn a_file_that_compose_reads_for_a_service_is_named_itself_and_stays_within() {
        for kind in ["env_file", "label_file"] {
            let of = |given: &str| main(&format!("services: {{web: {{image: i, {kind}: {given}}}}}"));
            for climbs in ["../x", "[a, ../../x]", "[{path: a/../../x, required: false}]"] {
                assert!(of(climbs).contains("leaves the bundle"), "{climbs}");
            }
            for variable in ["'${X}'", "'a/${X:-b}.env'", "[{path: $X, required: false}]", "'${X:-a/../b}'"] {
                assert!(of(variable).contains("name the file itself"), "{variable}");
            }
            for fine in ["a/../b", "[./a, /etc/x]", "{path: a$$b}"] {
                checked(&[("compose.yaml", &format!("services: {{web: {{image: i, {kind}: {fine}}}}}"))]).unwrap();
            }
        }
    }

    #[test]
    fn what_is_extended_by_what_is_extended_is_looked_at_too() {
        let files = |base: &'static str| {
            [("compose.yaml", "services: {web: {extends: {file: b.yaml, service: x}}}"), ("b.yaml", base)]
        };
        for base in [
            "services: {x: {extends: {service: y}}, y: {extends: z}, z: {volumes: ['${X:-a/../b}:/u']}}",
            "services: {x: {extends: y}, y: {volumes: ['${X:-a/../b}:/u']}}",
        ] {
            assert!(refusal(&files(base)).contains("without `..`"), "{base}");
        }
        checked(&files("services: {x: {extends: y}, y: {extends: x}, z: {volumes: ['../x:/u']}}")).unwrap();
        // However many there are.
        let chain: String = (0..20_000).map(|n| format!("  s{n}:\n    extends: s{}\n", n + 1)).collect();
        let text = |last: &str| format!("services:\n  x: {{extends: s0}}\n{chain}  s20000:\n    {last}\n");
        checked(&[files("")[0], ("b.yaml", &text("image: i"))]).unwrap();
        assert!(refusal(&[files("")[0], ("b.yaml", &text("build: ."))]).contains("s20000"));
    }

    #[test]
    fn what_is_no_mapping_is_invalid() {
        for text in
            ["", "# nothing", "null", "[]", "x", "a: [", "a: 1\na: 2", "{[a]: 1}", "a: b: c", "\u{1}", "&a [*b]"]
        {
            assert_eq!(checked(&[("compose.yaml", text)]).unwrap_err().code, Code::ComposeInvalid, "{text:?}");
        }
    }

    #[test]
    fn a_bomb_is_refused_at_once() {
        let laughs = (1..30).fold("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned(), |text, i| {
            text + &format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(","))
        });
        let merges = (1..40).fold("a0: &a0 {k: 1}\n".to_owned(), |text, i| {
            text + &format!("a{i}: &a{i} {{<<: [*a{0}, *a{0}]}}\n", i - 1)
        });
        let wide = format!("a: &a [{}]\nb: [{}]\n", "1,".repeat(10_000), "*a,".repeat(10_000));
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(500_000), "*a,".repeat(10_000));
        let circle = "a: &a [*a, *a]\n".to_owned();
        let dashes = "- ".repeat(50_000);
        let brackets = format!("a: {}", "[".repeat(1_000_000));
        let masked = format!("a: {}", "['] ',".repeat(MAX_BRACKETS + 1));
        for bomb in [laughs, merges, wide, long, circle, dashes, brackets, masked] {
            let refusal = checked(&[("compose.yaml", &bomb)]).unwrap_err();
            assert_eq!(refusal.code, Code::ComposeRefused, "{bomb:.40}: {refusal}");
        }
    }
}
