//! A way to a server that can be closed: what has been asked is seen, and waits until the gate is opened again.
//!
//! Invariant: bytes pass unchanged and in order, or not yet; nothing is answered here.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// A gate before a server; dropping it opens it and takes no further connection.
pub struct Gate {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    target: String,
    state: Mutex<State>,
    changed: Condvar,
    ended: AtomicBool,
}

#[derive(Default)]
struct State {
    asked: Vec<String>,
    /// Requests whose first line contains this wait.
    holds: Option<&'static str>,
    waiting: usize,
}

impl Gate {
    /// A gate before `target` (`host:port`), open.
    pub fn before(target: &str) -> Gate {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
            ended: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if of_thread.ended.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(client), shared) = (client, Arc::clone(&of_thread)) else { continue };
                thread::spawn(move || shared.pass(&client));
            }
        });
        Gate { port, shared }
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Holds back what asks for this from now on.
    pub fn close(&self, path_part: &'static str) {
        self.shared.state.lock().unwrap().holds = Some(path_part);
    }

    /// Lets everything through, also what waits.
    pub fn open(&self) {
        self.shared.state.lock().unwrap().holds = None;
        self.shared.changed.notify_all();
    }

    /// Somebody waits at it.
    pub fn holds_one(&self) -> bool {
        self.shared.state.lock().unwrap().waiting > 0
    }

    /// How many requests it has seen whose first line contains this.
    pub fn asked(&self, path_part: &str) -> usize {
        self.shared.state.lock().unwrap().asked.iter().filter(|line| line.contains(path_part)).count()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.open();
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn pass(&self, mut client: &TcpStream) {
        let Ok(server) = TcpStream::connect(&self.target) else { return };
        let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        thread::spawn(move || {
            let _ = io::copy(&mut answers, &mut back);
            let _ = back.shutdown(Shutdown::Both);
        });
        let mut buffer = [0; 64 << 10];
        while let Ok(count @ 1..) = client.read(&mut buffer) {
            self.look(&buffer[..count]);
            if (&server).write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = server.shutdown(Shutdown::Both);
    }

    /// Notes a request, and waits as long as it is held.
    fn look(&self, bytes: &[u8]) {
        let line = String::from_utf8_lossy(bytes.split(|byte| *byte == b'\r').next().unwrap_or_default()).into_owned();
        if !line.contains(" HTTP/1.") {
            return;
        }
        let mut state = self.state.lock().unwrap();
        state.asked.push(line.clone());
        state.waiting += 1;
        while state.holds.is_some_and(|part| line.contains(part)) {
            state = self.changed.wait(state).unwrap();
        }
        state.waiting -= 1;
    }
}
