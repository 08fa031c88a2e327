//! A small HTTP/1.1 server on a loopback port, for the stand-ins.
//!
//! Invariant: what a client sees is decided by the handler alone, including the ways a network breaks (closed, silent,
//! cut off), and dropping the server ends its port and every open connection.
//!
//! It is our own code because the usual small servers cannot close a connection without an answer, which is the very
//! thing the stand-ins have to do.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use serde_json::Value;

/// Bytes of a request's head; more is answered with 431.
const HEAD_CAP: usize = 64 * 1024;
/// Bytes of a request's body; more is answered with 413.
const BODY_CAP: usize = 64 * 1024 * 1024;

/// A request as it came in.
#[derive(Clone, Debug)]
pub struct Request {
    /// In capitals, as sent.
    pub method: String,
    /// Path and query, raw.
    pub target: String,
    headers: Vec<(String, String)>,
    /// The body, whole.
    pub body: Vec<u8>,
}

impl Request {
    /// The path, raw.
    pub fn path(&self) -> &str {
        self.target.split_once('?').map_or(self.target.as_str(), |(path, _)| path)
    }

    /// The query, raw; empty without one.
    pub fn query(&self) -> &str {
        self.target.split_once('?').map_or("", |(_, query)| query)
    }

    /// The first header of this name, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers; `Content-Length` is added.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// An answer without a body.
    pub fn empty(status: u16) -> Answer {
        Answer { status, headers: Vec::new(), body: Vec::new() }
    }

    /// An answer in JSON.
    pub fn json(status: u16, body: &Value) -> Answer {
        Answer::empty(status).header("Content-Type", "application/json").body(body.to_string())
    }

    /// With this header too.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Answer {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// With this body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Answer {
        self.body = body.into();
        self
    }
}

/// What becomes of a request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// It is answered.
    Answer(Answer),
    /// The connection is closed without a byte.
    Close,
    /// Nothing comes, until the client gives up or the server ends.
    Silence,
    /// These bytes, then the connection is closed.
    Raw(Vec<u8>),
}

/// How a call is to fail, for the stand-ins' knobs.
#[derive(Clone, Debug)]
pub enum Fault {
    /// This status and body instead of handling it.
    Status(u16, String),
    /// The same with headers, e.g. `Retry-After`.
    StatusWith(u16, Vec<(String, String)>, String),
    /// The connection is closed; the request was not handled.
    Drop,
    /// No answer ever; the request was not handled.
    Silence,
    /// The request **is** handled, and its answer is lost on the way.
    LoseAnswer,
    /// The request is handled, and its answer ends in the middle of the body.
    CutAnswer,
    /// Bytes that are no HTTP.
    Raw(Vec<u8>),
}

impl Fault {
    /// What the client sees; `handle` is called only if the fault lets the request through.
    pub fn reply(self, handle: impl FnOnce() -> Answer) -> Reply {
        match self {
            Fault::Status(status, body) => Reply::Answer(json_text(status, body)),
            Fault::StatusWith(status, headers, body) => {
                let mut answer = json_text(status, body);
                answer.headers.extend(headers);
                Reply::Answer(answer)
            }
            Fault::Drop => Reply::Close,
            Fault::Silence => Reply::Silence,
            Fault::LoseAnswer => {
                handle();
                Reply::Close
            }
            Fault::CutAnswer => {
                let bytes = on_the_wire(&handle(), false);
                // Every answer that is worth cutting ends with a body.
                Reply::Raw(bytes.get(..bytes.len().saturating_sub(2)).unwrap_or_default().to_vec())
            }
            Fault::Raw(bytes) => Reply::Raw(bytes),
        }
    }
}

