//! One server, called over HTTP: deadlines, caps, retries, and faults told so that a person can act.
//!
//! Invariant: a call ends by its deadline, follows no redirect, takes no proxy from the environment, holds at
//! most its cap in memory, and no text leaves here that was not scrubbed. A request that must not arrive
//! twice is never sent twice.
//!
//! What may hold a secret and is in our hands is wiped when dropped: the bodies of answers, and those of requests where
//! they are made. What ureq, its header values and rustls keep of them on the way is not, nor what a parser of JSON sets
//! aside while it reads an escaped string; it ends with the process, which writes no core.
//!
//! ureq writes what it does to the `log` facade, where a later change could print a header. No bridge from
//! `log` to our own log is installed, and `log` is built with `max_level_off`, which compiles those records out.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize as _, Deserializer};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;
use ureq::http::{HeaderMap, HeaderValue, Request, Response, header};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider};
use ureq::unversioned::transport::Connector as _;
use ureq::{Agent, Body, Timeout};
use zeroize::Zeroizing;

use super::transport::{Dial, NoAddress, NotOpened, Opening, Route, SDK_UNBUILT, Tls, Transport};
use super::vault::{Secret, Wiped};
use crate::effects::{CallFault, Scrub, Scrubbed};
use crate::plain;

/// Bytes that an answer may have, if its call says nothing else.
pub const BODY_CAP: u64 = 8 << 20;
/// Bytes of an answer's body that are read when only its beginning matters: an error's words.
const WORDS_CAP: u64 = 64 << 10;
/// Until a connection stands, TLS included.
const CONNECT: Duration = Duration::from_secs(5);
/// Calls that may run at the same time without opening new connections later.
const KEPT: usize = 8;
/// A request that must not be sent twice takes no kept connection older than this: the server may be closing it.
const FRESH: Duration = Duration::from_secs(1);
/// Mean pauses before the second and the third try.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(600)];
/// The longest `Retry-After` that is believed, in seconds.
const RETRY_AFTER_MAX: u32 = 3600;
/// Characters of a server's own code and message.
const WORDS: usize = 300;
/// Characters of a body that is not in the shape of an error.
const RAW_WORDS: usize = 200;

/// Where a server is and how it is called.
#[derive(Clone, Debug)]
pub struct Server {
    /// What people call it: `tenancy`, `OpenBao`.
    pub name: &'static str,
    /// `scheme://host[:port]`, without a path.
    pub base: String,
    /// The way to it.
    pub transport: Transport,
    /// Trust only the certificates in this PEM file; none: the system's roots.
    pub ca_file: Option<PathBuf>,
    /// For a call with all its tries.
    pub timeout: Duration,
    /// Of the jitter between tries.
    pub seed: u64,
}

/// Whether a request may arrive twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// It may: it only looks, or carries an idempotency key.
    Safe,
    /// It must not. It is sent again only if the connection was refused.
    Never,
}

/// How much of a successful answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All of it; more than so many bytes are a fault.
    Whole(u64),
    /// Only that it came.
    Nothing,
    /// Its headers: a request without a body is sent with HEAD.
    Headers,
}

/// One request.
pub struct Ask<'a> {
    /// Path and query, with a leading `/`, encoded.
    pub path: &'a str,
    /// Sent with POST, as JSON; none: a GET, or a HEAD.
    pub body: Option<&'a [u8]>,
    /// Further headers; their values count as secret.
    pub headers: &'a [(&'static str, &'a str)],
    /// Whether it may arrive twice.
    pub repeat: Repeat,
    /// How much of the answer is wanted.
    pub keep: Keep,
}

/// A complete answer, whatever its status.
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Seconds from `Retry-After`, at most an hour.
    pub retry_after_s: Option<u32>,
    /// The body.
    pub body: Wiped,
    headers: HeaderMap,
    location: Option<String>,
    content_type: String,
    /// The body's end was marked, so that a lost end shows.
    framed: bool,
}

impl Answer {
    /// 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// A header, if it is there and text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The server's own time (`Date`), in seconds since the epoch.
    pub fn date_s(&self) -> Option<i64> {
        Some(OffsetDateTime::parse(self.header("date")?.trim(), &Rfc2822).ok()?.unix_timestamp())
    }

