//! The ways to a connected stream: by DNS, through a local listener, or in-process.
//!
//! Invariant: a transport decides only where the TCP connection goes. URL, `Host` header, SNI and the
//! certificate's check stay those of the real server, whichever way is taken.
//!
//! These plug into ureq's `unversioned` API; that is why its version is pinned.

use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::time::Duration as Limit;
use ureq::unversioned::transport::{
    ConnectionDetails, Connector, NextTimeout, RustlsConnector, TcpConnector, Transport as Stream,
};

/// How long a refused connection to a local listener is tried again: the tunneler may just be starting, and its
/// port opens only after it has authenticated.
const PORT_PATIENCE: Duration = Duration::from_secs(2);
/// The first pause of that waiting; each is twice as long as the one before, up to [`PORT_PAUSE_MAX`].
const PORT_PAUSE: Duration = Duration::from_millis(25);
/// The longest pause of that waiting.
const PORT_PAUSE_MAX: Duration = Duration::from_millis(400);

/// How a server is reached (contract §2, `transport`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Plain TCP to what DNS says; on a mesh the box's tunneler intercepts the name.
    System,
    /// TCP to a local listener that somebody forwards to the server.
    Proxy {
        /// `host:port` of the listener.
        listener: String,
    },
    /// OpenZiti in-process. Not built yet: every call is answered with [`SDK_UNBUILT`].
    Sdk,
}

/// What every call over [`Transport::Sdk`] is answered with.
pub const SDK_UNBUILT: &str = "`transport: sdk` does not work in this version; use `transport: proxy` with a \
    listener of `ziti tunnel proxy`, or `transport: system` with `ziti-edge-tunnel`";

impl fmt::Display for Transport {
    /// Completes the sentence "dialled …".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transport::System => f.write_str("directly"),
            Transport::Proxy { listener } => write!(f, "through the listener {listener}"),
            Transport::Sdk => f.write_str("in-process"),
        }
    }
}

/// A name that could not be turned into an address, and what the system said.
#[derive(Debug, thiserror::Error)]
#[error("the name {name} cannot be resolved: {why}")]
pub(super) struct NoAddress {
    name: String,
    why: String,
}

/// No connection came about, TLS included: nothing of the request was sent.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotOpened(pub(super) ureq::Error);

/// Marks what goes wrong before a connection stands, and so before anything is sent.
#[derive(Debug)]
pub(super) struct Opening<C>(pub(super) C);

impl<C: Connector> Connector for Opening<C> {
    type Out = C::Out;

    fn connect(&self, details: &ConnectionDetails, chained: Option<()>) -> Result<Option<Self::Out>, ureq::Error> {
        self.0.connect(details, chained).map_err(|error| ureq::Error::Other(Box::new(NotOpened(error))))
    }
}

/// Turns the server's name into addresses, or answers with the listener's.
#[derive(Debug)]
pub(super) struct Route {
    listener: Option<String>,
}

impl Route {
    /// The resolver of a transport.
    pub(super) fn new(transport: &Transport) -> Route {
        let listener = match transport {
            Transport::Proxy { listener } => Some(listener.clone()),
            Transport::System | Transport::Sdk => None,
        };
        Route { listener }
    }
}

impl Resolver for Route {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let listener;
        let target = match &self.listener {
            None => uri,
            Some(text) => {
                listener = format!("http://{text}/").parse::<Uri>().map_err(|e| no_address(text, &e))?;
                &listener
            }
        };
        // ureq looks names up in a thread of their own; an address needs neither.
        if let Some(address) = literal(target) {
            let mut found = self.empty();
            found.push(address);
            return Ok(found);
        }
        DefaultResolver::default().resolve(target, config, timeout).map_err(|error| match error {
            ureq::Error::Io(why) => no_address(target.host().unwrap_or_default(), &why),
            ureq::Error::HostNotFound => no_address(target.host().unwrap_or_default(), &"no address"),
            other => other,
        })
    }
}

fn no_address(name: &str, why: &dyn fmt::Display) -> ureq::Error {
    ureq::Error::Other(Box::new(NoAddress { name: name.to_owned(), why: why.to_string() }))
}

/// The address that a URL spells out, if its host is one.
fn literal(uri: &Uri) -> Option<SocketAddr> {
    let host = uri.host()?;
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let address: IpAddr = bare.parse().ok()?;
    let port = match (uri.port_u16(), uri.scheme_str()) {
        (Some(port), _) => port,
        (None, Some("https")) => 443,
        (None, _) => 80,
    };
    Some(SocketAddr::new(address, port))
}

/// Opens the TCP connection; to a local listener it waits a little for the port.
#[derive(Debug)]
pub(super) struct Dial {
    tcp: TcpConnector,
    waits_for_port: bool,
    /// The port was waited for in vain once; nobody waits for it again in this tick.
    gave_up: AtomicBool,
}

