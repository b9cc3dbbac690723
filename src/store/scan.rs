//! The walk of recovery: every record is validated before the store is ready.
//!
//! It changes nothing that is sound. Records that fail are quarantined; links, special files and strangers are left
//! where they are and reported. Whatever else fails ends the start, with the path: nothing of what was found is in the
//! index then, and the next start walks again from the beginning.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::Store;
use super::fill::{Batch, Seen};
use super::jobs::{self, Teller};
use super::object::{Found, is_obstacle, judge};
use super::order_file::Turns;
use super::tenants::Home;
use crate::error::{Kind, Result};
use crate::format::layout;
use crate::format::record::Record;
use crate::key::Digest;
use crate::os::{self, Attr, Dir, DirEntry, EntryType};

/// One shard directory of the upper level.
struct Job {
    home: Arc<Home>,
    upper: Vec<u8>,
}

struct Walk<'a> {
    store: &'a Store,
    turns: Turns,
    /// The quarantine is counted, then filled.
    quarantine: Mutex<()>,
}

impl Store {
    /// Makes the index what the disk holds: by the checkpoint of the clean stop that the store began with, if that can
    /// be believed, else by a walk.
    pub(super) fn recover(&self, stop: Option<u128>, progress: &mut dyn FnMut(&str, u64)) -> Result<()> {
        self.empty_staging()?;
        // Of a directory that others may have written to, no checkpoint tells.
        let stop = stop.filter(|_| self.attached.is_none());
        if self.restore(stop, progress) { Ok(()) } else { self.scan(progress) }
    }

    fn empty_staging(&self) -> Result<()> {
        for entry in self.staging.entries()? {
            let path = format!("{}/{}/{}", layout::DATA, layout::STAGING, entry.name.escape_ascii());
            if entry.kind == EntryType::File {
                let unlink = || -> Result<bool> {
                    step!("recover.staging");
                    self.staging.unlink(&entry.name)
                };
                unlink().map_err(|e| e.context(path))?;
            } else {
                log::warn!("{path} is no staged value; it is left where it is");
            }
        }
        Ok(())
    }

    /// Walks every tenant and fills the index.
    fn scan(&self, progress: &mut dyn FnMut(&str, u64)) -> Result<()> {
        let homes: Vec<Arc<Home>> = self.index.lock().tenants.iter().map(|t| Arc::clone(&t.home)).collect();
        let mut jobs = Vec::new();
        for home in homes {
            let uppers = levels(&home, &home.dir, "").map_err(|e| e.context(shown(&home, "")))?;
            jobs.extend(uppers.into_iter().map(|upper| Job { home: Arc::clone(&home), upper }));
        }
        let walk = Walk { store: self, turns: self.read_order(), quarantine: Mutex::new(()) };
        let upper = |job: &Job, told: &Teller<'_, Batch>| walk.upper(job, told);
        let count = &mut |count| progress("records", count);
        let mut batches = jobs::run(&self.walkers_at_start(), &jobs, upper, count)?;
        let found = batches.iter().map(|b| b.len() as u64).sum();
        let mut attached = self.scan_attached(&|digest| walk.turns.of(digest), progress)?;
        drop(walk);
        batches.extend(attached.take_batches());
        self.fill(&batches)?;
        self.count_scanned(attached)?;
        self.counters.scanned.store(found, Ordering::Relaxed);
        Ok(())
    }
}