    /// The `code` of tenancy's own form of an error (contract §4); none: something else sent this.
    pub fn error_code(&self) -> Option<String> {
        let body = serde_json::from_slice::<Value>(&self.body).ok()?;
        Some(one_line(body.get("error")?.get("code")?.as_str()?, 60))
    }

    /// What the server said of an error, on one line: `CODE: message` of tenancy, the `errors` of OpenBao, or
    /// the beginning of whatever else it sent.
    pub fn words(&self, scrub: &dyn Scrub) -> Scrubbed {
        let raw;
        let (text, length) = if let Some(location) = &self.location {
            raw = format!("redirects to {location}, which is never followed");
            (raw.as_str(), WORDS)
        } else {
            match serde_json::from_slice::<Value>(&self.body).ok().as_ref().and_then(error_words) {
                Some(words) => {
                    raw = words;
                    (raw.as_str(), WORDS)
                }
                None => {
                    raw = String::from_utf8_lossy(&self.body).into_owned();
                    (raw.as_str(), RAW_WORDS)
                }
            }
        };
        let clean = one_line(&scrub.scrub(text), length);
        Scrubbed::new(scrub, if clean.is_empty() { "without a word" } else { &clean })
    }
}

/// The words in a JSON error of either server.
fn error_words(body: &Value) -> Option<String> {
    if let Some(error) = body.get("error") {
        let part = |name| error.get(name).and_then(Value::as_str);
        return match (part("code"), part("message")) {
            (Some(code), Some(message)) => Some(format!("{code}: {message}")),
            (Some(only), None) | (None, Some(only)) => Some(only.to_owned()),
            (None, None) => error.as_str().map(str::to_owned),
        };
    }
    let errors = body.get("errors")?.as_array()?;
    // Registries have objects there.
    let words = errors.iter().filter_map(|error| error.as_str().or_else(|| error.get("message")?.as_str()));
    Some(words.collect::<Vec<_>>().join("; "))
}

/// A text on one line, without control characters, and not longer than so many characters.
pub fn one_line(text: &str, length: usize) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control() || c == '\u{fffd}');
    let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(length) {
        None => line,
        Some(_) => line.chars().take(length.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Reads a field that is secret, so that it is wiped whatever becomes of it.
///
/// # Errors
///
/// As for any string.
pub(super) fn wiped<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Secret>, D::Error> {
    Ok(Option::<String>::deserialize(field)?.map(Secret::new))
}

/// Why a try gave no answer.
#[derive(Debug)]
enum Miss {
    /// Nothing listens there.
    Refused,
    /// One of the others, before a connection stood: nothing was sent.
    Unsent(Box<Miss>),
    /// The way to the server or back broke: no such name, no route, reset, closed early.
    Broken(String),
    /// Time was up.
    Late(String),
    /// TLS came to nothing: it would again.
    Untrusted(String),
    /// Something answered, but not what HTTP or the cap allows.
    Nonsense(String),
}

impl Miss {
    /// Whether another try is allowed and may help.
    fn again(&self, repeat: Repeat) -> bool {
        match self {
            Miss::Unsent(miss) => matches!(**miss, Miss::Refused) || miss.again(repeat),
            Miss::Refused | Miss::Broken(_) | Miss::Late(_) => repeat == Repeat::Safe,
            Miss::Untrusted(_) | Miss::Nonsense(_) => false,
        }
    }
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Miss::Refused => f.write_str("connection refused"),
            Miss::Unsent(miss) => miss.fmt(f),
            Miss::Broken(what) | Miss::Late(what) | Miss::Untrusted(what) | Miss::Nonsense(what) => f.write_str(what),
        }
    }
}

/// The beginning of an answer.
enum Opened {
    /// A success whose body is still to be read.
    Success(Response<Body>),
    /// Any other status, read.
    Other(Answer),
}

/// A server with its kept connections. Made anew each tick; may be called from several threads.
pub struct Http {
    server: Server,
    /// `host:port`, for people.
    place: String,
    agent: Agent,
    /// Why no call can be made at all.
    unusable: Option<String>,
    draws: AtomicU64,
}

