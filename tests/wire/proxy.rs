//! A proxy on a loopback port that lets calls through, but one kind of them, with which it does what a test says.
//!
//! Invariant: each connection carries one request, so that what is done to one call is done to no other; and every request
//! that arrived is in the log, whatever became of it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// A call of either server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Checkin,
    Bundle,
    Lease,
    Report,
    Login,
    Lookup,
    Renew,
    Revoke,
    Read,
}

impl Call {
    pub const ALL: [Call; 9] = [
        Call::Checkin,
        Call::Bundle,
        Call::Lease,
        Call::Report,
        Call::Login,
        Call::Lookup,
        Call::Renew,
        Call::Revoke,
        Call::Read,
    ];

    fn of(head: &str) -> Call {
        let path = head.split(' ').nth(1).unwrap_or_default();
        match path {
            _ if path.ends_with("/checkin") => Call::Checkin,
            _ if path.contains("/bundles/") => Call::Bundle,
            _ if path.ends_with("/leases") => Call::Lease,
            _ if path.ends_with("/reports") => Call::Report,
            _ if path.ends_with("/login") => Call::Login,
            _ if path.ends_with("/lookup-self") => Call::Lookup,
            _ if path.ends_with("/renew-self") => Call::Renew,
            _ if path.ends_with("/revoke-self") => Call::Revoke,
            _ => Call::Read,
        }
    }

    /// It may be sent again when no answer came: it only looks, or carries an idempotency key.
    pub fn is_idempotent(self) -> bool {
        matches!(self, Call::Checkin | Call::Bundle | Call::Report | Call::Lookup | Call::Read)
    }

    pub fn is_tenancys(self) -> bool {
        matches!(self, Call::Checkin | Call::Bundle | Call::Lease | Call::Report)
    }
}

/// What becomes of a call.
#[derive(Clone, Debug)]
pub enum Does {
    /// Nobody listens any more.
    Refuse,
    /// The connection is reset before the request arrived.
    ResetBefore,
    /// The server got it; a reset comes back.
    ResetAfter,
    /// The server got it; the connection ends without a byte.
    CloseAfter,
    /// It is read, and nothing comes.
    Silence,
    /// The server got it, and nothing comes.
    SilenceAfter,
    /// The server's answer, so many bytes at once and then one a second.
    DripAfter(Cut),
    /// The server's answer ends here.
    CutAfter(Cut),
    /// These bytes instead of an answer, then an orderly end.
    Say(Vec<u8>),
    /// These bytes, then these for ever.
    Endless(Vec<u8>, Vec<u8>),
    /// These bytes, then the server's answer.
    Before(Vec<u8>),
}

/// Where an answer is cut.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    StatusLine,
    Headers,
    Body,
}

impl Cut {
    fn at(self, answer: &[u8]) -> usize {
        let head = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(0);
        match self {
            Cut::StatusLine => 9,
            Cut::Headers => head - 5,
            // Where there is no body the end of the headers is missing.
            Cut::Body if head + 4 == answer.len() => head + 2,
            Cut::Body => head + 4 + (answer.len() - head - 4) / 2,
        }
    }
}

/// What is to go wrong.
#[derive(Clone, Debug)]
pub struct Plan {
    pub call: Call,
    pub does: Does,
    /// So many requests reach this server before that call. Needed for what happens before a request arrives.
    pub before: usize,
    /// How often.
    pub times: usize,
}

#[derive(Default)]
struct State {
    plan: Option<Plan>,
    answered: usize,
    /// Whole requests: call and body.
    log: Vec<(Call, String)>,
    /// Connections that were reset before a request arrived.
    reset: usize,
    listener: Option<TcpListener>,
}

impl State {
    fn at_the_gate(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| {
            plan.times > 0 && plan.before == self.answered && matches!(plan.does, Does::Refuse | Does::ResetBefore)
        })
    }

    /// Stops listening when the next call is to be refused.
    fn close_if_refusing(&mut self) {
        if self.at_the_gate()
            && matches!(self.plan, Some(Plan { does: Does::Refuse, .. }))
            && let Some(listener) = self.listener.take()
        {
            // Ends the accept() that is under way too.
            rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        }
    }
}

/// The proxy.
pub struct Proxy {
    pub at: SocketAddr,
    upstream: SocketAddr,
    state: Arc<Mutex<State>>,
}

static HOSTS: AtomicU16 = AtomicU16::new(1);

