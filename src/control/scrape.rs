//! Metrics by HTTP, for who scrapes them: one page, `/metrics`, to one connection after another.
//!
//! Nothing is believed of who connects: a request has a longest length and a longest time, and says nothing but its first
//! line. There is no authentication; who can reach the address may read.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::limits;
use crate::error::{Error, Result};

/// An address that is taken, and not served yet.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

/// The endpoint while it is served; dropping it ends that.
#[derive(Debug)]
pub struct Scrapes {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Takes the address.
    ///
    /// # Errors
    /// What the system says, with the address.
    pub fn bind(address: SocketAddr) -> Result<Listener> {
        let taken = TcpListener::bind(address).and_then(|listener| {
            let address = listener.local_addr()?;
            Ok(Listener { listener, address })
        });
        taken.map_err(|e| {
            let advice = match e.kind() {
                io::ErrorKind::AddrInUse => " (another process has that port: give another one)",
                io::ErrorKind::AddrNotAvailable => " (this machine has no such address)",
                _ => "",
            };
            Error::os(format!("cannot listen for metrics on {address}{advice}"), e)
        })
    }

    /// Where it listens: with the port that was chosen where 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves what `text` gives at each request.
    pub fn serve(self, text: impl Fn() -> String + Send + 'static) -> Result<Scrapes> {
        let Listener { listener, address } = self;
        let over = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&over);
        let thread = std::thread::Builder::new()
            .name("fencefs-metrics".into())
            .spawn(move || accept(&listener, &ending, &text))
            .map_err(|e| Error::os("cannot start the thread fencefs-metrics", e))?;
        log::info!("metrics are at http://{address}/metrics");
        Ok(Scrapes { address, over, thread: Some(thread) })
    }
}

impl Drop for Scrapes {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // The thread waits for a connection. Without one it ends with the process.
        let woken = TcpStream::connect_timeout(&self.address, limits::SCRAPE_WAIT).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken)
            && thread.join().is_err()
        {
            log::error!("the thread that serves metrics panicked");
        }
    }
}

fn accept(listener: &TcpListener, over: &AtomicBool, text: &impl Fn() -> String) {
    loop {
        let accepted = listener.accept();
        if over.load(Ordering::SeqCst) {
            return;
        }
        match accepted {
            Ok((stream, peer)) => {
                if let Err(e) = answer(stream, text) {
                    log::debug!("a request for metrics from {peer} ended early: {e}");
                }
            }
            Err(e) => {
                // Descriptors may have run out: not again at once.
                log::warn!("cannot accept a connection for metrics: {e}");
                std::thread::sleep(limits::SCRAPE_RETRY);
            }
        }
    }
}

fn answer(mut stream: TcpStream, text: &impl Fn() -> String) -> io::Result<()> {
    let deadline = Instant::now() + limits::SCRAPE_WAIT;
    stream.set_write_timeout(Some(limits::SCRAPE_WAIT))?;
    let mut request = Vec::new();
    while !is_whole(&request) {
        if request.len() >= limits::SCRAPE_BYTES {
            return reply(
                &mut stream,
                "431 Request Header Fields Too Large",
                "the request is too long\n",
                false,
            );
        }
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let mut part = [0; 1024];
        match stream.read(&mut part)? {
            0 => return Ok(()),
            _ if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
            n => request.extend_from_slice(&part[..n]),
        }
    }
    match asked(&request) {
        Asked::Metrics { body } => reply(&mut stream, "200 OK", &text(), !body),
        Asked::Other => reply(&mut stream, "404 Not Found", "the metrics are at /metrics\n", false),
        Asked::Change => reply(&mut stream, "405 Method Not Allowed", "metrics are only read\n", false),
        Asked::Nonsense => reply(&mut stream, "400 Bad Request", "this is no request of HTTP\n", false),
    }
}

fn is_whole(request: &[u8]) -> bool {
    request.windows(4).any(|end| end == b"\r\n\r\n") || request.windows(2).any(|end| end == b"\n\n")
}

/// What the first line of a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Metrics { body: bool },
    Other,
    Change,
    Nonsense,
}

fn asked(request: &[u8]) -> Asked {
    let line = request.split(|b| *b == b'\n').next().unwrap_or_default();
    let Ok(line) = std::str::from_utf8(line) else { return Asked::Nonsense };
    let words: Vec<&str> = line.trim_end_matches('\r').split(' ').collect();
    let [method, target, version] = words[..] else { return Asked::Nonsense };
    if !version.starts_with("HTTP/1.") {
        return Asked::Nonsense;
    }
    let path = target.split('?').next().unwrap_or_default();
    match method {
        "GET" | "HEAD" if path == "/metrics" => Asked::Metrics { body: method == "GET" },
        "GET" | "HEAD" => Asked::Other,
        _ => Asked::Change,
    }
}

fn reply(stream: &mut TcpStream, status: &str, body: &str, head_only: bool) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if !head_only {
        stream.write_all(body.as_bytes())?;
    }
    stream.shutdown(std::net::Shutdown::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served() -> Scrapes {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.serve(|| "fencefs_keys 7\n".to_owned()).unwrap()
    }

    fn ask(scrapes: &Scrapes, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(scrapes.address).unwrap();
        stream.write_all(request).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn the_page_is_what_is_asked_for() {
        let scrapes = served();
        for request in ["GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "GET /metrics?a=b HTTP/1.0\n\n"] {
            let text = ask(&scrapes, request.as_bytes());
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
            assert!(
                text.contains("Content-Type: text/plain; version=0.0.4")
                    && text.contains("Content-Length: 15\r\n")
            );
            assert!(text.ends_with("\r\n\r\nfencefs_keys 7\n"), "{text}");
        }
        let head = ask(&scrapes, b"HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 15\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[test]
    fn everything_else_is_refused() {
        let scrapes = served();
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics/../etc HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET /metrics\r\n\r\n", "400"),
            ("GET  /metrics HTTP/1.1\r\n\r\n", "400"),
            ("\u{e9}\n\n", "400"),
            ("GET /metrics SPDY/3\r\n\r\n", "400"),
        ] {
            let text = ask(&scrapes, request.as_bytes());
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {text}");
            assert!(!text.contains("fencefs_keys"), "{request:?}");
        }
        // The listener is there for the next one after whoever left without a word, or asked for too much.
        drop(TcpStream::connect(scrapes.address).unwrap());
        let long = format!("GET /{} HTTP/1.1", "x".repeat(limits::SCRAPE_BYTES - 14));
        assert!(ask(&scrapes, long.as_bytes()).starts_with("HTTP/1.1 431 "));
        assert!(ask(&scrapes, b"GET /metrics HTTP/1.1\r\n\r\n").contains("fencefs_keys 7"));
    }

    #[test]
    fn who_says_nothing_keeps_the_others_waiting_for_a_while_only() {
        let scrapes = served();
        let _silent = TcpStream::connect(scrapes.address).unwrap();
        assert!(ask(&scrapes, b"GET /metrics HTTP/1.1\r\n\r\n").contains("fencefs_keys 7"));
    }

    #[test]
    fn an_address_is_given_back_and_one_that_is_taken_is_named() {
        let scrapes = served();
        let address = scrapes.address;
        let taken = Listener::bind(address).unwrap_err().to_string();
        assert!(
            taken.contains(&address.to_string()) && taken.contains("another process has that port"),
            "{taken}"
        );
        drop(scrapes);
        assert_eq!(Listener::bind(address).unwrap().address(), address);
    }
}