impl Http {
    /// Opens nothing. Reads the CA file if there is one and the server speaks https; what is wrong with it is told
    /// by every call. The system's roots are read with the first https connection.
    pub fn new(mut server: Server) -> Http {
        while server.base.ends_with('/') {
            server.base.pop();
        }
        let secure = server.base.starts_with("https:");
        let mut unusable = (server.transport == Transport::Sdk).then(|| SDK_UNBUILT.to_owned());
        let mut tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .root_certs(RootCerts::PlatformVerifier)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
        if let Some(path) = server.ca_file.as_deref().filter(|_| secure) {
            match read_roots(path) {
                Ok(roots) => tls = tls.root_certs(RootCerts::from(roots)),
                Err(why) => unusable = unusable.or(Some(format!("the CA file {} {why}", path.display()))),
            }
        }
        let connect = CONNECT.min(server.timeout);
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(concat!("monky-deployd/", env!("CARGO_PKG_VERSION")))
            .accept("application/json")
            .accept_encoding("")
            .timeout_resolve(Some(connect))
            .timeout_connect(Some(connect))
            .max_idle_connections(KEPT)
            .max_idle_connections_per_host(KEPT)
            .build();
        let chain = Opening(Dial::new(&server.transport).chain(Tls::default()));
        let agent = Agent::with_parts(config, chain, Route::new(&server.transport));
        let place = place(&server.base);
        let draws = AtomicU64::new(server.seed);
        Http { server, place, agent, unusable, draws }
    }

    /// Sends a request and reads the answer.
    ///
    /// # Errors
    ///
    /// [`CallFault::Unreachable`] without a complete answer; [`CallFault::Nonsense`] if it is no HTTP or more than
    /// the cap. Every status is an [`Answer`].
    pub fn call(&self, scrub: &dyn Scrub, ask: &Ask<'_>) -> Result<Answer, CallFault> {
        self.tries(scrub, ask, busy, |left| match self.open(ask, left)? {
            Opened::Success(response) => self.read(response, ask.keep),
            Opened::Other(answer) => Ok(answer),
        })
    }

    /// Sends a request, lends the body of a success to `read` as it arrives, and gives that answer's headers too.
    /// A body that was cut off is lent anew with the next try.
    ///
    /// # Errors
    ///
    /// As [`Http::call`], and [`CallFault::Status`] for every status that is no success. What `read` made of a body
    /// that turned out to be cut off or too large is dropped.
    pub fn stream<T>(
        &self,
        scrub: &dyn Scrub,
        ask: &Ask<'_>,
        cap: u64,
        read: impl Fn(&mut dyn Read) -> T,
    ) -> Result<(T, HeaderMap), CallFault> {
        let busy = |got: &Result<_, Answer>| got.as_ref().err().and_then(busy);
        let one = |left| match self.open(ask, left)? {
            Opened::Other(answer) => Ok(Err(answer)),
            Opened::Success(response) => {
                let (parts, body) = response.into_parts();
                let mut metered = Metered::new(body, cap);
                let made = read(&mut metered);
                match self.verdict(metered) {
                    None => Ok(Ok((made, parts.headers))),
                    Some(miss) => Err(miss),
                }
            }
        };
        self.tries(scrub, ask, busy, one)?.map_err(|answer| self.status_fault(scrub, &answer))
    }

    /// The body of a success as JSON.
    ///
    /// # Errors
    ///
    /// [`CallFault::Status`] if it is no success, [`CallFault::Nonsense`] if it has another shape. Not a word of the
    /// body is told: it may hold a secret.
    pub fn json<T: DeserializeOwned>(&self, scrub: &dyn Scrub, answer: &Answer) -> Result<T, CallFault> {
        if !answer.is_success() {
            return Err(self.status_fault(scrub, answer));
        }
        serde_json::from_slice(&answer.body).map_err(|error| {
            if error.is_eof() && !answer.framed && !answer.body.is_empty() {
                return self.fault(
                    scrub,
                    Miss::Broken("closed the connection before the answer was complete".into()),
                    true,
                );
            }
            let sent = if answer.content_type.is_empty() { "no content type" } else { &answer.content_type };
            let kind = if error.is_data() { "JSON of another shape than agreed" } else { "no JSON" };
            let at = format!("line {} column {}", error.line(), error.column());
            self.nonsense(scrub, &format!("answered {} with {kind} ({sent}, {at})", answer.status))
        })
    }