impl Walk<'_> {
    fn upper(&self, job: &Job, told: &Teller<'_, Batch>) -> Result<Batch> {
        let Job { home, upper } = job;
        let name = String::from_utf8_lossy(upper).into_owned();
        let mut batch = Batch::new(home);
        let in_upper = |e: crate::error::Error| e.context(shown(home, &name));
        let Some(dir) = home.dir.open_dir_if_any(upper).map_err(in_upper)? else { return Ok(batch) };
        for lower in levels(home, &dir, &name).map_err(in_upper)? {
            if told.is_over() {
                return Ok(batch);
            }
            let shard = format!("{name}/{}", String::from_utf8_lossy(&lower));
            let before = batch.len();
            self.shard(home, (&dir, &lower), &shard, &mut batch)?;
            if batch.len() == before {
                prune(&dir, &lower).map_err(|e| e.context(shown(home, &shard)))?;
            }
            told.found((batch.len() - before) as u64);
        }
        if batch.len() == 0 {
            prune(&home.dir, upper).map_err(in_upper)?;
        }
        batch.finish();
        Ok(batch)
    }

    fn shard(
        &self,
        home: &Home,
        (above, lower): (&Dir, &[u8]),
        shard: &str,
        batch: &mut Batch,
    ) -> Result<()> {
        let list = || -> Result<Option<(Dir, Vec<DirEntry>)>> {
            step!("recover.list");
            let Some(dir) = above.open_dir_if_any(lower)? else { return Ok(None) };
            let entries = dir.entries_once()?;
            Ok(Some((dir, entries)))
        };
        let Some((dir, entries)) = list().map_err(|e| e.context(shown(home, shard)))? else { return Ok(()) };
        for entry in entries {
            let named = Digest::parse(&entry.name).filter(|_| is_in_shard(&entry.name, shard));
            let (Some(digest), EntryType::File) = (named, entry.kind) else {
                stranger(home, shard, &entry.name);
                continue;
            };
            self.record(home, &dir, (digest, &entry.name), batch).map_err(|e| {
                let path = layout::canonical_path(&home.tenant, home.epoch, digest);
                e.context(format!("cannot recover {path}"))
            })?;
        }
        Ok(())
    }

    fn record(
        &self,
        home: &Home,
        dir: &Dir,
        (digest, name): (Digest, &[u8]),
        batch: &mut Batch,
    ) -> Result<()> {
        step!("recover.open");
        let file = match dir.open_file(name, false) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(()),
            Err(e) if is_obstacle(&e) => {
                stranger(home, &layout::shard(digest), name);
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        step!("recover.judge");
        match judge(file, home, digest)? {
            (Found::Record(file, attr, record), Some(key)) => {
                let (kind, pinned) = (record.kind, record.pinned);
                let unverified = self.store.unclean && record.checksum.is_some() && !record.editing;
                let attr = self.settle(&file, attr, record)?;
                let turn = self.turns.of(digest);
                batch.push(&Seen { key: &key, kind, pinned, unverified, attached: false, attr: &attr, turn })
            }
            (Found::Invalid(why), _) => {
                let _one = self.quarantine.lock();
                step!("recover.quarantine");
                self.store.quarantine(home, digest, why)
            }
            _ => Ok(()),
        }
    }

    /// A record that was being edited when the daemon died takes its length from the file.
    fn settle(&self, file: &File, attr: Attr, mut record: Record) -> Result<Attr> {
        if !record.editing {
            return Ok(attr);
        }
        record.editing = false;
        record.payload_bytes = attr.size_bytes;
        record.checksum = None;
        step!("recover.settle");
        self.store.write_record(file, &record)?;
        os::stat(file)
    }
}

/// Removes a shard directory in which nothing was found; one that holds a stranger stays.
fn prune(above: &Dir, name: &[u8]) -> Result<()> {
    step!("recover.prune");
    match above.rmdir(name) {
        Err(e) if e.kind() != Kind::NotEmpty => Err(e),
        _ => Ok(()),
    }
}

/// The shard directories of one level; everything else there is a stranger.
fn levels(home: &Home, dir: &Dir, at: &str) -> Result<Vec<Vec<u8>>> {
    let mut levels = Vec::new();
    for entry in dir.entries()? {
        if entry.kind == EntryType::Dir && layout::is_shard_level(&entry.name) {
            levels.push(entry.name);
        } else {
            stranger(home, at, &entry.name);
        }
    }
    Ok(levels)
}

/// Whether a record's name belongs into the shard `hh/hh`.
fn is_in_shard(name: &[u8], shard: &str) -> bool {
    let shard = shard.as_bytes();
    name.get(..2) == shard.get(..2) && name.get(2..4) == shard.get(3..5)
}

/// A place below a home, for people.
fn shown(home: &Home, at: &str) -> String {
    let top = format!("{}/{}/{}/{}", layout::DATA, layout::TENANTS, home.tenant, home.epoch);
    if at.is_empty() { top } else { format!("{top}/{at}") }
}

fn stranger(home: &Home, at: &str, name: &[u8]) {
    log::warn!("{}/{} is no record; it is left where it is", shown(home, at), name.escape_ascii());
}
