//! `manifest.json`: the secrets that a bundle names.
//!
//! Invariant: an [`Entry`] obeys every rule of the format; there is no other way to make a [`Manifest`] than to parse one.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::failure::{Code, Refusal};
use super::{ValueUse, strict_json};

/// A checked manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Its entries, in order.
    pub entries: Vec<Entry>,
}

/// One secret value that the bundle needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What for.
    pub usage: ValueUse,
    /// `<kv_mount>/<env_id>/…`.
    pub path: String,
    /// The field of the secret.
    pub key: String,
    /// The pinned version.
    pub version: Option<u64>,
}

/// Where a bundle's secrets must live: below `<kv_mount>/<env_id>/`.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// `bao.kv_mount`.
    pub kv_mount: &'a str,
    /// This box's environment.
    pub env_id: &'a str,
}

impl Manifest {
    /// Reads a `manifest.json`. Unknown keys are ignored, a key that is `null` counts as absent.
    ///
    /// # Errors
    /// `MANIFEST_INVALID`, or `MANIFEST_PATH` for a path outside of `scope`, with the number and name of the entry.
    pub fn parse(json: &[u8], scope: &Scope<'_>) -> Result<Manifest, Refusal> {
        let top = strict_json::parse(json).map_err(|e| invalid(format!("it is not JSON: {e}")))?;
        let Some(Value::Array(list)) = top.get("entries") else {
            return Err(invalid("it is not an object with a list \"entries\""));
        };
        let mut manifest = Manifest::default();
        let mut uses = BTreeSet::new();
        for (index, item) in list.iter().enumerate() {
            let Value::Object(item) = item else {
                return Err(invalid(format!("entries[{index}] is {}, not an object", strict_json::type_of(item))));
            };
            let named = |code, what: String| {
                let name = item.get("var").and_then(Value::as_str).map(|var| format!(" ({var:?})")).unwrap_or_default();
                Refusal::new(code, format!("manifest.json: entries[{index}]{name}: {what}"))
            };
            let entry = Entry::parse(item, scope).map_err(|(code, what)| named(code, what))?;
            if !uses.insert(entry.usage.clone()) {
                let twice = match entry.usage {
                    ValueUse::Env(_) => "this var is there twice",
                    ValueUse::RegistryAuth => "there may be only one entry with use \"registry-auth\"",
                };
                return Err(named(Code::ManifestInvalid, twice.to_owned()));
            }
            manifest.entries.push(entry);
        }
        Ok(manifest)
    }

    /// The names of the variables it provides, in order.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|entry| match &entry.usage {
            ValueUse::Env(name) => Some(name.as_str()),
            ValueUse::RegistryAuth => None,
        })
    }
}

impl Entry {
    fn parse(item: &Map<String, Value>, scope: &Scope<'_>) -> Result<Entry, (Code, String)> {
        let bad = |what: String| (Code::ManifestInvalid, what);
        let text = |key: &str| match item.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(other) => Err(bad(format!("{key} is {}, not a string", strict_json::type_of(other)))),
        };
        let usage = match text("use")? {
            Some("registry-auth") => ValueUse::RegistryAuth,
            Some(other) => return Err(bad(format!("use is {other:?}; only \"registry-auth\" is known"))),
            None => {
                let var = text("var")?.ok_or_else(|| bad("var is missing".to_owned()))?;
                variable_name(var).map_err(|e| bad(format!("var {e}")))?;
                ValueUse::Env(var.to_owned())
            }
        };
        let path = text("path")?.ok_or_else(|| bad("path is missing".to_owned()))?;
        in_scope(path, scope).map_err(|e| (Code::ManifestPath, e))?;
        let key = text("key")?.unwrap_or("value");
        if key.is_empty() || key.contains(char::is_control) {
            return Err(bad("key is empty or holds a control character".to_owned()));
        }
        let version = match item.get("version") {
            None | Some(Value::Null) => None,
            Some(value) => match value.as_u64() {
                Some(version) if version >= 1 => Some(version),
                _ => return Err(bad(format!("version is {value}, not a whole number from 1 on"))),
            },
        };
        Ok(Entry { usage, path: path.to_owned(), key: key.to_owned(), version })
    }
}

fn invalid(what: impl std::fmt::Display) -> Refusal {
    Refusal::new(Code::ManifestInvalid, format!("manifest.json: {what}"))
}

fn in_scope(path: &str, scope: &Scope<'_>) -> Result<(), String> {
    let root = format!("{}/{}/", scope.kv_mount, scope.env_id);
    let Some(below) = path.strip_prefix(&root) else {
        let data = path.strip_prefix(scope.kv_mount).is_some_and(|rest| rest.starts_with("/data/"));
        let hint = if data { " (`data/` is not part of it)" } else { "" };
        return Err(format!("path {path:?} is not below {root:?}{hint}"));
    };
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let segment_fits = |s: &str| !matches!(s, "" | "." | "..") && s.bytes().all(allowed);
    if below.split('/').all(segment_fits) {
        Ok(())
    } else {
        Err(format!("path {path:?} has a segment that is not of [A-Za-z0-9._-]+, or is `.` or `..`"))
    }
}