    /// A fault for a success that says something else than agreed.
    pub fn nonsense(&self, scrub: &dyn Scrub, what: &str) -> CallFault {
        self.fault(scrub, Miss::Nonsense(what.to_owned()), true)
    }

    /// A fault for a status that is no success.
    pub fn status_fault(&self, scrub: &dyn Scrub, answer: &Answer) -> CallFault {
        CallFault::Status { status: answer.status, detail: answer.words(scrub), retry_after_s: answer.retry_after_s }
    }

    /// Up to three tries within one deadline. Each further one is told in the journal, and only there: for the machine,
    /// and so for recordings, a call is one question with one answer, whichever try brought it.
    fn tries<T>(
        &self,
        scrub: &dyn Scrub,
        ask: &Ask<'_>,
        busy: impl Fn(&T) -> Option<String>,
        one: impl Fn(Duration) -> Result<T, Miss>,
    ) -> Result<T, CallFault> {
        if let Some(why) = &self.unusable {
            return Err(self.unreachable(scrub, why, false));
        }
        let started = Instant::now();
        let left = || self.server.timeout.saturating_sub(started.elapsed());
        let mut pauses = PAUSES.iter();
        let mut sent = false;
        loop {
            let got = one(left());
            sent |= !matches!(got, Err(Miss::Unsent(_)));
            let why = match &got {
                Ok(answer) => busy(answer).filter(|_| ask.repeat == Repeat::Safe),
                Err(miss) => Some(miss.to_string()).filter(|_| miss.again(ask.repeat)),
            };
            let pause = pauses.next().map(|pause| self.jitter(*pause)).filter(|pause| *pause < left());
            let (Some(why), Some(pause)) = (why, pause) else {
                return got.map_err(|miss| self.fault(scrub, miss, sent));
            };
            let told =
                format!("{} at {}: {why}; asking again in {} ms", self.server.name, self.place, pause.as_millis());
            tracing::info!("{}", self.told(scrub, &told));
            thread::sleep(pause);
        }
    }

    /// One try, up to the headers of the answer.
    fn open(&self, ask: &Ask<'_>, left: Duration) -> Result<Opened, Miss> {
        let mut request = Request::builder().uri(format!("{}{}", self.server.base, ask.path));
        for (name, value) in ask.headers {
            let mut value = HeaderValue::from_str(value).map_err(|_| {
                Miss::Nonsense(format!("was not asked: the value for {name} does not fit into a header"))
            })?;
            value.set_sensitive(true);
            request = request.header(*name, value);
        }
        let idle = match ask.repeat {
            Repeat::Safe => self.agent.config().max_idle_age(),
            Repeat::Never => FRESH,
        };
        let sent = match ask.body {
            None => request
                .method(if ask.keep == Keep::Headers { "HEAD" } else { "GET" })
                .body(())
                .map_err(ureq::Error::Http)
                .and_then(|request| {
                    let limits = self.agent.configure_request(request).timeout_global(Some(left)).max_idle_age(idle);
                    self.agent.run(limits.build())
                }),
            Some(body) => {
                let request = request.method("POST").header(header::CONTENT_TYPE, "application/json");
                request.body(body).map_err(ureq::Error::Http).and_then(|request| {
                    let limits = self.agent.configure_request(request).timeout_global(Some(left)).max_idle_age(idle);
                    self.agent.run(limits.build())
                })
            }
        };
        let response = sent.map_err(|error| self.miss(&error))?;
        if response.status().is_success() {
            return Ok(Opened::Success(response));
        }
        self.read(response, Keep::Nothing).map(Opened::Other)
    }

