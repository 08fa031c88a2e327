//! The registries of the applied release's images: do they let this box in?
//!
//! Invariant: a credential goes to the registry that it is for, or where that one sends it (as Docker would), over TLS
//! or loopback, and into no text. Nothing is pulled.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::line::Line;
use crate::config::keys::loopback;
use crate::drivers::http::{Answer, Ask, Http, Keep, Repeat, Server};
use crate::drivers::openbao::encoded;
use crate::drivers::transport::Transport;
use crate::drivers::vault::{Slot, Vault};
use crate::effects::registry_auth::{HUB, host};
use crate::effects::state::State;
use crate::effects::{CallFault, Scrub, counted};
use crate::plain;

/// For one call; four of them settle a registry, six at most.
const LIMIT: Duration = Duration::from_secs(4);
/// The kinds of manifest that an image may have: one that is not named is told as not there.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";
/// Bytes of a token service's answer.
const CAP: u64 = 256 << 10;

/// `docker/config.json`, as far as it matters.
#[derive(Default, Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    /// base64 of `user:password`.
    #[serde(default)]
    auth: Zeroizing<String>,
}

/// What a token service gives, under either name.
#[derive(Deserialize)]
struct Given {
    #[serde(default)]
    token: Zeroizing<String>,
    #[serde(default)]
    access_token: Zeroizing<String>,
}

/// What `docker/config.json` tells.
#[derive(Default)]
pub struct Credentials {
    /// By registry, each as the value of `Basic`.
    by_host: BTreeMap<String, Zeroizing<String>>,
    /// It is there, and can be read: so it is what the last deploy wrote.
    written: bool,
}

/// How a registry let us in, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entrance {
    /// It lets in, and would let anybody in.
    Open,
    /// It takes the credential.
    Accepted,
    /// It wants a credential, or another one; with its words.
    Refused(String),
    /// It lets in, and does not show this image.
    Gone(String),
    /// It lets in, and shows this image to others, or at another time; with its words.
    Unshown(String),
    /// There is no telling; with the reason.
    Unreachable(String),
}

/// The credentials in the agent's Docker configuration. The vault learns them, so that no text can hold one.
pub fn credentials(folder: &Path, vault: &Vault) -> Credentials {
    let text = Zeroizing::new(plain::read(&folder.join("config.json"), CAP).unwrap_or_default());
    let config: Option<DockerConfig> = serde_json::from_slice(&text).ok();
    let mut all = Credentials { written: config.is_some(), ..Credentials::default() };
    for (name, Entry { auth }) in config.unwrap_or_default().auths {
        vault.know(&Slot::Registry, &auth);
        if let Ok(pair) = STANDARD.decode(auth.as_bytes()).map(Zeroizing::new)
            && let Some(password) = std::str::from_utf8(&pair).ok().and_then(|pair| Some(pair.split_once(':')?.1))
        {
            vault.know(&Slot::Registry, password);
        }
        if let (Ok(host), false) = (host(&name), auth.is_empty()) {
            all.by_host.insert(host.to_owned(), auth);
        }
    }
    all
}

/// An image at its registry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Image {
    repository: String,
    /// A tag or a digest.
    reference: String,
}

/// The registries of the applied release's images, each with one image; and how many images a variable decides.
fn registries(state: &State) -> (BTreeMap<String, Image>, usize) {
    let (mut found, mut unknown) = (BTreeMap::new(), 0);
    let services = state.applied().map(|applied| applied.services.values()).into_iter().flatten();
    for image in services.filter_map(|service| service.image.as_deref()) {
        match place(image) {
            Some((host, image)) => drop(found.entry(host).or_insert(image)),
            None => unknown += 1,
        }
    }
    (found, unknown)
}

