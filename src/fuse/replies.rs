//! Open virtual files: what is still to be read of each, and the replies of the control files.
//!
//! Replies belong to the open file that asked, as a stream, whatever its offset. A removal that was accepted gives a
//! second line when an attempt at it has ended; a read that comes before that waits, without a thread. A fresh open that
//! only reads gets the replies to that user's latest command, so that `echo ... > control; cat control` works.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuser::{Errno, PollEvents, PollNotifier, ReplyData};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::Fs;
use super::numbers::Incarnation;
use super::parked::Parked;
use super::work::thread;
use crate::control::{reply, report};
use crate::error::{Error, Kind, Result};
use crate::ledger::{Request, RequestName, State};
use crate::scope::Generation;

/// Unread replies of one open file, beyond which they are dropped.
pub(super) const MOST_WAITING_BYTES: usize = 128 << 10;
/// Users whose latest replies are kept.
const MOST_USERS: usize = 1024;
/// How long one read waits. It then ends as by a signal, so that a program which was told to end can: interrupts do not
/// reach the daemon.
const READ_WAIT: Duration = Duration::from_secs(1);

/// The replies to one write.
#[derive(Debug, Clone, Default)]
pub(super) struct Replies {
    pub(super) text: Vec<u8>,
    /// Removals that were accepted: a line follows for each.
    pub(super) removals: Vec<Generation>,
}

impl Replies {
    /// Adds the line of an attempt that ended, as often as it is awaited; whether it was.
    fn end(&mut self, generation: Generation, line: &str) -> bool {
        let before = self.removals.len();
        self.removals.retain(|awaited| *awaited != generation);
        for _ in self.removals.len()..before {
            self.text.extend_from_slice(line.as_bytes());
        }
        self.removals.len() < before
    }
}

#[derive(Debug, Default)]
struct Stream {
    /// What is still to be read, and to come.
    replies: Replies,
    /// This open file has asked something itself, or was given the latest replies.
    begun: bool,
    /// Whom the kernel wants to be told of a line.
    polled: Option<PollNotifier>,
}

impl Stream {
    fn take(&mut self, size: u32) -> Vec<u8> {
        let text = &mut self.replies.text;
        text.drain(..text.len().min(size as usize)).collect()
    }
}

#[derive(Debug, Default)]
struct Tables {
    next: u64,
    streams: HashMap<u64, Stream>,
    latest: HashMap<u32, Replies>,
}

impl Tables {
    /// Adds the line of an attempt that ended wherever it is awaited; whom to tell.
    fn end(&mut self, generation: Generation, line: &str) -> Vec<PollNotifier> {
        for latest in self.latest.values_mut() {
            latest.end(generation, line);
        }
        let reached = self.streams.values_mut().filter_map(|s| s.replies.end(generation, line).then_some(s));
        reached.filter_map(|stream| stream.polled.take()).collect()
    }
}

/// Open virtual files, and each user's latest replies.
pub(super) struct Streams {
    tables: Arc<Mutex<Tables>>,
    /// Reads that wait for a line.
    reads: Parked,
    incarnation: Incarnation,
}

impl Streams {
    pub(super) fn start(incarnation: Incarnation) -> Result<Streams> {
        Ok(Streams { tables: Arc::default(), reads: Parked::start("line", 1)?, incarnation })
    }

    /// Another daemon is asked: nobody who waits is answered.
    pub(super) fn abandon(&self, wait: Duration) {
        self.reads.abandon(wait);
    }

    /// The mount is gone: so are those who wait.
    pub(super) fn end(&self) {
        self.reads.end();
    }

    /// A new open file with this text; one without is a stream.
    pub(super) fn open(&self, text: Option<Vec<u8>>) -> u64 {
        let mut tables = self.tables.lock();
        tables.next += 1;
        let handle = self.incarnation.mark(tables.next);
        let begun = text.is_some();
        let replies = Replies { text: text.unwrap_or_default(), removals: Vec::new() };
        tables.streams.insert(handle, Stream { replies, begun, polled: None });
        handle
    }

    /// Whether any virtual file is open.
    pub(super) fn are_open(&self) -> bool {
        !self.tables.lock().streams.is_empty()
    }

    pub(super) fn close(&self, handle: u64) {
        self.tables.lock().streams.remove(&handle);
    }

    /// Reads a text.
    pub(super) fn read_at(&self, handle: u64, offset: u64, size: u32, reply: ReplyData) {
        let tables = self.tables.lock();
        let Some(stream) = tables.streams.get(&handle) else { return reply.error(Errno::EBADF) };
        let text = &stream.replies.text;
        let from = text.len().min(offset as usize);
        let to = text.len().min(from + size as usize);
        reply.data(&text[from..to]);
    }

