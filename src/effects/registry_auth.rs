//! The registry's pull credential, and the Docker configuration that is made of it.
//!
//! Invariant: neither an error nor Debug tells a part of the value (a reason is a text of this file), and the
//! configuration holds `auths` and nothing else, in the one spelling that Docker reads everywhere.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use zeroize::Zeroizing;

/// The key under which Docker looks for Docker Hub's credential; any other spelling sends none, silently.
const HUB_KEY: &str = "https://index.docker.io/v1/";
/// Docker Hub, as people and image names call it.
pub const HUB: &str = "docker.io";
const HUB_ALIASES: [&str; 6] =
    [HUB, "index.docker.io", "registry-1.docker.io", "registry.docker.io", "registry.hub.docker.com", "hub.docker.com"];

/// A usable credential.
pub struct RegistryAuth {
    registry: String,
    username: String,
    password: Zeroizing<String>,
}

/// Why a value is no credential, without a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub &'static str);

/// The object form; unknown keys are ignored.
#[derive(Deserialize)]
struct Object {
    registry: Option<String>,
    username: Zeroed,
    password: Zeroed,
}

/// A string that is wiped when dropped.
struct Zeroed(Zeroizing<String>);

impl<'de> Deserialize<'de> for Zeroed {
    fn deserialize<D: serde::Deserializer<'de>>(de: D) -> Result<Zeroed, D::Error> {
        String::deserialize(de).map(|text| Zeroed(Zeroizing::new(text)))
    }
}

impl RegistryAuth {
    /// Reads a credential: a JSON object (`registry`?, `username`, `password`) or `username:password`, split at the
    /// first colon. Without a registry of its own it is for `default_registry`.
    ///
    /// # Errors
    /// Why it is not usable.
    pub fn parse(value: &str, default_registry: &str) -> Result<RegistryAuth, Unusable> {
        let value = value.trim_start_matches('\u{feff}').trim();
        let (registry, username, password) = if value.starts_with('{') {
            let object: Object = serde_json::from_str(value).map_err(|_| {
                Unusable("it starts with `{` but is no JSON object with the strings username and password")
            })?;
            (object.registry, object.username.0, object.password.0)
        } else {
            let (username, password) =
                value.split_once(':').ok_or(Unusable("it is neither a JSON object nor username:password"))?;
            (None, Zeroizing::new(username.to_owned()), Zeroizing::new(password.to_owned()))
        };
        let registry = registry.filter(|registry| !registry.trim().is_empty());
        let registry = host(registry.as_deref().unwrap_or(default_registry))?;
        // A registry calls a password with a newline at its end wrong, and files often end with one.
        let password = Zeroizing::new(password.trim_end_matches(['\r', '\n']).to_owned());
        let username = username.trim().to_owned();
        if username.is_empty() {
            return Err(Unusable("its username is empty"));
        }
        if username.contains(':') {
            return Err(Unusable("its username holds a colon, where Docker would split it"));
        }
        if password.is_empty() {
            return Err(Unusable("its password is empty"));
        }
        if username.contains(char::is_control) || password.contains(char::is_control) {
            return Err(Unusable("its username or password holds a control character"));
        }
        Ok(RegistryAuth { registry, username, password })
    }

    /// The registry that it is for: `host[:port]`, Docker Hub as `docker.io`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// As whom. Not a secret, and in the journal when a person looks for the reason of a refused pull.
    pub fn username(&self) -> &str {
        &self.username
    }

    /// The password, for the vault to know what to scrub.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// The whole content of `docker/config.json`.
    pub fn docker_config(&self) -> Zeroizing<String> {
        let key = if self.registry == HUB { HUB_KEY } else { &self.registry };
        // Room at once: growing would leave copies in freed memory.
        let mut pair = Zeroizing::new(String::with_capacity(self.username.len() + 1 + self.password.len()));
        pair.push_str(&self.username);
        pair.push(':');
        pair.push_str(&self.password);
        let mut config = Zeroizing::new(String::with_capacity(64 + key.len() + pair.len() / 3 * 4 + 4));
        // Neither a host nor base64 has a character that JSON would have to escape.
        config.push_str("{\"auths\":{\"");
        config.push_str(key);
        config.push_str("\":{\"auth\":\"");
        STANDARD.encode_string(pair.as_bytes(), &mut config);
        config.push_str("\"}}}");
        config
    }
}

/// The content of `docker/config.json` without a credential.
pub const fn empty_docker_config() -> &'static str {
    "{\"auths\":{}}"
}