/// The registry of an image, and what it is called there; none if a variable is in its name.
fn place(image: &str) -> Option<(String, Image)> {
    if image.contains('$') {
        return None;
    }
    let (bare, digest) = image.split_once('@').map_or((image, None), |(bare, digest)| (bare, Some(digest)));
    let (bare, tag) = match bare.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (bare, "latest"),
    };
    let (registry, repository) = match bare.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => {
            (host(first).ok()?, rest.to_owned())
        }
        Some(_) => (HUB.to_owned(), bare.to_owned()),
        None => (HUB.to_owned(), format!("library/{bare}")),
    };
    Some((registry, Image { repository, reference: digest.unwrap_or(tag).to_owned() }))
}

/// Asks each of them.
pub fn look(state: &State, credentials: &Credentials, scrub: &dyn Scrub) -> Vec<Line> {
    let fact = "registry";
    let (found, unknown) = registries(state);
    let mut lines: Vec<Line> = found
        .iter()
        .map(|(host, image)| {
            let credential = credentials.by_host.get(host).map(|auth| auth.as_str());
            let has = if credential.is_some() {
                Has::It
            } else if credentials.written {
                Has::Others
            } else {
                Has::NoFile
            };
            judge(host, has, &enter(host, image, credential, scrub))
        })
        .collect();
    if unknown > 0 {
        let why = format!("a variable names the image of {}", counted(unknown, "service"));
        lines.push(Line::unchecked(fact, &why, "nothing: a deploy tells what the registry says"));
    }
    if state.applied().is_none() {
        let what = "nothing is applied yet: no image to ask for is known, so no registry was asked";
        lines.push(Line::ok(fact, what.to_owned()));
    }
    lines
}

/// Where a registry is asked. Docker, too, speaks plain http with this machine only.
fn base(registry: &str) -> String {
    let bare = registry.rsplit_once(':').filter(|(_, port)| port.bytes().all(|digit| digit.is_ascii_digit()));
    let name = bare.map_or(registry, |(name, _)| name).trim_matches(['[', ']']);
    match registry {
        HUB => "https://registry-1.docker.io".to_owned(),
        _ if loopback(name) => format!("http://{registry}"),
        _ => format!("https://{registry}"),
    }
}

fn server(name: &'static str, base: String, ca_file: Option<PathBuf>) -> Http {
    Http::new(Server { name, base, transport: Transport::System, ca_file, timeout: LIMIT, seed: 0 })
}

/// As Docker does it: ask without, and then as the answer says; and then for the manifest of an image that runs here. Being
/// let in proves little: a token service gives a token to whoever asks, and what it is worth shows with an image.
fn enter(registry: &str, image: &Image, credential: Option<&str>, scrub: &dyn Scrub) -> Entrance {
    // Where Docker looks for the CA of a registry.
    let ca = Path::new("/etc/docker/certs.d").join(registry).join("ca.crt");
    let http = server("the registry", base(registry), Some(ca).filter(|ca| ca.is_file()));
    let ping = |authorization: Option<&str>| {
        let header = authorization.map(|value| ("authorization", value));
        get(&http, "/v2/", header.as_slice(), scrub)
    };
    let Image { repository, reference } = image;
    let path = format!("/v2/{repository}/manifests/{reference}");
    let manifest = |authorization: Option<&str>| {
        let mut headers = vec![("accept", MANIFESTS)];
        headers.extend(authorization.map(|value| ("authorization", value)));
        let keep = Keep::Headers;
        http.call(scrub, &Ask { path: &path, body: None, headers: &headers, repeat: Repeat::Safe, keep })
    };
    // What the answer asks for, made of the credential.
    let authorize = |answer: &Answer| -> Result<Result<Zeroizing<String>, Entrance>, CallFault> {
        let challenge = answer.header("www-authenticate").unwrap_or_default();
        let lower = challenge.to_ascii_lowercase();
        let basic = credential.map(|auth| Zeroizing::new(format!("Basic {auth}")));
        match answer.status {
            401 if lower.starts_with("basic") => {
                Ok(basic.ok_or_else(|| Entrance::Refused(answer.words(scrub).to_string())))
            }
            401 if lower.starts_with("bearer") => token(challenge, repository, basic.as_deref(), scrub),
            _ => Err(http.status_fault(scrub, answer)),
        }
    };
    let outcome = || -> Result<Entrance, CallFault> {
        let answer = ping(None)?;
        let mut authorization = None;
        if !answer.is_success() {
            let value = match authorize(&answer)? {
                Ok(value) => value,
                Err(refused) => return Ok(refused),
            };
            let answer = ping(Some(&value))?;
            match answer.status {
                200..300 => {}
                401 | 403 => return Ok(Entrance::Refused(answer.words(scrub).to_string())),
                _ => return Err(http.status_fault(scrub, &answer)),
            }
            authorization = Some(value);
        }
        let mut answer = manifest(authorization.as_ref().map(|value| value.as_str()))?;
        if answer.status == 401 && authorization.is_none() {
            // It lets anybody in, and shows this image to some.
            let value = match authorize(&answer)? {
                Ok(value) => value,
                Err(Entrance::Refused(words)) if credential.is_none() => return Ok(Entrance::Unshown(words)),
                Err(refused) => return Ok(refused),
            };
            answer = manifest(Some(&value))?;
            authorization = Some(value);
        }
        let what = format!("{repository}:{reference}");
        Ok(match answer.status {
            200..300 if credential.is_some() && authorization.is_some() => Entrance::Accepted,
            200..300 => Entrance::Open,
            401 | 403 if credential.is_some() => Entrance::Refused(format!("{what}: HTTP {}", answer.status)),
            404 => Entrance::Gone(what),
            // It lets in; what it is short of here (this method, patience) may be there for a pull.
            status => Entrance::Unshown(format!("{what}: HTTP {status}")),
        })
    };
    outcome().unwrap_or_else(|fault| Entrance::Unreachable(super::net::fault_words(&fault)))
}

