//! TLS: which roots count, and whose name.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use monky_deployd::drivers::http::Http;
use monky_deployd::drivers::transport::Transport;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::support::{PLAIN, Wire, get, ok, proxy, server, unreachable};

struct Secure {
    wire: Wire,
    folder: tempfile::TempDir,
}

impl Secure {
    /// A TLS server for `bao.test`, with its CA in a file.
    fn new() -> Secure {
        let mut authority = CertificateParams::new(vec![]).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["bao.test".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)
            .unwrap();
        let config = Arc::new(config);
        let wrap = move |stream: TcpStream| {
            Some(StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream))
        };
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        Secure { wire: Wire::wrapped(wrap, |_, _| ok("{}")), folder }
    }

    fn file(&self, name: &str, content: &str) -> Option<PathBuf> {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        Some(path)
    }

    fn client(&self, name: &str, ca_file: Option<PathBuf>) -> Http {
        let mut server = server(&format!("https://{name}:8200"), proxy(self.wire.at), 3000);
        server.ca_file = ca_file;
        Http::new(server)
    }

    fn ca(&self) -> Option<PathBuf> {
        Some(self.folder.path().join("ca.pem"))
    }
}

#[test]
fn the_configured_ca_is_trusted_for_the_servers_own_name_through_a_listener() {
    let secure = Secure::new();
    let http = secure.client("bao.test", secure.ca());
    for _ in 0..5 {
        assert_eq!(http.call(&PLAIN, &get("/v1")).unwrap().status, 200);
    }
    assert!(secure.wire.requests()[0].to_lowercase().contains("host: bao.test:8200\r\n"));
    assert_eq!(secure.wire.connections(), 1);
}

#[test]
fn another_name_is_refused_and_nothing_is_sent() {
    let secure = Secure::new();
    let told = unreachable(secure.client("other.test", secure.ca()).call(&PLAIN, &get("/v1")));
    assert!(told.contains("TLS failed") && told.contains("other.test"), "{told}");
    assert_eq!((secure.wire.requests().len(), secure.wire.connections()), (0, 1));
}

#[test]
fn without_the_configured_ca_only_the_systems_roots_count() {
    let secure = Secure::new();
    let told = unreachable(secure.client("bao.test", None).call(&PLAIN, &get("/v1")));
    assert!(told.contains("TLS failed") && told.contains("CA file"), "{told}");
    assert_eq!(secure.wire.requests().len(), 0);
}

#[test]
fn another_ca_is_not_trusted() {
    let (secure, other) = (Secure::new(), Secure::new());
    unreachable(secure.client("bao.test", other.ca()).call(&PLAIN, &get("/v1")));
    assert_eq!(secure.wire.requests().len(), 0);
}

#[test]
fn a_ca_file_without_a_usable_certificate_is_told_with_its_path_and_nothing_is_dialled() {
    let secure = Secure::new();
    let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (file, why) in [
        (Some(PathBuf::from("/nowhere/ca.pem")), "/nowhere/ca.pem cannot be read"),
        (secure.file("empty.pem", ""), "empty.pem holds no certificate"),
        (secure.file("text.pem", "hello"), "text.pem holds no certificate"),
        (secure.file("junk.pem", junk), "junk.pem holds a certificate that is no CA's"),
    ] {
        let told = unreachable(secure.client("bao.test", file).call(&PLAIN, &get("/v1")));
        assert!(told.contains(why), "{told}");
    }
    assert_eq!(secure.wire.connections(), 0);
}

#[test]
fn plain_http_does_not_look_at_the_ca_file() {
    let wire = Wire::http(|_, _| ok("{}"));
    let mut server = server(&wire.base(), Transport::System, 2000);
    server.ca_file = Some("/nowhere/ca.pem".into());
    assert_eq!(Http::new(server).call(&PLAIN, &get("/")).unwrap().status, 200);
}

#[test]
fn a_server_that_speaks_plain_http_on_the_tls_port_is_told_as_such() {
    let wire = Wire::wrapped(
        |mut stream| {
            use std::io::{Read, Write};
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
            None::<TcpStream>
        },
        |_, _| ok("{}"),
    );
    let http = Http::new(server("https://bao.test:8200", proxy(wire.at), 2000));
    let told = unreachable(http.call(&PLAIN, &get("/")));
    assert!(told.contains("plain http"), "{told}");
}
