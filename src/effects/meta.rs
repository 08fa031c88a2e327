//! `meta.json`: what a bundle says of itself.
//!
//! Invariant: what [`Meta::parse`] gives obeys the format; unknown keys are ignored.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::failure::{Code, Refusal};
use super::{OnUnhealthy, strict_json};

/// What a bundle says of itself; unknown keys are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// The environment it was rendered for.
    pub env_id: String,
    /// Counts up with every rendering.
    #[serde(default)]
    pub generation: Option<i64>,
    /// When it was rendered, for people.
    #[serde(default)]
    pub rendered_at: Option<String>,
    /// What it asks of the agent.
    #[serde(default)]
    pub agent: AgentAsks,
}

/// What a bundle asks of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAsks {
    /// It may replace a newer one.
    #[serde(default)]
    pub allow_rollback: bool,
    /// The oldest agent that may deploy it, e.g. `0.1.7`.
    #[serde(default)]
    pub min_version: Option<String>,
    /// Overrides the configuration.
    #[serde(default)]
    pub on_unhealthy: Option<OnUnhealthy>,
    /// Overrides the configuration (seconds, ≥ 1).
    #[serde(default)]
    pub healthy_timeout_s: Option<u64>,
}

/// The longest wait that a bundle may ask for (seconds), the same as in the configuration.
pub const LONGEST_S: u64 = 86_400;

impl Meta {
    /// Reads a `meta.json`. A key that is `null` counts as absent.
    ///
    /// # Errors
    /// `BUNDLE_INVALID`, with the name of the field.
    pub fn parse(json: &[u8]) -> Result<Meta, Refusal> {
        let top = match strict_json::parse(json) {
            Ok(Value::Object(top)) => top,
            Ok(other) => return Err(refused(format!("it is {}, not an object", strict_json::type_of(&other)))),
            Err(e) => return Err(refused(format!("it is not JSON: {e}"))),
        };
        let env_id = text(&top, "", "env_id")?.filter(|env_id| !env_id.is_empty());
        let none = Map::new();
        let agent = match present(&top, "agent") {
            None => &none,
            Some(Value::Object(agent)) => agent,
            Some(other) => return Err(wrong("", "agent", "an object", other)),
        };
        Ok(Meta {
            env_id: env_id.ok_or_else(|| refused("env_id is missing or empty"))?,
            generation: integer(&top, "", "generation", Value::as_i64)?,
            rendered_at: text(&top, "", "rendered_at")?,
            agent: AgentAsks {
                allow_rollback: match present(agent, "allow_rollback") {
                    None => false,
                    Some(Value::Bool(allow)) => *allow,
                    Some(other) => return Err(wrong("agent.", "allow_rollback", "true or false", other)),
                },
                min_version: text(agent, "agent.", "min_version")?
                    .map(|min| version_at_least("0", &min).map(|_| min))
                    .transpose()?,
                on_unhealthy: match text(agent, "agent.", "on_unhealthy")?.as_deref() {
                    None => None,
                    Some("keep") => Some(OnUnhealthy::Keep),
                    Some("rollback") => Some(OnUnhealthy::Rollback),
                    Some(other) => {
                        return Err(refused(format!("agent.on_unhealthy is {other:?}, not \"keep\" or \"rollback\"")));
                    }
                },
                healthy_timeout_s: match integer(agent, "agent.", "healthy_timeout_s", Value::as_u64)? {
                    Some(0) => return Err(refused("agent.healthy_timeout_s is 0; the least is 1 (second)")),
                    Some(s) if s > LONGEST_S => {
                        return Err(refused(format!(
                            "agent.healthy_timeout_s is {s}; the most is {LONGEST_S} (a day)"
                        )));
                    }
                    other => other,
                },
            },
        })
    }
}

fn refused(detail: impl std::fmt::Display) -> Refusal {
    Refusal::new(Code::BundleInvalid, format!("meta.json: {detail}"))
}

fn wrong(within: &str, key: &str, wanted: &str, found: &Value) -> Refusal {
    refused(format!("{within}{key} is {}, not {wanted}", strict_json::type_of(found)))
}

fn present<'v>(map: &'v Map<String, Value>, key: &str) -> Option<&'v Value> {
    map.get(key).filter(|value| !value.is_null())
}

fn text(map: &Map<String, Value>, within: &str, key: &str) -> Result<Option<String>, Refusal> {
    match present(map, key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(wrong(within, key, "a string", other)),
    }
}

fn integer<N>(
    map: &Map<String, Value>,
    within: &str,
    key: &str,
    read: impl Fn(&Value) -> Option<N>,
) -> Result<Option<N>, Refusal> {
    match present(map, key) {
        None => Ok(None),
        Some(value @ Value::Number(number)) => read(value)
            .map(Some)
            .ok_or_else(|| refused(format!("{within}{key} is {number}, not a whole number in range"))),
        Some(other) => Err(wrong(within, key, "a whole number", other)),
    }
}