fn json_text(status: u16, body: String) -> Answer {
    Answer::empty(status).header("Content-Type", "application/json").body(body)
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

struct Shared {
    handler: Box<Handler>,
    ending: AtomicBool,
    reachable: AtomicBool,
    next: AtomicU64,
    // Handles to the open connections, so that they can be closed from outside.
    open: Mutex<BTreeMap<u64, TcpStream>>,
}

impl Shared {
    fn serves(&self) -> bool {
        self.reachable.load(Ordering::SeqCst) && !self.ending.load(Ordering::SeqCst)
    }

    fn close_all(&self) {
        for stream in lock(&self.open).values() {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// A running server; dropping it ends it.
pub struct Server {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on a free loopback port and answers with `handler`, each connection in a thread of its own.
    ///
    /// # Errors
    /// If no port can be had.
    pub fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> io::Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            handler: Box::new(handler),
            ending: AtomicBool::new(false),
            reachable: AtomicBool::new(true),
            next: AtomicU64::new(0),
            open: Mutex::default(),
        });
        let accepting = {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("sandbox".to_owned()).spawn(move || accept(&listener, &shared))?
        };
        Ok(Server { addr, shared, accepting: Some(accepting) })
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// `host:port`.
    pub fn addr(&self) -> String {
        self.addr.to_string()
    }

    /// `false`: every open and every new connection is closed without a byte. The port is kept, so that nobody else gets it.
    pub fn set_reachable(&self, reachable: bool) {
        self.shared.reachable.store(reachable, Ordering::SeqCst);
        if !reachable {
            self.shared.close_all();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        self.shared.close_all();
        // Wakes the accepting thread; if that cannot be done, it is not waited for.
        let woken = TcpStream::connect(self.addr).is_ok();
        if let Some(thread) = self.accepting.take().filter(|_| woken) {
            // It ends without a value; a panic in it was printed already.
            let _ = thread.join();
        }
        // What was accepted in between.
        self.shared.close_all();
    }
}

/// The content of a lock. A poisoned one is used as it is: a test's panic must not hide behind a second one.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.ending.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let Ok(handle) = stream.try_clone() else { continue };
        let id = shared.next.fetch_add(1, Ordering::SeqCst);
        lock(&shared.open).insert(id, handle);
        let of_thread = Arc::clone(shared);
        let spawned = thread::Builder::new().name("sandbox".to_owned()).spawn(move || {
            // Whatever happens to a connection is the client's to notice.
            let _ = serve(stream, &of_thread);
            lock(&of_thread.open).remove(&id);
        });
        if spawned.is_err() {
            lock(&shared.open).remove(&id);
        }
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while shared.serves() {
        let Some(incoming) = read_request(&mut stream, &mut buffer)? else { break };
        let (request, keep) = match incoming {
            Ok(incoming) => incoming,
            Err(status) => {
                stream.write_all(&on_the_wire(&Answer::empty(status), true))?;
                break;
            }
        };
        // The switch may have been turned while the request was on its way.
        if !shared.serves() {
            break;
        }
        match (shared.handler)(&request) {
            Reply::Answer(mut answer) => {
                if request.method == "HEAD" {
                    answer.body.clear();
                }
                stream.write_all(&on_the_wire(&answer, !keep))?;
                if !keep {
                    break;
                }
            }
            Reply::Close => break,
            Reply::Silence => {
                io::copy(&mut stream, &mut io::sink())?;
                break;
            }
            Reply::Raw(bytes) => {
                stream.write_all(&bytes)?;
                break;
            }
        }
    }
    stream.shutdown(Shutdown::Both)
}

// A request and whether the connection is kept after it, or the status that refuses it.
type Incoming = Result<(Request, bool), u16>;

fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<Incoming>> {
    let (mut request, length) = loop {
        match parse_head(buffer) {
            Ok(Some((request, length))) => break (request, length),
            Ok(None) if buffer.len() > HEAD_CAP => return Ok(Some(Err(431))),
            Ok(None) => {
                if !read_more(stream, buffer)? {
                    return Ok(None);
                }
            }
            Err(_) => return Ok(Some(Err(400))),
        }
    };
    buffer.drain(..length);
    if request.header("Transfer-Encoding").is_some() {
        return Ok(Some(Err(411)));
    }
    let Ok(wanted) = request.header("Content-Length").unwrap_or("0").parse::<usize>() else {
        return Ok(Some(Err(400)));
    };
    if wanted > BODY_CAP {
        return Ok(Some(Err(413)));
    }
    if request.header("Expect").is_some() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    while buffer.len() < wanted {
        if !read_more(stream, buffer)? {
            return Ok(None);
        }
    }
    request.body = buffer.drain(..wanted).collect();
    let keep = !request.header("Connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    Ok(Some(Ok((request, keep))))
}

fn read_more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<bool> {
    let mut chunk = [0; 16 * 1024];
    let n = stream.read(&mut chunk)?;
    buffer.extend_from_slice(chunk.get(..n).unwrap_or_default());
    Ok(n > 0)
}

fn parse_head(buffer: &[u8]) -> Result<Option<(Request, usize)>, httparse::Error> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(length) = head.parse(buffer)? else { return Ok(None) };
    let request = Request {
        method: head.method.unwrap_or_default().to_owned(),
        target: head.path.unwrap_or_default().to_owned(),
        headers: head
            .headers
            .iter()
            .map(|header| (header.name.to_owned(), String::from_utf8_lossy(header.value).into_owned()))
            .collect(),
        body: Vec::new(),
    };
    Ok(Some((request, length)))
}

fn on_the_wire(answer: &Answer, last: bool) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {} {}\r\n", answer.status, reason(answer.status));
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if answer.status != 204 {
        head.push_str(&format!("Content-Length: {}\r\n", answer.body.len()));
    }
    if last {
        head.push_str("Connection: close\r\n");
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(&answer.body);
    bytes
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        307 => "Temporary Redirect",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo() -> Server {
        Server::start(|request| match request.path() {
            "/close" => Reply::Close,
            "/cut" => Fault::CutAnswer.reply(|| Answer::empty(200).body("whole")),
            _ => Reply::Answer(Answer::empty(200).body(request.body.clone())),
        })
        .unwrap()
    }

    fn talk(server: &Server, request: &str) -> String {
        let mut stream = TcpStream::connect(server.addr()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        // A reset shows as an error, which is as good as an end.
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn a_connection_is_kept_until_the_client_wants_it_closed() {
        let answer = talk(
            &echo(),
            "POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\noneGET /b HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\ntwo",
        );
        assert_eq!(
            answer,
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\noneHTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\ntwo"
        );
    }

    #[test]
    fn a_closed_call_gives_not_a_single_byte() {
        assert_eq!(talk(&echo(), "GET /close HTTP/1.1\r\n\r\n"), "");
    }

    #[test]
    fn a_cut_answer_promises_more_than_it_brings() {
        let answer = talk(&echo(), "GET /cut HTTP/1.1\r\n\r\n");
        assert!(answer.contains("Content-Length: 5\r\n") && answer.ends_with("\r\n\r\nwho"), "{answer}");
    }

    #[test]
    fn what_is_no_http_is_refused_and_closed() {
        assert!(talk(&echo(), "\x01\x02\r\n\r\n").starts_with("HTTP/1.1 400 "));
        assert!(talk(&echo(), "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").starts_with("HTTP/1.1 411 "));
    }

    #[test]
    fn an_unreachable_server_drops_what_is_open_and_comes_back_on_the_same_port() {
        let server = echo();
        let mut open = TcpStream::connect(server.addr()).unwrap();
        open.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut byte = [0; 1];
        open.read_exact(&mut byte).unwrap();
        server.set_reachable(false);
        let mut rest = Vec::new();
        let _ = open.read_to_end(&mut rest);
        assert_eq!(talk(&server, "GET / HTTP/1.1\r\n\r\n"), "");
        server.set_reachable(true);
        assert!(talk(&server, "GET / HTTP/1.1\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn a_dropped_server_refuses_connections() {
        let server = echo();
        let addr = server.addr();
        drop(server);
        assert_eq!(TcpStream::connect(addr).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
