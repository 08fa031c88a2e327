//! A server on 127.0.0.1 that does what a test tells it to, byte by byte.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use monky_deployd::drivers::http::{Ask, BODY_CAP, Http, Keep, Repeat, Server};
use monky_deployd::drivers::transport::Transport;
use monky_deployd::effects::{CallFault, Scrub};
use rustix::net::{AddressFamily, SocketType};

/// What a request is answered with.
pub enum Reply {
    /// These bytes; the connection stays open.
    Send(Vec<u8>),
    /// These bytes, then an orderly end.
    SendAndClose(Vec<u8>),
    /// A reset, after the request arrived.
    Reset,
    /// Nothing, for ever.
    Hang,
    /// These bytes, one every so often.
    Drip(Vec<u8>, Duration),
}

/// A complete HTTP answer.
pub fn answer(status: u16, headers: &str, body: &str) -> Reply {
    Reply::Send(format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len()).into_bytes())
}

/// A complete 200 with JSON.
pub fn ok(body: &str) -> Reply {
    answer(200, "Content-Type: application/json\r\n", body)
}

/// The server.
pub struct Wire {
    /// Where it listens.
    pub at: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

impl Wire {
    /// Answers the n-th request (from 0) with what `script` says.
    pub fn http(script: impl Fn(usize, &str) -> Reply + Send + Sync + 'static) -> Wire {
        Wire::wrapped(Some, script)
    }

    /// The same, with something around the TCP stream (none: the connection ends there).
    pub fn wrapped<S: Read + Write>(
        wrap: impl Fn(TcpStream) -> Option<S> + Send + Sync + 'static,
        script: impl Fn(usize, &str) -> Reply + Send + Sync + 'static,
    ) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let wire = Wire { at, requests: Arc::clone(&requests), connections: Arc::clone(&connections) };
        let shared = Arc::new((wrap, script));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared, requests) = (stream.unwrap(), Arc::clone(&shared), Arc::clone(&requests));
                connections.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || serve(stream, &shared.0, &shared.1, &requests));
            }
        });
        wire
    }

    /// The whole requests that arrived.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// How many connections were accepted.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// `http://127.0.0.1:port`.
    pub fn base(&self) -> String {
        format!("http://{}", self.at)
    }

    /// A client of it.
    pub fn client(&self) -> Http {
        client(&self.base(), Transport::System, 2000)
    }
}

fn serve<S: Read + Write>(
    stream: TcpStream,
    wrap: &impl Fn(TcpStream) -> Option<S>,
    script: &impl Fn(usize, &str) -> Reply,
    requests: &Mutex<Vec<String>>,
) {
    let raw = stream.try_clone().unwrap();
    let Some(mut stream) = wrap(stream) else { return };
    while let Some((request, extra)) = read_request(&mut stream) {
        let number = {
            let mut all = requests.lock().unwrap();
            all.push(request.clone());
            all.len() - 1
        };
        assert!(extra.is_empty(), "pipelined: {extra:?}");
        match script(number, &request) {
            Reply::Send(bytes) => {
                if stream.write_all(&bytes).and_then(|()| stream.flush()).is_err() {
                    return;
                }
            }
            Reply::SendAndClose(bytes) => {
                let _ = stream.write_all(&bytes).and_then(|()| stream.flush());
                let _ = raw.shutdown(Shutdown::Both);
                return;
            }
            Reply::Reset => return reset(raw),
            Reply::Hang => thread::sleep(Duration::from_secs(30)),
            Reply::Drip(bytes, pause) => {
                for byte in bytes {
                    if stream.write_all(&[byte]).is_err() {
                        return;
                    }
                    thread::sleep(pause);
                }
            }
        }
    }
}

/// Ends a connection with a reset instead of an orderly end.
fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

fn read_request(stream: &mut impl Read) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            let whole = end + 4 + length.map_or(0, |length| length.trim().parse::<usize>().unwrap());
            if bytes.len() >= whole {
                let extra = bytes.split_off(whole);
                return Some((String::from_utf8(bytes).unwrap(), extra));
            }
        }
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => return None,
            Ok(got) => bytes.extend_from_slice(&chunk[..got]),
        }
    }
}

/// A client with so many milliseconds for a call.
pub fn client(base: &str, transport: Transport, timeout_ms: u64) -> Http {
    Http::new(server(base, transport, timeout_ms))
}

/// Its settings.
pub fn server(base: &str, transport: Transport, timeout_ms: u64) -> Server {
    let timeout = Duration::from_millis(timeout_ms);
    Server { name: "testbed", base: base.to_owned(), transport, ca_file: None, timeout, seed: 7 }
}

/// Through a listener.
pub fn proxy(listener: impl ToString) -> Transport {
    Transport::Proxy { listener: listener.to_string() }
}

/// A GET.
pub fn get(path: &str) -> Ask<'_> {
    Ask { path, body: None, headers: &[], repeat: Repeat::Safe, keep: Keep::Whole(BODY_CAP) }
}

/// A POST that must not arrive twice.
pub fn post_once(path: &str) -> Ask<'_> {
    Ask { path, body: Some(b"{}"), headers: &[], repeat: Repeat::Never, keep: Keep::Whole(BODY_CAP) }
}

/// Knows one secret.
pub struct Knows(pub &'static str);

impl Scrub for Knows {
    fn scrub(&self, text: &str) -> String {
        text.replace(self.0, "***")
    }
}

/// Knows none that occurs.
pub const PLAIN: Knows = Knows("\u{1}never\u{1}");

/// The words of an unreachable server.
#[track_caller]
pub fn unreachable<T>(result: Result<T, CallFault>) -> String {
    match result {
        Err(CallFault::Unreachable { detail, .. }) => detail.as_str().to_owned(),
        Err(other) => panic!("not unreachable: {other:?}"),
        Ok(_) => panic!("an answer"),
    }
}

/// The words of nonsense.
#[track_caller]
pub fn nonsense<T>(result: Result<T, CallFault>) -> String {
    match result {
        Err(CallFault::Nonsense { detail }) => detail.as_str().to_owned(),
        Err(other) => panic!("not nonsense: {other:?}"),
        Ok(_) => panic!("an answer"),
    }
}

/// A port that is ours and refuses connections, until somebody listens on it.
pub struct Closed {
    /// Its address.
    pub at: SocketAddr,
    socket: OwnedFd,
}

impl Closed {
    /// Takes one.
    pub fn new() -> Closed {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let at = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
        Closed { at, socket }
    }

    /// After a while it answers one request.
    pub fn answers_one_after(self, pause: Duration) {
        thread::sleep(pause);
        rustix::net::listen(&self.socket, 8).unwrap();
        let (mut stream, _) = TcpListener::from(self.socket).accept().unwrap();
        read_request(&mut stream).unwrap();
        stream.write_all(b"HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\n{}").unwrap();
    }
}