fn get(http: &Http, path: &str, headers: &[(&'static str, &str)], scrub: &dyn Scrub) -> Result<Answer, CallFault> {
    http.call(scrub, &Ask { path, body: None, headers, repeat: Repeat::Safe, keep: Keep::Whole(CAP) })
}

/// Trades the credential for a token, where the registry says so.
fn token(
    challenge: &str,
    repository: &str,
    basic: Option<&String>,
    scrub: &dyn Scrub,
) -> Result<Result<Zeroizing<String>, Entrance>, CallFault> {
    let part = |name: &str| parameter(challenge, name).unwrap_or_default();
    let realm = part("realm");
    let (base, path) = split_url(realm);
    let safe = base.starts_with("https://") || base.strip_prefix("http://").is_some_and(|at| self::base(at) == base);
    if !safe {
        return Ok(Err(Entrance::Unreachable(format!(
            "it sends to {realm:?} for a token, where no credential should go"
        ))));
    }
    let service = server("the registry's token service", base.to_owned(), None);
    let joint = if path.contains('?') { '&' } else { '?' };
    let path = format!(
        "{path}{joint}service={}&scope={}",
        encoded(part("service")),
        encoded(&format!("repository:{repository}:pull"))
    );
    let header = basic.map(|value| ("authorization", value.as_str()));
    let answer = get(&service, &path, header.as_slice(), scrub)?;
    if matches!(answer.status, 401 | 403) {
        return Ok(Err(Entrance::Refused(answer.words(scrub).to_string())));
    }
    let Given { token, access_token } = service.json(scrub, &answer)?;
    let token = if token.is_empty() { access_token } else { token };
    Ok(Ok(Zeroizing::new(format!("Bearer {}", token.as_str()))))
}

/// `name="value"` of a challenge.
fn parameter<'a>(challenge: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = challenge.split_once(&format!("{name}=\""))?;
    Some(rest.split_once('"')?.0)
}

/// `scheme://host` and the rest.
fn split_url(url: &str) -> (&str, &str) {
    let from = url.find("://").map_or(0, |at| at + 3);
    let at = url.get(from..).and_then(|rest| rest.find('/')).map_or(url.len(), |at| from + at);
    url.split_at_checked(at).unwrap_or((url, ""))
}

/// Whether `docker/config.json` has the credential of a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    It,
    /// The last deploy wrote none for it.
    Others,
    /// There is no such file, or nobody can read it: the next deploy writes it anew.
    NoFile,
}