/// Whether version `have` is `min` or newer. Versions are dotted numbers; missing parts are 0, and whatever stands
/// after a `-` or `+` does not count.
///
/// # Errors
/// `BUNDLE_INVALID` if one of them is no version.
pub fn version_at_least(have: &str, min: &str) -> Result<bool, Refusal> {
    // Trailing zeros go, so that lists of different lengths compare as versions do.
    let parts = |version: &str| -> Option<Vec<u64>> {
        let numbers = version.split(['-', '+']).next()?;
        let mut parts = numbers
            .split('.')
            .map(|part| part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok()).flatten())
            .collect::<Option<Vec<u64>>>()?;
        while parts.last() == Some(&0) {
            parts.pop();
        }
        Some(parts)
    };
    let read = |version: &str| {
        parts(version).ok_or_else(|| refused(format!("agent.min_version: {version:?} is no version such as 0.2.0")))
    };
    Ok(read(have)? >= read(min)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_env_id_is_optional_and_unknown_keys_are_ignored() {
        let least = Meta::parse(br#"{"env_id":"e","x":{"y":[1]},"agent":{"z":1},"generation":null}"#).unwrap();
        assert_eq!(least, Meta { env_id: "e".into(), ..Meta::default() });
        let all = br#"{"env_id":"e","generation":7,"rendered_at":"2026-01-01T00:00:00Z","agent":{"allow_rollback":true,
            "min_version":"0.1.7","on_unhealthy":"rollback","healthy_timeout_s":1}}"#;
        let all = Meta::parse(all).unwrap();
        assert_eq!(all.generation, Some(7));
        assert_eq!(
            all.agent,
            AgentAsks {
                allow_rollback: true,
                min_version: Some("0.1.7".into()),
                on_unhealthy: Some(OnUnhealthy::Rollback),
                healthy_timeout_s: Some(1),
            }
        );
    }

    #[test]
    fn a_field_of_the_wrong_type_is_refused_by_name() {
        for (json, field) in [
            (r#"[]"#, "object"),
            (r#"{"#, "JSON"),
            (r#"{}"#, "env_id"),
            (r#"{"env_id":""}"#, "env_id"),
            (r#"{"env_id":1}"#, "env_id"),
            (r#"{"env_id":"e","env_id":"f"}"#, "twice"),
            (r#"{"env_id":"e","generation":1.5}"#, "generation"),
            (r#"{"env_id":"e","generation":"1"}"#, "generation"),
            (r#"{"env_id":"e","generation":99999999999999999999}"#, "generation"),
            (r#"{"env_id":"e","rendered_at":1}"#, "rendered_at"),
            (r#"{"env_id":"e","agent":1}"#, "agent"),
            (r#"{"env_id":"e","agent":{"allow_rollback":"yes"}}"#, "agent.allow_rollback"),
            (r#"{"env_id":"e","agent":{"min_version":2}}"#, "agent.min_version"),
            (r#"{"env_id":"e","agent":{"min_version":"new"}}"#, "agent.min_version"),
            (r#"{"env_id":"e","agent":{"on_unhealthy":"stop"}}"#, "agent.on_unhealthy"),
            (r#"{"env_id":"e","agent":{"healthy_timeout_s":0}}"#, "agent.healthy_timeout_s"),
            (r#"{"env_id":"e","agent":{"healthy_timeout_s":86401}}"#, "agent.healthy_timeout_s"),
            (r#"{"env_id":"e","agent":{"healthy_timeout_s":-1}}"#, "agent.healthy_timeout_s"),
        ] {
            let refusal = Meta::parse(json.as_bytes()).unwrap_err();
            assert_eq!(refusal.code, Code::BundleInvalid);
            assert!(refusal.detail.contains(field), "{json}: {refusal}");
        }
    }

    #[test]
    fn versions_compare_by_number() {
        for (have, min, enough) in [
            ("0.2.0", "0.1.7", true),
            ("0.2.0", "0.2.0", true),
            ("0.2.0", "0.2", true),
            ("0.2", "0.2.0.0", true),
            ("0.10.0", "0.9.9", true),
            ("0.2.0", "0.2.1", false),
            ("0.9.9", "1", false),
            ("0.2.0-rc.1", "0.2.0", true),
            ("0.2.0", "0.2.0-rc.1+x.y", true),
        ] {
            assert_eq!(version_at_least(have, min).unwrap(), enough, "{have} {min}");
        }
        for bad in ["", "x", "1.", ".1", "1..2", "v1", "1.x", "1.-2", "+1", "99999999999999999999999", "1 "] {
            assert_eq!(version_at_least("1", bad).unwrap_err().code, Code::BundleInvalid, "{bad}");
        }
    }
}