impl Proxy {
    /// A proxy to a server, with an address of its own: nobody else gets its port while it is closed.
    pub fn start(upstream: SocketAddr) -> Proxy {
        let [high, low] = HOSTS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let listener = TcpListener::bind(SocketAddr::from(([127, 77, high, low.max(1)], 0))).unwrap();
        let proxy = Proxy { at: listener.local_addr().unwrap(), upstream, state: Arc::default() };
        proxy.listen(listener);
        proxy
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn listen(&self, listener: TcpListener) {
        self.state().listener = Some(listener.try_clone().unwrap());
        let (upstream, state) = (self.upstream, Arc::clone(&self.state));
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let state = Arc::clone(&state);
                thread::spawn(move || serve(stream, upstream, &state));
            }
        });
    }

    /// From now on this goes wrong. The log begins anew.
    pub fn arm(&self, plan: Plan) {
        let mut state = self.state();
        (state.plan, state.answered, state.reset) = (Some(plan), 0, 0);
        state.log.clear();
        state.close_if_refusing();
    }

    /// Everything works again. The log begins anew.
    pub fn disarm(&self) {
        let mut state = self.state();
        state.plan = None;
        state.log.clear();
        if state.listener.is_none() {
            drop(state);
            self.listen(TcpListener::bind(self.at).unwrap());
        }
    }

    /// The bodies of the requests of a call that arrived since.
    pub fn bodies(&self, call: Call) -> Vec<String> {
        self.state().log.iter().filter(|(one, _)| *one == call).map(|(_, body)| body.clone()).collect()
    }

    /// How many requests of a call arrived since.
    pub fn count(&self, call: Call) -> usize {
        self.bodies(call).len()
    }

    /// How many connections were reset before a request arrived.
    pub fn resets(&self) -> usize {
        self.state().reset
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(listener) = self.state().listener.take() {
            let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        }
    }
}

fn serve(mut stream: TcpStream, upstream: SocketAddr, state: &Mutex<State>) {
    {
        let mut state = state.lock().unwrap();
        if state.at_the_gate() {
            state.reset += 1;
            if let Some(plan) = &mut state.plan {
                plan.times -= 1;
            }
            return reset(&stream);
        }
    }
    let Some((head, body)) = read_message(&mut stream) else { return };
    let call = Call::of(&head);
    let does = {
        let mut state = state.lock().unwrap();
        state.log.push((call, String::from_utf8_lossy(&body).into_owned()));
        match &mut state.plan {
            Some(plan)
                if plan.call == call && plan.times > 0 && !matches!(plan.does, Does::Refuse | Does::ResetBefore) =>
            {
                plan.times -= 1;
                Some(plan.does.clone())
            }
            Some(_) | None => None,
        }
    };
    let forward = || {
        let mut to = TcpStream::connect(upstream).unwrap();
        to.write_all(head.as_bytes()).and_then(|()| to.write_all(&body)).unwrap();
        let (head, body) = read_message(&mut to).unwrap();
        let head = head.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        [head.as_bytes(), &body].concat()
    };
    match does {
        None => {
            let answer = forward();
            {
                let mut state = state.lock().unwrap();
                state.answered += 1;
                state.close_if_refusing();
            }
            say(&mut stream, &answer);
        }
        // These happen before a request arrives.
        Some(Does::Refuse | Does::ResetBefore) => {}
        Some(Does::ResetAfter) => {
            forward();
            reset(&stream);
        }
        Some(Does::CloseAfter) => drop(forward()),
        Some(Does::Silence) => until_gone(&mut stream),
        Some(Does::SilenceAfter) => {
            forward();
            until_gone(&mut stream);
        }
        Some(Does::DripAfter(cut)) => {
            let answer = forward();
            let (first, rest) = answer.split_at(cut.at(&answer));
            let mut gone = stream.write_all(first).is_err();
            for byte in rest {
                if gone {
                    return;
                }
                thread::sleep(Duration::from_secs(1));
                gone = stream.write_all(&[*byte]).is_err();
            }
        }
        Some(Does::CutAfter(cut)) => {
            let answer = forward();
            say(&mut stream, &answer[..cut.at(&answer)]);
        }
        Some(Does::Say(bytes)) => say(&mut stream, &bytes),
        Some(Does::Endless(first, rest)) => {
            let mut gone = stream.write_all(&first).is_err();
            while !gone {
                gone = stream.write_all(&rest).is_err();
            }
        }
        Some(Does::Before(bytes)) => {
            let answer = forward();
            say(&mut stream, &[bytes, answer].concat());
        }
    }
}

/// Says something and ends the connection in an orderly way.
fn say(stream: &mut TcpStream, bytes: &[u8]) {
    if stream.write_all(bytes).is_ok() && stream.shutdown(Shutdown::Write).is_ok() {
        until_gone(stream);
    }
}

/// Waits until the other side has closed.
fn until_gone(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    while stream.read(&mut [0; 64]).is_ok_and(|got| got > 0) {}
}

/// Ends a connection with a reset instead of an orderly end.
fn reset(stream: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
}

/// A message with a marked length: its head with the empty line, and its body.
fn read_message(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 8192];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end + 4].to_vec()).unwrap();
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
            });
            let whole = end + 4 + length.unwrap_or(0);
            if bytes.len() >= whole {
                return Some((head, bytes[end + 4..whole].to_vec()));
            }
        }
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => return None,
            Ok(got) => bytes.extend_from_slice(&chunk[..got]),
        }
    }
}