    /// The rest of an answer.
    fn read(&self, response: Response<Body>, keep: Keep) -> Result<Answer, Miss> {
        let (parts, body) = response.into_parts();
        let text = |name| parts.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let mut answer = Answer {
            status: parts.status.as_u16(),
            retry_after_s: text(header::RETRY_AFTER).and_then(|value| retry_after(value, text(header::DATE))),
            body: Wiped::default(),
            headers: HeaderMap::new(),
            // Without its query, which may hold anything.
            location: text(header::LOCATION)
                .filter(|_| parts.status.is_redirection())
                .and_then(|value| value.split(['?', '#']).next())
                .map(str::to_owned),
            content_type: one_line(text(header::CONTENT_TYPE).unwrap_or_default(), 60),
            framed: parts.headers.contains_key(header::CONTENT_LENGTH)
                || parts.headers.contains_key(header::TRANSFER_ENCODING),
        };
        answer.headers = parts.headers;
        let cap = match keep {
            Keep::Whole(cap) => cap,
            Keep::Nothing | Keep::Headers => WORDS_CAP,
        };
        let size = body.content_length().unwrap_or(0).min(cap);
        let mut metered = Metered::new(body, cap);
        answer.body = read_wiped(&mut metered, usize::try_from(size).unwrap_or(0));
        match self.verdict(metered) {
            Some(Miss::Nonsense(_)) if keep == Keep::Nothing => Ok(answer),
            Some(miss) => Err(miss),
            None => Ok(answer),
        }
    }

    /// What became of a body.
    fn verdict(&self, body: Metered) -> Option<Miss> {
        match body.ended {
            Ended::Open => None,
            Ended::TooLarge => Some(Miss::Nonsense(format!("answered with more than {} bytes", body.cap))),
            Ended::Broken(error) => Some(self.miss(&error)),
        }
    }

    /// What an error of ureq means.
    fn miss(&self, error: &ureq::Error) -> Miss {
        match error {
            ureq::Error::Timeout(Timeout::Resolve) => {
                Miss::Unsent(Box::new(Miss::Late("its name was not resolved in time".into())))
            }
            ureq::Error::Timeout(Timeout::Connect) => {
                Miss::Late(format!("no connection within {}", seconds(CONNECT.min(self.server.timeout))))
            }
            ureq::Error::Timeout(_) => {
                Miss::Late(format!("no complete answer within {}", seconds(self.server.timeout)))
            }
            ureq::Error::Other(other) => match other.downcast_ref::<NotOpened>() {
                Some(NotOpened(error)) => Miss::Unsent(Box::new(self.miss(error))),
                None if other.is::<NoAddress>() => Miss::Unsent(Box::new(Miss::Broken(other.to_string()))),
                None => Miss::Broken(error.to_string()),
            },
            ureq::Error::Rustls(error) => Miss::Untrusted(tls_words(error)),
            ureq::Error::Tls(words) => Miss::Untrusted((*words).to_owned()),
            ureq::Error::Io(error) => io_miss(error),
            ureq::Error::Protocol(_) => Miss::Nonsense("does not answer in HTTP".into()),
            ureq::Error::LargeResponseHeader(..) => Miss::Nonsense("answered with too large headers".into()),
            ureq::Error::Http(_) | ureq::Error::BadUri(_) => {
                Miss::Nonsense(format!("cannot be asked: {} is no usable URL", self.server.base))
            }
            other => Miss::Broken(other.to_string()),
        }
    }

    /// What is told of the last try; `sent`: one of them may have arrived.
    fn fault(&self, scrub: &dyn Scrub, miss: Miss, sent: bool) -> CallFault {
        let proxied = matches!(self.server.transport, Transport::Proxy { .. });
        let text = match miss {
            Miss::Unsent(miss) => return self.fault(scrub, *miss, sent),
            Miss::Nonsense(what) => {
                let detail = self.told(scrub, &format!("{} at {} {what}", self.server.name, self.place));
                return CallFault::Nonsense { detail };
            }
            Miss::Refused if proxied => {
                "connection refused: nothing listens there; start the tunnel's proxy or mend its host:port".into()
            }
            Miss::Refused => "connection refused: nothing listens there".into(),
            Miss::Broken(what) if proxied => {
                format!("{what}; a tunnel's proxy accepts first and closes when its own dial fails: look at its log")
            }
            Miss::Broken(what) | Miss::Late(what) | Miss::Untrusted(what) => what,
        };
        self.unreachable(scrub, &text, sent)
    }

    fn unreachable(&self, scrub: &dyn Scrub, why: &str, sent: bool) -> CallFault {
        let Http { server: Server { name, transport, .. }, place, .. } = self;
        let detail = self.told(scrub, &format!("{name} at {place}, dialled {transport}: {why}"));
        CallFault::Unreachable { detail, never_sent: !sent }
    }