    /// Reads a stream. A user who has asked nothing yet is given what `fresh` says.
    pub(super) fn read(
        &self,
        handle: u64,
        uid: u32,
        size: u32,
        waits: bool,
        fresh: impl FnOnce() -> Vec<u8>,
        reply: ReplyData,
    ) {
        let begun = self.tables.lock().streams.get(&handle).map(|s| s.begun);
        let fresh = if begun == Some(false) { Some(fresh()) } else { None };
        let seen = self.reads.changes();
        let mut tables = self.tables.lock();
        let latest = fresh.map(|fresh| tables.latest.get(&uid).map_or(fresh, |l| l.text.clone()));
        let Some(stream) = tables.streams.get_mut(&handle) else { return reply.error(Errno::EBADF) };
        if let (false, Some(latest)) = (stream.begun, latest) {
            stream.begun = true;
            stream.replies.text = latest;
        }
        if !stream.replies.text.is_empty() || stream.replies.removals.is_empty() {
            return reply.data(&stream.take(size));
        }
        drop(tables);
        if !waits {
            return reply.error(Errno::EAGAIN);
        }
        let (tables, mut reply) = (Arc::clone(&self.tables), Some(reply));
        let attempt = move |last: bool| {
            let mut tables = tables.lock();
            let stream = tables.streams.get_mut(&handle);
            let ready = stream.as_ref().is_none_or(|s| !s.replies.text.is_empty());
            if !ready && !last {
                return false;
            }
            match (stream.map(|s| s.take(size)), reply.take()) {
                (_, None) => {}
                (None, Some(reply)) => reply.error(Errno::EBADF),
                (Some(text), Some(reply)) if text.is_empty() => reply.error(Errno::EINTR),
                (Some(text), Some(reply)) => reply.data(&text),
            }
            true
        };
        self.reads.park(seen, Instant::now() + READ_WAIT, Box::new(attempt));
    }

    /// Adds the replies to a command.
    pub(super) fn add(&self, handle: u64, uid: u32, replies: Replies) {
        let mut tables = self.tables.lock();
        let mut polled = None;
        if let Some(stream) = tables.streams.get_mut(&handle) {
            if stream.replies.text.len() > MOST_WAITING_BYTES {
                // Nobody reads: the oldest replies go.
                stream.replies.text.clear();
            }
            stream.replies.text.extend_from_slice(&replies.text);
            stream.replies.removals.extend_from_slice(&replies.removals);
            stream.begun = true;
            polled = stream.polled.take();
        }
        // A write of blank lines, as a shell makes of the end of a text, has asked nothing.
        let asked = !replies.text.is_empty();
        if asked && (tables.latest.len() < MOST_USERS || tables.latest.contains_key(&uid)) {
            tables.latest.insert(uid, replies);
        }
        drop(tables);
        self.tell(polled);
    }

    /// Whether anybody waits for the end of an attempt.
    fn awaits(&self, generation: Generation) -> bool {
        let tables = self.tables.lock();
        let mut all = tables.streams.values().map(|s| &s.replies).chain(tables.latest.values());
        all.any(|replies| replies.removals.contains(&generation))
    }

    fn add_end(&self, generation: Generation, line: &str) {
        let polled = self.tables.lock().end(generation, line);
        self.tell(polled);
    }

    /// A line has come: whoever reads or polls goes on.
    fn tell(&self, polled: impl IntoIterator<Item = PollNotifier>) {
        self.reads.change();
        for notifier in polled {
            if let Err(e) = notifier.notify() {
                log::debug!("nobody polls any more: {e}");
            }
        }
    }

    /// What an open file is ready for; `notifier` is told when that changes.
    pub(super) fn poll(&self, handle: u64, events: PollEvents, notifier: Option<PollNotifier>) -> PollEvents {
        let mut tables = self.tables.lock();
        let mut ready = PollEvents::POLLOUT;
        if let Some(stream) = tables.streams.get_mut(&handle) {
            if !stream.begun || !stream.replies.text.is_empty() {
                ready |= PollEvents::POLLIN;
            }
            if notifier.is_some() {
                stream.polled = notifier;
            }
        }
        ready & events
    }
}

/// The line that tells how an attempt ended. An error that is left is of an attempt that failed, though the next one may
/// have begun.
fn end_line(request: &Request, deleted_records: u64) -> String {
    if request.state != State::Failed && (request.state == State::Complete || request.last_error.is_none()) {
        let mut fields = report::request(request);
        fields.insert("deleted_records".into(), deleted_records.into());
        return reply::ok(&fields);
    }
    let why = request.last_error.clone().unwrap_or_else(|| "the attempt failed".to_owned());
    let fields = report::request(&Request { state: State::Failed, ..request.clone() });
    let told = ["generation", "scope", "tenant", "state", "last_error"];
    let mut what: Map<String, Value> =
        fields.into_iter().filter(|(name, _)| told.contains(&name.as_str())).collect();
    what.insert("deleted_records".into(), deleted_records.into());
    reply::failure_of(&Error::new(Kind::Io(libc::EIO), why), &what)
}