impl Dial {
    /// The dialler of a transport.
    pub(super) fn new(transport: &Transport) -> Dial {
        let waits_for_port = matches!(transport, Transport::Proxy { .. });
        Dial { tcp: TcpConnector::default(), waits_for_port, gave_up: AtomicBool::new(false) }
    }
}

impl Connector for Dial {
    type Out = <TcpConnector as Connector>::Out;

    fn connect(&self, details: &ConnectionDetails, chained: Option<()>) -> Result<Option<Self::Out>, ureq::Error> {
        if !self.waits_for_port {
            return self.tcp.connect(details, chained);
        }
        let started = Instant::now();
        let mut pause = PORT_PAUSE;
        loop {
            let budget = details.timeout.after.saturating_sub(started.elapsed());
            if budget.is_zero() {
                return Err(ureq::Error::Timeout(details.timeout.reason));
            }
            let timeout = NextTimeout { after: Limit::from(budget), ..details.timeout };
            let refused = match self.tcp.connect(&ConnectionDetails { timeout, ..again(details) }, chained) {
                Err(ureq::Error::Io(error)) if error.kind() == ErrorKind::ConnectionRefused => error,
                other => return other,
            };
            let patience = PORT_PATIENCE.min(*details.timeout.after).saturating_sub(started.elapsed());
            if patience.is_zero() || self.gave_up.load(Ordering::Relaxed) {
                self.gave_up.store(true, Ordering::Relaxed);
                return Err(ureq::Error::Io(refused));
            }
            thread::sleep(pause.min(patience));
            pause = (pause * 2).min(PORT_PAUSE_MAX);
        }
    }
}

/// ureq's TLS, with the client configuration kept for the life of the agent.
///
/// ureq builds it anew for each connection when a request has settings of its own, and ours always have (the
/// deadline). Building it means reading the system's roots.
#[derive(Debug, Default)]
pub(super) struct Tls(RustlsConnector);

impl<In: Stream> Connector<In> for Tls {
    type Out = <RustlsConnector as Connector<In>>::Out;

    fn connect(&self, details: &ConnectionDetails, chained: Option<In>) -> Result<Option<Self::Out>, ureq::Error> {
        self.0.connect(&ConnectionDetails { request_level: false, ..again(details) }, chained)
    }
}

/// The same details once more; they are no `Clone`.
fn again<'a>(details: &ConnectionDetails<'a>) -> ConnectionDetails<'a> {
    ConnectionDetails {
        uri: details.uri,
        addrs: details.addrs.clone(),
        config: details.config,
        request_level: details.request_level,
        resolver: details.resolver,
        now: details.now,
        timeout: details.timeout,
        current_time: details.current_time.clone(),
        run_connector: details.run_connector.clone(),
        register_shutdown: details.register_shutdown.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(transport: &Transport, url: &str) -> Result<Vec<SocketAddr>, String> {
        let uri: Uri = url.parse().unwrap();
        let config = Config::builder().proxy(None).build();
        let found = Route::new(transport).resolve(&uri, &config, NextTimeout::default());
        found.map(|addresses| addresses.to_vec()).map_err(|error| error.to_string())
    }

    fn proxy(listener: &str) -> Transport {
        Transport::Proxy { listener: listener.to_owned() }
    }

    #[test]
    fn an_address_in_the_url_is_taken_as_it_is() {
        assert_eq!(resolve(&Transport::System, "https://10.0.0.7/x").unwrap(), ["10.0.0.7:443".parse().unwrap()]);
        assert_eq!(resolve(&Transport::System, "http://[::1]:8200/").unwrap(), ["[::1]:8200".parse().unwrap()]);
        assert_eq!(resolve(&Transport::System, "http://10.0.0.7/").unwrap(), ["10.0.0.7:80".parse().unwrap()]);
    }

    #[test]
    fn through_a_listener_every_name_leads_to_the_listener() {
        let there = ["127.0.0.1:15443".parse().unwrap()];
        assert_eq!(resolve(&proxy("127.0.0.1:15443"), "https://nobody.invalid/").unwrap(), there);
        assert!(resolve(&proxy("localhost:15443"), "https://nobody.invalid/").unwrap().contains(&there[0]));
    }

    #[test]
    fn a_name_without_address_is_told_with_the_systems_words() {
        let told = resolve(&Transport::System, "https://nobody.invalid/").unwrap_err();
        assert!(told.contains("nobody.invalid cannot be resolved"), "{told}");
        assert!(resolve(&proxy("not a listener"), "https://a/").unwrap_err().contains("not a listener"));
    }
}