    fn told(&self, scrub: &dyn Scrub, text: &str) -> Scrubbed {
        Scrubbed::new(scrub, &one_line(&scrub.scrub(text), 2 * WORDS))
    }

    /// Between half of a pause and one and a half (splitmix64).
    fn jitter(&self, mean: Duration) -> Duration {
        let mut z = self.draws.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        mean / 2 + mean * u32::try_from(z % 1000).unwrap_or(0) / 1000
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("server", &self.server).finish_non_exhaustive()
    }
}

/// 502, 503 and 504 pass, unless the server says when to come back: what to tell of them.
fn busy(answer: &Answer) -> Option<String> {
    let passes = matches!(answer.status, 502..=504) && answer.retry_after_s.is_none();
    passes.then(|| format!("HTTP {}", answer.status))
}

/// `host:port` of a base URL.
fn place(base: &str) -> String {
    let Ok(uri) = base.parse::<ureq::http::Uri>() else { return base.to_owned() };
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    format!("{}:{port}", uri.host().unwrap_or(base))
}

fn seconds(time: Duration) -> String {
    if time.subsec_millis() == 0 { format!("{} s", time.as_secs()) } else { format!("{} ms", time.as_millis()) }
}

fn io_miss(error: &io::Error) -> Miss {
    if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return Miss::Untrusted(tls_words(tls));
    }
    match error.kind() {
        ErrorKind::ConnectionRefused => Miss::Refused,
        ErrorKind::UnexpectedEof => Miss::Broken("closed the connection before the answer was complete".into()),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
            Miss::Broken("connection reset before the answer was complete".into())
        }
        ErrorKind::TimedOut => Miss::Late("the network gave up".into()),
        _ => Miss::Broken(error.to_string()),
    }
}

fn tls_words(error: &rustls::Error) -> String {
    let hint = match error {
        rustls::Error::InvalidCertificate(_) => {
            "look at its certificate, the configured CA file, the host's name and this box's clock"
        }
        rustls::Error::InvalidMessage(_) => "does it speak plain http there?",
        _ => "look at its TLS settings; TLS 1.2 or 1.3 is needed",
    };
    format!("TLS failed: {error}; {hint}")
}

/// The largest CA file that is read (bytes); a bundle of all the world's CAs has less than 1 MiB.
const LARGEST_CA: u64 = 16 << 20;

/// The certificates of a PEM file, each checked to be usable as a root.
///
/// # Errors
/// Completes the sentence "the CA file …".
pub fn read_roots(path: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let pem = plain::read(path, LARGEST_CA).map_err(|error| format!("cannot be read: {error}"))?;
    let mut roots = Vec::new();
    let mut store = rustls::RootCertStore::empty();
    for item in ureq::tls::parse_pem(&pem) {
        if let PemItem::Certificate(root) = item.map_err(|error| format!("is no PEM: {error}"))? {
            let der = rustls::pki_types::CertificateDer::from(root.der());
            store.add(der).map_err(|error| format!("holds a certificate that is no CA's: {error}"))?;
            roots.push(root);
        }
    }
    if roots.is_empty() { Err("holds no certificate (PEM)".into()) } else { Ok(roots) }
}

/// Seconds to wait by a `Retry-After`: seconds, or a date seen from the answer's own `Date`.
fn retry_after(value: &str, date: Option<&str>) -> Option<u32> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|digit| digit.is_ascii_digit()) {
        return Some(value.parse().unwrap_or(u32::MAX).min(RETRY_AFTER_MAX));
    }
    let then = OffsetDateTime::parse(value, &Rfc2822).ok()?;
    let now = OffsetDateTime::parse(date?.trim(), &Rfc2822).ok()?;
    let wait = (then - now).whole_seconds().clamp(0, i64::from(RETRY_AFTER_MAX));
    u32::try_from(wait).ok()
}

/// How reading a body ended.
enum Ended {
    /// As it should, or not yet.
    Open,
    /// It is larger than the cap.
    TooLarge,
    /// It was cut off.
    Broken(ureq::Error),
}

/// A body under a cap that remembers what went wrong, whatever its reader makes of it.
struct Metered {
    body: ureq::BodyReader<'static>,
    cap: u64,
    left: u64,
    ended: Ended,
}