impl fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RegistryAuth { registry, username: _, password: _ } = self;
        f.debug_struct("RegistryAuth").field("registry", registry).finish_non_exhaustive()
    }
}

/// `host[:port]` of a registry that may be given as an address; Docker Hub under any of its names as `docker.io`.
///
/// # Errors
/// It is none.
pub fn host(registry: &str) -> Result<String, Unusable> {
    let lower = registry.trim().to_ascii_lowercase();
    let rest = lower.split_once("://").map_or(lower.as_str(), |(_, rest)| rest);
    let host = rest.split('/').next().unwrap_or_default();
    if host.is_empty() || !host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b)) {
        return Err(Unusable("its registry is no host[:port]"));
    }
    Ok(if HUB_ALIASES.contains(&host) { HUB } else { host }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> RegistryAuth {
        RegistryAuth::parse(value, "harbor.example").unwrap()
    }

    fn parts(auth: &RegistryAuth) -> (&str, &str, &str) {
        (auth.registry(), auth.username(), auth.password())
    }

    #[test]
    fn both_forms_are_read() {
        assert_eq!(parts(&parse("robot$x:a:b{}")), ("harbor.example", "robot$x", "a:b{}"));
        assert_eq!(parts(&parse(r#" {"username":"u","password":"a\"b","x":1} "#)), ("harbor.example", "u", "a\"b"));
        let own = r#"{"registry":"r.example:5000","username":"u","password":"p"}"#;
        assert_eq!(parts(&parse(own)), ("r.example:5000", "u", "p"));
    }

    #[test]
    fn a_newline_at_the_end_of_the_password_goes() {
        assert_eq!(parts(&parse("u:p\r\n")), ("harbor.example", "u", "p"));
        assert_eq!(parts(&parse(r#"{"username":"u","password":" p \n"}"#)), ("harbor.example", "u", " p "));
    }

    #[test]
    fn a_registry_is_a_host_however_it_is_written() {
        for (written, host) in [
            ("https://harbor.example/", "harbor.example"),
            ("http://Harbor.Example:8443/v2/", "harbor.example:8443"),
            ("harbor.example/project", "harbor.example"),
            ("docker.io", "docker.io"),
            ("https://index.docker.io/v1/", "docker.io"),
            ("registry-1.docker.io", "docker.io"),
            ("[::1]:5000", "[::1]:5000"),
            ("", "harbor.example"),
        ] {
            let value = serde_json::json!({"registry": written, "username": "u", "password": "p"}).to_string();
            assert_eq!(parse(&value).registry(), host, "{written}");
        }
        for bad in ["https://", "a b", "u:p@host", "a\"b", "h?x"] {
            let value = serde_json::json!({"registry": bad, "username": "u", "password": "p"}).to_string();
            assert!(RegistryAuth::parse(&value, "x").is_err(), "{bad}");
        }
    }

    #[test]
    fn an_unusable_value_is_told_without_a_part_of_it() {
        for value in [
            "",
            "hidden",
            ":hidden",
            "hidden:",
            "hid\nden:x",
            "u:hid\0den",
            "{hidden",
            r#"{"username":"hidden"}"#,
            r#"{"username":"u","password":5}"#,
            r#"{"username":"a:hidden","password":"p"}"#,
            r#"{"username":"","password":"hidden"}"#,
            r#"{"registry":7,"username":"hidden","password":"p"}"#,
            r#"{"username":"u","password":"hid\tden"}"#,
            r#"{"username":"u","password":"\n"}"#,
        ] {
            let why = RegistryAuth::parse(value, "harbor.example").unwrap_err();
            assert!(!format!("{why} {why:?}").contains("hid"), "{value:?}: {why}");
        }
    }

    #[test]
    fn the_configuration_is_auths_only_in_padded_standard_base64() {
        let auth = parse("user:p\u{e9}?>");
        assert_eq!(*auth.docker_config(), r#"{"auths":{"harbor.example":{"auth":"dXNlcjpww6k/Pg=="}}}"#);
        let hub = RegistryAuth::parse("u:p", "index.docker.io").unwrap();
        assert_eq!(*hub.docker_config(), r#"{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"}}}"#);
        for config in [auth.docker_config().as_str(), empty_docker_config()] {
            serde_json::from_str::<serde_json::Value>(config).unwrap();
        }
    }

    #[test]
    fn debug_tells_the_registry_alone() {
        let shown = format!("{:?}", parse("hidden-user:hidden-password"));
        assert!(shown.contains("harbor.example") && !shown.contains("hidden"), "{shown}");
    }
}