/// The rule for the name of a variable, in a manifest as in `env.template`: `[A-Za-z_][A-Za-z0-9_]*`, and nothing
/// that steers Compose or Docker.
///
/// # Errors
/// What is wrong with it, to be put after what it is.
pub fn variable_name(name: &str) -> Result<(), String> {
    let mut bytes = name.bytes();
    let starts = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if !starts || !bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(format!("{name:?} is not of [A-Za-z_][A-Za-z0-9_]*"));
    }
    if name.starts_with("COMPOSE_") || name.starts_with("DOCKER_") {
        return Err(format!("{name:?} would steer Compose: names with COMPOSE_ or DOCKER_ in front are refused"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(entries: &str) -> Result<Manifest, Refusal> {
        let scope = Scope { kv_mount: "monky", env_id: "env-a" };
        Manifest::parse(format!(r#"{{"entries":[{entries}]}}"#).as_bytes(), &scope)
    }

    fn code(entry: &str) -> Code {
        parse(entry).unwrap_err().code
    }

    #[test]
    fn an_entry_is_read_with_its_defaults() {
        let manifest = parse(
            r#"{"var":"A","path":"monky/env-a/x"},
               {"var":"_b1","path":"monky/env-a/x/y.z-_","key":"k","version":3,"note":"ignored"},
               {"use":"registry-auth","path":"monky/env-a/registry","var":"no name at all"}"#,
        )
        .unwrap();
        let entry =
            |usage, path: &str, key: &str, version| Entry { usage, path: path.into(), key: key.into(), version };
        assert_eq!(
            manifest.entries,
            [
                entry(ValueUse::Env("A".into()), "monky/env-a/x", "value", None),
                entry(ValueUse::Env("_b1".into()), "monky/env-a/x/y.z-_", "k", Some(3)),
                entry(ValueUse::RegistryAuth, "monky/env-a/registry", "value", None),
            ]
        );
        assert_eq!(manifest.variables().collect::<Vec<_>>(), ["A", "_b1"]);
        assert_eq!(parse("").unwrap(), Manifest::default());
    }

    #[test]
    fn a_path_out_of_the_environments_own_is_refused() {
        for path in [
            "",
            "x",
            "monky",
            "monky/",
            "monky/env-a",
            "monky/env-a/",
            "monky/env-b/x",
            "monky/env-ab/x",
            "other/env-a/x",
            "monky/data/env-a/x",
            "/monky/env-a/x",
            "monky/env-a//x",
            "monky/env-a/x/",
            "monky/env-a/../env-b/x",
            "monky/env-a/.",
            "monky/env-a/%2e%2e/x",
            "monky/env-a/a b",
            "monky/env-a/é",
            "monky/env-a/x?version=1",
            "monky/env-a/x#y",
            "monky/env-a/a\\\\b",
            "monky/env-a/a\\nb",
            "MONKY/env-a/x",
        ] {
            assert_eq!(code(&format!(r#"{{"var":"A","path":"{path}"}}"#)), Code::ManifestPath, "{path}");
        }
        assert!(parse(r#"{"var":"A","path":"monky/env-a/..x"}"#).is_ok());
    }

    #[test]
    fn a_variable_that_no_shell_takes_or_that_steers_compose_is_refused() {
        for var in ["", "1A", "A-B", "A B", "A=B", "é", "COMPOSE_FILE", "DOCKER_HOST", "COMPOSE_", "A\\n"] {
            assert_eq!(code(&format!(r#"{{"var":"{var}","path":"monky/env-a/x"}}"#)), Code::ManifestInvalid, "{var}");
        }
        for var in ["COMPOSE", "compose_file", "DOCKERX", "_"] {
            assert!(parse(&format!(r#"{{"var":"{var}","path":"monky/env-a/x"}}"#)).is_ok(), "{var}");
        }
    }

    #[test]
    fn anything_else_malformed_is_refused() {
        for entry in [
            "1",
            r#"{"path":"monky/env-a/x"}"#,
            r#"{"var":"A"}"#,
            r#"{"var":1,"path":"monky/env-a/x"}"#,
            r#"{"var":"A","path":1}"#,
            r#"{"var":"A","path":"monky/env-a/x","key":""}"#,
            r#"{"var":"A","path":"monky/env-a/x","key":"a\tb"}"#,
            r#"{"var":"A","path":"monky/env-a/x","key":1}"#,
            r#"{"var":"A","path":"monky/env-a/x","version":0}"#,
            r#"{"var":"A","path":"monky/env-a/x","version":-1}"#,
            r#"{"var":"A","path":"monky/env-a/x","version":1.5}"#,
            r#"{"var":"A","path":"monky/env-a/x","version":"1"}"#,
            r#"{"var":"A","path":"monky/env-a/x","use":"env"}"#,
            r#"{"var":"A","path":"monky/env-a/x","use":1}"#,
            r#"{"var":"A","path":"monky/env-a/x","var":"B"}"#,
            r#"{"var":"A","path":"monky/env-a/x"},{"var":"A","path":"monky/env-a/y"}"#,
            r#"{"use":"registry-auth","path":"monky/env-a/x"},{"use":"registry-auth","path":"monky/env-a/y"}"#,
        ] {
            assert_eq!(code(entry), Code::ManifestInvalid, "{entry}");
        }
        let scope = Scope { kv_mount: "monky", env_id: "env-a" };
        for json in ["", "[]", "{}", r#"{"entries":{}}"#, r#"{"entries":null}"#] {
            assert_eq!(Manifest::parse(json.as_bytes(), &scope).unwrap_err().code, Code::ManifestInvalid, "{json}");
        }
    }

    #[test]
    fn a_refusal_names_the_entry() {
        let refusal = parse(r#"{"var":"A","path":"monky/env-a/x"},{"var":"B","path":"x"}"#).unwrap_err();
        assert!(refusal.detail.contains("entries[1] (\"B\")"), "{refusal}");
    }
}
