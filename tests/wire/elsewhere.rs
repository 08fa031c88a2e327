//! Another host: whatever leads there must not be followed.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A listener that only counts.
pub struct Elsewhere {
    at: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Elsewhere {
    pub fn start() -> Elsewhere {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        thread::spawn(move || {
            for stream in listener.incoming() {
                drop(stream);
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        Elsewhere { at, connections }
    }

    pub fn base(&self) -> String {
        format!("http://{}", self.at)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}