impl Metered {
    fn new(body: Body, cap: u64) -> Metered {
        Metered { body: body.into_reader(), cap, left: cap, ended: Ended::Open }
    }
}

impl Read for Metered {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = match self.body.read(buffer) {
            Ok(got) => got,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                let error = ureq::Error::from(error);
                let told = io::Error::other(error.to_string());
                self.ended = Ended::Broken(error);
                return Err(told);
            }
        };
        match self.left.checked_sub(got as u64) {
            Some(left) => self.left = left,
            None => {
                self.ended = Ended::TooLarge;
                return Err(io::Error::other("the body is larger than its cap"));
            }
        }
        Ok(got)
    }
}

/// Reads to the end or to the first error, and leaves no copy behind when the buffer grows.
fn read_wiped(body: &mut Metered, size: usize) -> Wiped {
    let mut whole = Wiped::with_room(size);
    let mut chunk = Zeroizing::new([0_u8; 8192]);
    loop {
        let part = match body.read(chunk.as_mut()) {
            Ok(0) => return whole,
            Ok(got) => chunk.get(..got).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return whole,
        };
        if whole.write_all(part).is_err() {
            // It is memory: there is nothing that could fail.
            return whole;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_believed_in_seconds_and_for_at_most_an_hour() {
        assert_eq!(retry_after("7", None), Some(7));
        assert_eq!(retry_after(" 0 ", None), Some(0));
        assert_eq!(retry_after("86400", None), Some(3600));
        assert_eq!(retry_after("99999999999999999999", None), Some(3600));
        for nonsense in ["-5", "", "soon", "1.5", "7s", "٣"] {
            assert_eq!(retry_after(nonsense, None), None, "{nonsense}");
        }
    }

    #[test]
    fn retry_after_as_a_date_counts_from_the_servers_own_date() {
        let then = "Sun, 06 Nov 1994 08:50:37 GMT";
        assert_eq!(retry_after(then, Some("Sun, 06 Nov 1994 08:49:37 GMT")), Some(60));
        assert_eq!(retry_after(then, Some("Mon, 07 Nov 1994 08:49:37 GMT")), Some(0));
        assert_eq!(retry_after(then, Some("Sat, 05 Nov 1994 08:49:37 GMT")), Some(3600));
        assert_eq!(retry_after(then, None), None);
    }

    #[test]
    fn a_text_is_told_on_one_line_and_not_too_long() {
        assert_eq!(one_line("a\n\tb\u{1b}[31m  c\0", 40), "a b [31m c");
        assert_eq!(one_line("äöüß", 4), "äöüß");
        assert_eq!(one_line("äöüßx", 4), "äöü…");
    }

    #[test]
    fn an_error_of_either_server_is_told_in_its_own_words() {
        let words = |text: &str| error_words(&serde_json::from_str(text).unwrap());
        assert_eq!(words(r#"{"error":{"code":"A","message":"b"}}"#).unwrap(), "A: b");
        assert_eq!(words(r#"{"error":"plain"}"#).unwrap(), "plain");
        assert_eq!(words(r#"{"errors":["a","b"]}"#).unwrap(), "a; b");
        assert_eq!(words(r#"{"errors":[{"code":"A","message":"b"}]}"#).unwrap(), "b");
        assert_eq!(words(r#"{"errors":[]}"#).unwrap(), "");
        assert_eq!(words(r#"{"detail":1}"#), None);
    }

    #[test]
    fn pauses_are_jittered_by_the_seed_alone() {
        let http = |seed| {
            let (name, base, transport) = ("x", "http://127.0.0.1:1".to_owned(), Transport::System);
            Http::new(Server { name, base, transport, ca_file: None, timeout: CONNECT, seed })
        };
        let draw = |http: &Http| [0; 20].map(|_| http.jitter(Duration::from_millis(200)));
        let first = draw(&http(1));
        assert_eq!(first, draw(&http(1)));
        assert_ne!(first, draw(&http(2)));
        assert!(first.iter().all(|pause| (100..300).contains(&pause.as_millis())), "{first:?}");
    }

    #[test]
    fn no_record_of_the_http_library_can_be_printed() {
        assert_eq!(log::STATIC_MAX_LEVEL, log::LevelFilter::Off);
    }
}