fn judge(registry: &str, has: Has, entrance: &Entrance) -> Line {
    let fact = "registry";
    let has_credential = has == Has::It;
    match entrance {
        Entrance::Open if has_credential => {
            Line::ok(fact, format!("{registry} lets anybody in, also without the credential"))
        }
        Entrance::Open => Line::ok(fact, format!("{registry} lets anybody in")),
        Entrance::Accepted => Line::ok(fact, format!("{registry} takes the credential")),
        Entrance::Gone(image) => Line::warning(
            fact,
            format!("{registry} lets in, and says that there is no {image}, which is applied"),
            "nothing, while it runs; it cannot be pulled again: look whether it was removed, or is hidden from this credential",
        ),
        Entrance::Unshown(words) => Line::warning(
            fact,
            format!("{registry} lets in, and does not show an image that is applied: {words}"),
            "nothing, while it runs; whether it can be pulled again `docker pull` tells (one that was loaded by hand cannot)",
        ),
        Entrance::Refused(words) if has_credential => Line::failure(
            fact,
            format!("{registry} does not take the credential: {words}"),
            "mend the secret that `use: registry-auth` names, and deploy (`monky-deployd tick --force`)",
        ),
        Entrance::Refused(words) if has == Has::NoFile => Line::warning(
            fact,
            format!("{registry} wants a credential, and docker/config.json is not there or not readable: {words}"),
            "nothing, if the bundle's manifest has an entry with `use: registry-auth` for this registry: the next deploy writes the file anew",
        ),
        Entrance::Refused(words) => Line::failure(
            fact,
            format!("{registry} wants a credential, and docker/config.json has none for it: {words}"),
            "give the bundle's manifest an entry with `use: registry-auth`; its registry must be this one. If it has one, somebody changed the file: the next deploy writes it anew (`monky-deployd tick --force`)",
        ),
        Entrance::Unreachable(words) => Line::failure(
            fact,
            format!("{registry}: {words}"),
            "mend what is named here; if only Docker's daemon has a way to it (a proxy), try `docker pull`",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::Level;
    use super::*;
    use crate::effects::model::Service;
    use crate::effects::state::Applied;
    use crate::effects::{Sha, Stamp};

    #[test]
    fn the_registry_of_an_image_is_found_as_docker_finds_it() {
        let all = |(host, Image { repository, reference })| format!("{host} {repository} {reference}");
        let found = |image: &str| place(image).map(all).unwrap_or_default();
        assert_eq!(found("nginx"), "docker.io library/nginx latest");
        assert_eq!(found("nginx:1.27"), "docker.io library/nginx 1.27");
        assert_eq!(found("grafana/loki@sha256:00"), "docker.io grafana/loki sha256:00");
        assert_eq!(found("index.docker.io/grafana/loki"), "docker.io grafana/loki latest");
        assert_eq!(found("harbor.example/shop/web:1"), "harbor.example shop/web 1");
        assert_eq!(found("127.0.0.1:5000/shop/web"), "127.0.0.1:5000 shop/web latest");
        assert_eq!(found("localhost/web:1"), "localhost web 1");
        assert_eq!(found("${REGISTRY}/web"), "");
    }

    #[test]
    fn only_this_machine_is_asked_in_plain_text() {
        assert_eq!(base("127.0.0.1:5000"), "http://127.0.0.1:5000");
        assert_eq!(base("localhost"), "http://localhost");
        assert_eq!(base("[::1]:5000"), "http://[::1]:5000");
        assert_eq!(base("harbor.example"), "https://harbor.example");
        assert_eq!(base("10.0.0.1:5000"), "https://10.0.0.1:5000");
        assert_eq!(base(HUB), "https://registry-1.docker.io");
    }

    #[test]
    fn a_challenge_is_taken_apart() {
        let challenge = r#"Bearer realm="https://auth.example/token",service="the registry",scope="x""#;
        assert_eq!(parameter(challenge, "realm"), Some("https://auth.example/token"));
        assert_eq!(parameter(challenge, "service"), Some("the registry"));
        assert_eq!(parameter(challenge, "error"), None);
        assert_eq!(split_url("https://auth.example/token?a=b"), ("https://auth.example", "/token?a=b"));
        assert_eq!(split_url("https://auth.example"), ("https://auth.example", ""));
        assert_eq!(split_url(""), ("", ""));
    }

    #[test]
    fn a_credential_is_not_sent_where_anybody_could_read_it() {
        for realm in ["http://auth.example/token", "ftp://auth.example/token", "", "auth"] {
            let challenge = format!("Bearer realm=\"{realm}\",service=\"r\"");
            let basic = "Basic c2VjcmV0".to_owned();
            let refused = token(&challenge, "a/b", Some(&basic), &Vault::default()).unwrap();
            assert!(
                matches!(refused, Err(Entrance::Unreachable(why)) if why.contains("no credential should go")),
                "{realm}"
            );
        }
    }

    #[test]
    fn each_registry_is_asked_once_and_variables_are_counted() {
        let service = |image: &str| Service { image: Some(image.to_owned()), ..Service::default() };
        let services = ["a.example/x:1", "a.example/y:1", "b.example/z", "$IMAGE"];
        let applied = Applied {
            sha: Sha::of(b"x"),
            at: Stamp(0),
            generation: None,
            secrets: BTreeMap::new(),
            images: Default::default(),
            services: services.iter().map(|image| ((*image).to_owned(), service(image))).collect(),
        };
        let (found, unknown) = registries(&State { good: vec![applied], ..State::default() });
        assert_eq!((found.into_keys().collect::<Vec<_>>(), unknown), (vec!["a.example".into(), "b.example".into()], 1));
        let nothing = look(&State::default(), &Credentials::default(), &Vault::default());
        assert_eq!((nothing.len(), nothing[0].level), (1, Level::Ok), "{nothing:?}");
    }

    #[test]
    fn the_vault_knows_the_credential_before_anybody_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        let auth = STANDARD.encode("puller:n0t-to-be-seen");
        let config = format!(r#"{{"auths":{{"https://index.docker.io/v1/":{{"auth":"{auth}"}},"a.example":{{}}}}}}"#);
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        let vault = Vault::default();
        let found = credentials(dir.path(), &vault);
        assert!(found.written);
        assert_eq!(found.by_host.keys().collect::<Vec<_>>(), [HUB]);
        let said = vault.scrub(&format!("{auth} puller:n0t-to-be-seen"));
        assert!(!said.contains("n0t-to-be-seen") && !said.contains(&auth), "{said}");
        let nothing = credentials(&dir.path().join("nothing"), &vault);
        assert!(nothing.by_host.is_empty() && !nothing.written);
    }

    #[test]
    fn a_registry_that_does_not_let_in_fails_with_what_to_do() {
        let level = |has, entrance: Entrance| judge("r", has, &entrance).level;
        assert_eq!([Has::It, Has::Others].map(|has| level(has, Entrance::Open)), [Level::Ok; 2]);
        assert_eq!(level(Has::It, Entrance::Accepted), Level::Ok);
        assert_eq!(level(Has::It, Entrance::Gone("a:1".to_owned())), Level::Warning, "what runs goes on running");
        assert_eq!(
            [Has::It, Has::Others].map(|has| level(has, Entrance::Refused("no".to_owned()))),
            [Level::Failure; 2]
        );
        assert_eq!(level(Has::NoFile, Entrance::Refused("no".to_owned())), Level::Warning, "each deploy writes it");
        assert_eq!(level(Has::It, Entrance::Unreachable("refused".to_owned())), Level::Failure);
        let without = judge("r", Has::Others, &Entrance::Refused("unauthorized".to_owned()));
        assert!(without.what.contains("has none for it: unauthorized"));
    }
}
