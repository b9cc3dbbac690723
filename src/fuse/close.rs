//! FLUSH and RELEASE: the closes of a descriptor.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::{FileHandle, ReplyEmpty};

use super::Fs;
use super::files::{Caller, answer_empty};
use super::parked::Change;
use super::publish::Stale;
use super::requests::errno;
use crate::config::Durability;
use crate::error::{Kind, Result};
use crate::os;

impl Fs {
    /// FLUSH: one close(2) of a descriptor.
    pub(super) fn flush(self: &Arc<Self>, who: Caller, fh: FileHandle, reply: ReplyEmpty) {
        let Some(handle) = self.opens.handle(fh.0) else {
            // What was written for an earlier daemon was not published, and its writer must know.
            return match self.opens.missing(fh.0) {
                e if e.kind() == Kind::Stale => reply.error(errno(&e)),
                _ => reply.ok(),
            };
        };
        if let Err(e) = handle.admitted() {
            // Its lock may be held through a publication that is about to fail as well.
            let fs = Arc::clone(self);
            self.pool.run(move || {
                if let Some(writing) = &handle.writing {
                    fs.give_up(writing);
                }
                reply.error(errno(&e));
            });
            return;
        }
        if let Some(id) = handle.edited()
            && let Err(e) = self.store.closes_edit(id, &handle.file)
        {
            log::info!("what was written in place is not kept: {e}");
            return reply.error(errno(&e));
        }
        let fsyncs = self.store.settings().durability == Durability::Fsync;
        let Some(writing) = handle.writing.clone() else {
            if handle.edits.is_some() && fsyncs {
                self.pool.run(move || answer_empty(reply, os::sync_file(&*handle.file)));
            } else {
                reply.ok();
            }
            return;
        };
        let value = Arc::clone(&writing);
        let change = Change {
            waits: true,
            beside: self.publishes_slowly(&writing),
            reply,
            run: move |fs: &Arc<Fs>, _: &ReplyEmpty, []: [&[u8]; 0]| fs.flush_writing(&writing, who.tid),
            answer: move |fs: &Arc<Fs>, reply: ReplyEmpty, done: Result<Stale>| match done {
                Ok(stale) => fs.after_forgetting(stale, Box::new(move || reply.ok())),
                Err(e) => {
                    log::info!("a value was not published: {e}");
                    fs.give_up(&value);
                    reply.error(errno(&e));
                }
            },
        };
        self.change([], change);
    }

    /// RELEASE: the last close of an open file.
    pub(super) fn release_file(self: &Arc<Self>, fh: FileHandle, reply: ReplyEmpty) {
        let Some(handle) = self.opens.take_handle(fh.0) else { return reply.ok() };
        let last_writer = handle.writing.clone().filter(|w| w.handles.fetch_sub(1, Ordering::AcqRel) == 1);
        let fsyncs = self.store.settings().durability == Durability::Fsync;
        let settles_slowly = || {
            let size_bytes = || os::stat(&*handle.file).map_or(0, |a| a.size_bytes);
            handle.edits.is_some() && (fsyncs || self.is_summed_slowly(size_bytes()))
        };
        let slowly = last_writer.as_ref().map_or_else(settles_slowly, |w| self.publishes_slowly(w));
        let fs = Arc::clone(self);
        let finish = move || {
            let mut stale: Stale = None;
            if let Some(writing) = last_writer {
                let finished = match fs.replaces_nothing(&handle, &writing) {
                    Ok(true) => {
                        writing.staged.lock().discard();
                        fs.opens.settle(&writing);
                        Ok(None)
                    }
                    Ok(false) => fs.finish_writing(&writing),
                    Err(e) => Err(e),
                };
                match finished {
                    Ok(s) => stale = s,
                    Err(e) => {
                        fs.give_up(&writing);
                        if e.kind() == Kind::Stale {
                            log::debug!("a value was not published at its last close: {e}");
                        } else {
                            log::warn!("a value was not published at its last close: {e}");
                        }
                    }
                }
            }
            if let Some(node) = handle.edits {
                handle.open.edits.fetch_sub(1, Ordering::Relaxed);
                if let Err(e) = fs.store.end_edit(node, &handle.file)
                    && handle.admitted().is_ok()
                {
                    log::warn!("a value that was edited in place could not be settled: {e}");
                }
            }
            fs.leave(&handle.open);
            if handle.cached {
                fs.leave_cached(&handle.open);
            }
            fs.after_forgetting(stale, Box::new(move || reply.ok()));
        };
        if slowly { self.pool.run(finish) } else { finish() }
    }
}