impl Fs {
    /// Tells whoever waits for a removal how it is, if an attempt at it has ended: it may have done so before anybody
    /// waited.
    pub(super) fn tell_if_ended(&self, generation: Generation) {
        let Ok(request) = self.removals.request(&RequestName::Generation(generation)) else { return };
        let ended = match request.state {
            State::Complete | State::Failed => true,
            // Acknowledged here; others are still to do so.
            State::Applied => request.acked.iter().any(|id| id.to_string() == self.store.status().storage_id),
            State::Pending | State::Removing => false,
        };
        if ended {
            self.streams.add_end(generation, &end_line(&request, self.removals.deleted_records(&request)));
        }
    }
}

/// The thread that hands the ends of attempts to those who asked for them.
pub(super) fn start_outcomes(fs: &Arc<Fs>) -> Result<()> {
    let outcomes = fs.removals.outcomes();
    let fs = Arc::downgrade(fs);
    thread("fencefs-outcome", move || {
        while let Ok(generation) = outcomes.recv() {
            let Some(fs) = fs.upgrade() else { return };
            if !fs.streams.awaits(generation) {
                continue;
            }
            match fs.removals.request(&RequestName::Generation(generation)) {
                Ok(request) => {
                    let line = end_line(&request, fs.removals.deleted_records(&request));
                    fs.streams.add_end(generation, &line);
                }
                Err(e) => log::warn!("what became of generation {generation} cannot be told: {e}"),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::{Mode, Scope};

    fn waiting(text: &str, removals: &[u64]) -> Replies {
        let removals = removals.iter().map(|n| Generation(*n)).collect();
        Replies { text: text.into(), removals }
    }

    #[test]
    fn an_end_is_told_once_for_each_time_it_is_awaited() {
        let streams = Streams::start(Incarnation::default()).unwrap();
        let (one, other) = (streams.open(None), streams.open(None));
        streams.add(one, 7, waiting("a\n", &[1, 2, 1]));
        streams.add(other, 8, waiting("b\n", &[2]));
        assert!(streams.awaits(Generation(1)));
        streams.add_end(Generation(1), "end 1\n");
        streams.add_end(Generation(1), "end 1 again\n");
        assert!(!streams.awaits(Generation(1)));
        let text = |handle| String::from_utf8(streams.tables.lock().streams[&handle].replies.text.clone());
        assert_eq!(text(one).unwrap(), "a\nend 1\nend 1\n");
        assert_eq!(text(other).unwrap(), "b\n");
        streams.add_end(Generation(2), "end 2\n");
        assert_eq!(text(one).unwrap(), "a\nend 1\nend 1\nend 2\n");
        let latest = |uid| String::from_utf8(streams.tables.lock().latest[&uid].text.clone()).unwrap();
        assert_eq!(latest(7), "a\nend 1\nend 1\nend 2\n");
        assert_eq!(latest(8), "b\nend 2\n");
    }

    #[test]
    fn a_stream_is_readable_while_a_line_waits_and_writable_always() {
        let streams = Streams::start(Incarnation::default()).unwrap();
        let handle = streams.open(None);
        let both = PollEvents::POLLIN | PollEvents::POLLOUT;
        assert_eq!(streams.poll(handle, both, None), both, "the latest replies can be read");
        streams.add(handle, 0, waiting("", &[1]));
        assert_eq!(streams.poll(handle, both, None), PollEvents::POLLOUT);
        streams.add_end(Generation(1), "end\n");
        assert_eq!(streams.poll(handle, both, None), both);
        assert_eq!(streams.poll(handle, PollEvents::POLLOUT, None), PollEvents::POLLOUT);
    }

    #[test]
    fn a_failed_attempt_says_why_and_of_what() {
        let mut request = Request {
            generation: Generation(7),
            scope: Scope::Global,
            mode: Mode::Physical,
            id: None,
            targets: Vec::new(),
            acked: Vec::new(),
            retired: Vec::new(),
            state: State::Failed,
            last_error: Some("cannot unlink x".into()),
            failed_attempts: 1,
            submitted_ms: 5,
            completed_ms: None,
        };
        let line = end_line(&request, 3);
        assert!(line.starts_with("{\"ok\":false,\"error\":\"EIO\","), "{line}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["message"], "cannot unlink x");
        assert_eq!(
            (&value["generation"], &value["scope"], &value["state"]),
            (&7.into(), &"global".into(), &"failed".into())
        );
        assert!(value["tenant"].is_null());
        assert_eq!(value["last_error"], "cannot unlink x");
        for next in [State::Pending, State::Removing, State::Applied] {
            request.state = next;
            assert_eq!(end_line(&request, 3), line, "the next attempt has begun");
        }
        (request.state, request.last_error) = (State::Complete, None);
        assert!(end_line(&request, 3).starts_with("{\"ok\":true,"));
    }
}
