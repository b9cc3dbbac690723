//! Checks a store that nobody has open, and repairs what can be repaired without losing anything that a mount would
//! serve. Findings are values for a callback; nothing is printed here.
//!
//! INVARIANT: each repair is one rename, one unlink, one rmdir or one attribute, and what is left after any of them is a
//! store that the next run, or a mount, takes on from there. The ledger is read from a copy and never written.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::checkpoint::take_mark;
use super::content::read_sum;
use super::object::{self, is_obstacle};
use super::proof::{EpochDir, Visitor};
use super::root::{Held, Ledgered};
use super::trash::{self, Trashed};
use super::walkers::Walkers;
use crate::config::limits;
use crate::error::{Error, Kind, Result};
use crate::format::{layout, record, record::Record};
use crate::key::{Digest, Epoch, Key, RecordKind, Tenant};
use crate::os::{self, Attr, Dir, DirEntry, EntryType, RenameHow, Timespec, XattrMode};
use crate::scope::Generation;

/// What to do besides looking.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Repair what can be.
    pub repair: bool,
    /// Compare each content with its checksum.
    pub verify_data: bool,
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// The format file cannot be read.
    Superblock,
    /// The ledger is missing, damaged, another store's, or older than the data.
    Ledger,
    /// An epoch directory below the applied generation.
    Epoch,
    /// A value that was never published.
    Staging,
    /// What a removal took and has not deleted.
    Trash,
    /// A record that fails validation.
    Record,
    /// A record whose content does not have its checksum.
    Content,
    /// A record that was being edited.
    Unsettled,
    /// Something that cannot be read.
    Unreadable,
    /// Something that is none of the store's.
    Stranger,
    /// A symbolic link, which is none of the store's.
    Symlink,
    /// A device, socket or FIFO.
    Special,
    /// Something that was set aside before.
    Quarantined,
    /// A key that is a value and a directory.
    Duplicate,
    /// What a pending removal is about to take.
    Pending,
}

impl What {
    /// As listings spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            What::Superblock => "superblock",
            What::Ledger => "ledger",
            What::Epoch => "epoch",
            What::Staging => "staging",
            What::Trash => "trash",
            What::Record => "record",
            What::Content => "content",
            What::Unsettled => "unsettled",
            What::Unreadable => "unreadable",
            What::Stranger => "stranger",
            What::Symlink => "symlink",
            What::Special => "special",
            What::Quarantined => "quarantine",
            What::Duplicate => "duplicate",
            What::Pending => "pending",
        }
    }

    /// Whether the store is not as it should be. Everything else is worth knowing, and nobody's to change.
    pub fn is_error(self) -> bool {
        !matches!(
            self,
            What::Stranger
                | What::Symlink
                | What::Special
                | What::Quarantined
                | What::Duplicate
                | What::Pending
        )
    }
}

/// Something worth telling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where, below the store; bytes that are no printable ASCII as `\xNN`.
    pub path: String,
    /// Whose it is, or says it is.
    pub tenant: Option<Tenant>,
    /// Its key, where one can be read.
    pub key: Option<Key>,
    /// What it is about.
    pub what: What,
    /// What is wrong with it.
    pub why: String,
    /// Whether it is as it should be now.
    pub repaired: bool,
}

/// Who is told. Called from several threads.
pub trait Report: Sync {
    /// Something was found.
    fn found(&self, finding: Finding);
    /// How far it is: records so far.
    fn progress(&self, phase: &str, count: u64);
}

/// The sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Records looked at.
    pub records: u64,
    /// Contents that had their checksum.
    pub verified: u64,
    /// Contents without a checksum to compare with.
    pub unverifiable: u64,
    /// Findings that are errors.
    pub errors: u64,
    /// Those of them that were repaired.
    pub repaired: u64,
    /// Other findings.
    pub warnings: u64,
}

impl Summary {
    /// Errors that are still there.
    pub fn left(&self) -> u64 {
        self.errors - self.repaired
    }
}

/// Checks the store at `root`.
///
/// # Errors
/// [`Kind::Locked`] where a daemon has it; [`Kind::Corrupt`] where it is no store; and what the disk says before anything
/// could be looked at. Whatever is met later is a finding.
pub fn check(root: &Path, options: Options, report: &dyn Report) -> Result<Summary> {
    let held = Held::take(root)?;
    let nothing = |what, path: &str, e: &Error| Finding {
        path: path.to_owned(),
        tenant: None,
        key: None,
        what,
        why: e.to_string(),
        repaired: false,
    };
    let superblock = match held.superblock() {
        Ok(superblock) => superblock,
        Err(e) => {
            report.found(nothing(What::Superblock, layout::SUPERBLOCK, &e));
            return Ok(Summary { errors: 1, ..Summary::default() });
        }
    };
    let ledger = held.read_ledger(superblock.storage_id);
    let data = held.dir.open_dir_if_any(layout::DATA)?;
    let check = Check {
        report,
        // Without the ledger nobody knows what was removed: nothing is touched.
        repair: options.repair && ledger.is_ok(),
        verify_data: options.verify_data,
        sums: Sums::default(),
        serial: AtomicU64::new(Timespec::now().sec as u64 * 1_000_000_000),
        kept: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    };
    let ledger = match ledger {
        Ok(ledger) => Some(ledger),
        Err(e) => {
            check.tell(nothing(What::Ledger, layout::LEDGER, &e));
            None
        }
    };
    if let Some(data) = data {
        if check.repair {
            // What is repaired is not what the last clean stop left.
            take_mark(&data)?;
        }
        check.data(&data, ledger.as_ref())?;
    }
    Ok(check.sums.summary())
}

#[derive(Default)]
struct Sums {
    records: AtomicU64,
    verified: AtomicU64,
    unverifiable: AtomicU64,
    errors: AtomicU64,
    repaired: AtomicU64,
    warnings: AtomicU64,
}

impl Sums {
    fn summary(&self) -> Summary {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Summary {
            records: of(&self.records),
            verified: of(&self.verified),
            unverifiable: of(&self.unverifiable),
            errors: of(&self.errors),
            repaired: of(&self.repaired),
            warnings: of(&self.warnings),
        }
    }
}

struct Check<'a> {
    report: &'a dyn Report,
    repair: bool,
    verify_data: bool,
    sums: Sums,
    serial: AtomicU64,
    /// Entries of the quarantine.
    kept: AtomicUsize,
    stop: AtomicBool,
}

impl Check<'_> {
    fn tell(&self, finding: Finding) {
        let count = |n: &AtomicU64| n.fetch_add(1, Ordering::Relaxed);
        count(if finding.what.is_error() { &self.sums.errors } else { &self.sums.warnings });
        if finding.repaired {
            count(&self.sums.repaired);
        }
        self.report.found(finding);
    }

    /// Tells of something, after `repair` was tried where it is wanted; a repair that fails says why.
    fn tell_repaired(&self, mut finding: Finding, repair: impl FnOnce() -> Result<()>) {
        if self.repair {
            match repair() {
                Ok(()) => finding.repaired = true,
                Err(e) => finding.why = format!("{}; not repaired: {e}", finding.why),
            }
        }
        self.tell(finding);
    }

    fn finding(&self, what: What, path: String, why: impl Into<String>) -> Finding {
        Finding { path, tenant: None, key: None, what, why: why.into(), repaired: false }
    }

    /// What cannot be read is a finding, and everything else is still looked at.
    fn area(&self, path: &str, looked: Result<()>) {
        if let Err(e) = looked {
            self.tell(self.finding(What::Unreadable, path.to_owned(), e.to_string()));
        }
    }

    /// Something that is nobody's; `attr` says what.
    fn stranger(&self, path: String, tenant: Option<&Tenant>, attr: Option<Attr>, why: &str) {
        let what = match attr.map(|a| a.mode & libc::S_IFMT) {
            Some(libc::S_IFLNK) => What::Symlink,
            Some(libc::S_IFREG | libc::S_IFDIR) | None => What::Stranger,
            Some(_) => What::Special,
        };
        self.tell(Finding { tenant: tenant.cloned(), ..self.finding(what, path, why) });
    }

    fn data(&self, data: &Dir, ledger: Option<&Ledgered>) -> Result<()> {
        let shown = |name: &[u8]| format!("{}/{}", layout::DATA, name.escape_ascii());
        for entry in data.entries()? {
            let known = [layout::STAGING, layout::TRASH, layout::QUARANTINE, layout::TENANTS];
            if !known.iter().any(|name| name.as_bytes() == entry.name) {
                self.stranger(shown(&entry.name), None, data.stat(&entry.name)?, "it is none of the store's");
            }
        }
        let open = |name: &str| match data.open_dir_if_any(name) {
            Ok(dir) => dir,
            Err(e) => {
                self.area(&shown(name.as_bytes()), Err(e));
                None
            }
        };
        let quarantine = open(layout::QUARANTINE);
        if let Some(dir) = &quarantine {
            self.area(&shown(layout::QUARANTINE.as_bytes()), self.quarantine(dir));
        }
        if let Some(dir) = open(layout::STAGING) {
            self.area(&shown(layout::STAGING.as_bytes()), self.staging(&dir));
        }
        let trash = open(layout::TRASH);
        let places = Places { quarantine: quarantine.as_ref(), trash: trash.as_ref() };
        if let Some(dir) = &trash {
            self.area(&shown(layout::TRASH.as_bytes()), self.trash(dir, &places));
        }
        if let Some(dir) = open(layout::TENANTS) {
            self.area(&shown(layout::TENANTS.as_bytes()), self.tenants(&dir, ledger, &places));
        }
        if self.sums.repaired.load(Ordering::Relaxed) > 0 {
            rustix::fs::syncfs(data).map_err(|e| Error::os("cannot sync the store", e))?;
        }
        Ok(())
    }

    fn quarantine(&self, dir: &Dir) -> Result<()> {
        for entry in dir.entries()? {
            self.kept.fetch_add(1, Ordering::Relaxed);
            let path = format!("{}/{}/{}", layout::DATA, layout::QUARANTINE, entry.name.escape_ascii());
            let file =
                dir.open_file(&entry.name, false).ok().flatten().filter(|_| entry.kind == EntryType::File);
            let record = file.as_ref().and_then(decoded);
            let (tenant, key) = record.map(|r| (r.tenant, r.key)).unzip();
            let finding = self.finding(What::Quarantined, path, "it was set aside earlier");
            self.tell(Finding { tenant, key, ..finding });
        }
        Ok(())
    }

    fn staging(&self, dir: &Dir) -> Result<()> {
        for entry in dir.entries()? {
            let path = format!("{}/{}/{}", layout::DATA, layout::STAGING, entry.name.escape_ascii());
            if entry.kind != EntryType::File {
                self.stranger(path, None, dir.stat(&entry.name)?, "it is no staged value");
                continue;
            }
            let finding = self.finding(What::Staging, path, "it was never published");
            self.tell_repaired(finding, || self.step().and_then(|()| dir.unlink(&entry.name).map(drop)));
        }
        Ok(())
    }

    fn trash(&self, dir: &Dir, places: &Places<'_>) -> Result<()> {
        let trashed = trash::list(dir, &mut |path| self.stranger(path, None, None, "it is no removal's"))?;
        for trashed in &trashed {
            let finding =
                self.finding(What::Trash, trashed.shown(), "a removal took it and has not deleted it");
            let finding = Finding { tenant: Some(trashed.tenant.clone()), ..finding };
            self.tell_repaired(finding, || self.finish(dir, trashed, places));
        }
        if self.repair {
            for entry in dir.entries()?.iter().filter(|e| layout::parse_epoch(&e.name).is_some()) {
                self.prune(dir, &entry.name);
            }
        }
        Ok(())
    }

    fn walkers(&self) -> Walkers<'_> {
        Walkers::alone(limits::START_THREADS, &self.stop)
    }

    /// Deletes what a removal took: records that are proven the tenant's; others are set aside.
    fn finish(&self, dir: &Dir, trashed: &Trashed, places: &Places<'_>) -> Result<()> {
        let Some(above) = dir.open_dir_if_any(trashed.generation.to_string())? else { return Ok(()) };
        let Some(epoch) = above.open_dir_if_any(&trashed.name)? else { return Ok(()) };
        let finish = Finish { check: self, tenant: &trashed.tenant, places };
        let shown = trashed.shown();
        let walk = EpochDir { dir: &epoch, tenant: &trashed.tenant, shown: &shown };
        walk.walk(&self.walkers(), &finish)?;
        above.rmdir(&trashed.name).map(drop)
    }

    fn tenants(&self, dir: &Dir, ledger: Option<&Ledgered>, places: &Places<'_>) -> Result<()> {
        for entry in dir.entries()? {
            let path = format!("{}/{}/{}", layout::DATA, layout::TENANTS, entry.name.escape_ascii());
            match Tenant::new(&entry.name) {
                Ok(tenant) if entry.kind == EntryType::Dir => {
                    self.area(&path, self.tenant(dir, &tenant, &path, ledger, places));
                }
                _ => self.stranger(path, None, dir.stat(&entry.name)?, "it is no tenant's directory"),
            }
        }
        Ok(())
    }

    fn tenant(
        &self,
        tenants: &Dir,
        tenant: &Tenant,
        shown: &str,
        ledger: Option<&Ledgered>,
        places: &Places<'_>,
    ) -> Result<()> {
        let top = tenants.open_dir(tenant.as_str())?;
        let mut epochs = Vec::new();
        for entry in top.entries()? {
            match layout::parse_epoch(&entry.name).filter(|_| entry.kind == EntryType::Dir) {
                Some(epoch) => epochs.push(epoch),
                None => {
                    let path = format!("{shown}/{}", entry.name.escape_ascii());
                    self.stranger(path, Some(tenant), top.stat(&entry.name)?, "it is no epoch directory");
                }
            }
        }
        let pending = ledger.and_then(|l| l.pending_of(tenant));
        let newest = epochs.iter().max().copied().unwrap_or_default();
        let counts = ledger.map_or(newest, |l| l.applied.epoch_of(tenant).max(pending.unwrap_or_default()));
        for epoch in epochs {
            let path = format!("{shown}/{epoch}");
            let of =
                |what, why| Finding { tenant: Some(tenant.clone()), ..self.finding(what, path.clone(), why) };
            if epoch == counts {
                self.area(&path, self.epoch(&top, tenant, epoch, &path, places));
            } else if epoch > counts {
                let why = format!(
                    "it is of a removal that {} does not know: restore the newest one",
                    layout::LEDGER
                );
                self.tell(of(What::Ledger, why));
            } else if pending.is_some() {
                self.tell(of(What::Pending, format!("removal {counts}, which is pending, takes it")));
            } else if ledger.is_some() {
                let why = format!("it is below the applied generation {counts}");
                self.tell_repaired(of(What::Epoch, why), || {
                    self.discard(&top, tenant, (epoch, counts), places)
                });
            }
        }
        Ok(())
    }

    /// Takes a stale epoch directory from its tenant, and deletes it.
    fn discard(&self, top: &Dir, tenant: &Tenant, epochs: (Epoch, Epoch), places: &Places<'_>) -> Result<()> {
        let trash = places.trash.ok_or_else(|| Error::new(Kind::NotFound, "there is no data/.trash"))?;
        let (stale, applied) = epochs;
        self.step()?;
        let trashed = Trashed {
            generation: Generation(applied.0),
            tenant: tenant.clone(),
            epoch: stale,
            name: format!("{tenant}@{stale}.{}", self.next_serial()),
        };
        let into = trash.ensure_dir(trashed.generation.to_string(), 0o700)?;
        top.rename(stale.to_string(), &into, &trashed.name, RenameHow::NoReplace)?;
        self.finish(trash, &trashed, places)?;
        self.prune(trash, trashed.generation.to_string().as_bytes());
        Ok(())
    }

    fn epoch(
        &self,
        top: &Dir,
        tenant: &Tenant,
        epoch: Epoch,
        shown: &str,
        places: &Places<'_>,
    ) -> Result<()> {
        let Some(dir) = top.open_dir_if_any(epoch.to_string())? else { return Ok(()) };
        let look = Look { check: self, dir: &dir, tenant, epoch, places };
        EpochDir { dir: &dir, tenant, shown }.walk(&self.walkers(), &look)
    }

    /// Sets a record or a stranger aside; nothing is ever deleted to make room.
    fn set_aside(&self, dir: &Dir, name: &[u8], called: &str, places: &Places<'_>) -> Result<()> {
        let to =
            places.quarantine.ok_or_else(|| Error::new(Kind::NotFound, "there is no data/.quarantine"))?;
        if self.kept.fetch_add(1, Ordering::Relaxed) >= limits::QUARANTINED_RECORDS {
            return Err(Error::new(Kind::NotEmpty, "data/.quarantine is full: empty it"));
        }
        self.step()?;
        dir.rename(name, to, format!("{called}.{}", self.next_serial()), RenameHow::NoReplace)
    }

    fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// Right before something is changed.
    fn step(&self) -> Result<()> {
        step!("fsck.repair");
        Ok(())
    }

    /// Removes a directory if it is empty.
    fn prune(&self, above: &Dir, name: &[u8]) {
        if let Err(e) = above.rmdir(name) {
            log::debug!("a directory stays: {e}");
        }
    }
}

/// Where things go.
struct Places<'a> {
    quarantine: Option<&'a Dir>,
    trash: Option<&'a Dir>,
}

/// Deletes what is proven, sets aside what is not.
struct Finish<'a> {
    check: &'a Check<'a>,
    tenant: &'a Tenant,
    places: &'a Places<'a>,
}

impl Visitor for Finish<'_> {
    fn record(&self, shard: &Dir, entry: &DirEntry, _: &File, _: RecordKind) -> Result<()> {
        self.check.step()?;
        shard.unlink(&entry.name).map(drop)
    }

    fn stranger(&self, dir: &Dir, name: &[u8], _: &str, _: &str) -> Result<()> {
        self.check.set_aside(dir, name, &format!("{}.stranger", self.tenant), self.places)
    }

    fn walked(&self, above: &Dir, name: &[u8]) -> Result<()> {
        above.rmdir(name).map(drop)
    }
}

/// Looks at the records of the epoch that counts.
struct Look<'a> {
    check: &'a Check<'a>,
    dir: &'a Dir,
    tenant: &'a Tenant,
    epoch: Epoch,
    places: &'a Places<'a>,
}

impl Look<'_> {
    fn path(&self, digest: Digest) -> String {
        layout::canonical_path(self.tenant, self.epoch, digest)
    }

    /// A record that is to be set aside.
    fn bad(&self, what: What, shard: &Dir, digest: Digest, key: Option<Key>, why: &str) {
        let finding = self.check.finding(what, self.path(digest), why);
        let finding = Finding { tenant: Some(self.tenant.clone()), key, ..finding };
        self.check.tell_repaired(finding, || {
            let (name, called) = (digest.to_string(), format!("{}.{digest}", self.tenant));
            self.check.set_aside(shard, name.as_bytes(), &called, self.places)
        });
    }

    fn sound(&self, shard: &Dir, digest: Digest, file: &File, found: (Attr, Record, Key)) -> Result<()> {
        let (attr, mut record, key) = found;
        let of = |what, why: &str| Finding {
            tenant: Some(self.tenant.clone()),
            key: Some(key.clone()),
            ..self.check.finding(what, self.path(digest), why)
        };
        if record.kind == RecordKind::Directory {
            let value = Digest::of(self.tenant, key.as_bytes(), RecordKind::File);
            if self.dir.stat(format!("{}/{value}", layout::shard(value)))?.is_some() {
                self.check.tell(of(What::Duplicate, "the key is a directory and a value"));
            }
            return Ok(());
        }
        if record.editing {
            let finding = of(What::Unsettled, "it was being edited when its daemon ended");
            record.editing = false;
            record.payload_bytes = attr.size_bytes;
            record.checksum = None;
            self.check.tell_repaired(finding, || {
                self.check.step()?;
                os::xattr_set(file, record::XATTR, &record.encode()?, XattrMode::Set)
            });
        }
        if !self.check.verify_data {
            return Ok(());
        }
        let count = |n: &AtomicU64| n.fetch_add(1, Ordering::Relaxed);
        match record.checksum {
            None => drop(count(&self.check.sums.unverifiable)),
            Some(sum) => match read_sum(file) {
                Ok((found, _)) if found == sum => drop(count(&self.check.sums.verified)),
                Ok(_) => {
                    let why = "its content does not have its checksum";
                    self.bad(What::Content, shard, digest, Some(key), why);
                }
                Err(e) => self.check.tell(of(What::Unreadable, &e.to_string())),
            },
        }
        Ok(())
    }
}

impl Visitor for Look<'_> {
    fn record(&self, shard: &Dir, entry: &DirEntry, file: &File, _: RecordKind) -> Result<()> {
        let count = self.check.sums.records.fetch_add(1, Ordering::Relaxed) + 1;
        self.check.report.progress("records", count);
        let Some(digest) = Digest::parse(&entry.name) else { return Ok(()) };
        match object::judge_file(file, self.tenant, self.epoch, digest)? {
            Ok(found) => self.sound(shard, digest, file, found),
            Err(why) => {
                self.bad(What::Record, shard, digest, decoded(file).map(|r| r.key), why);
                Ok(())
            }
        }
    }

    fn stranger(&self, dir: &Dir, name: &[u8], at: &str, why: &str) -> Result<()> {
        let attr = dir.stat(name)?;
        let here = |d: &Digest| at.ends_with(&format!("/{}", layout::shard(*d)));
        // In the place of a record, by its name: a mount sets it aside as well.
        if let Some(digest) = Digest::parse(name).filter(here)
            && attr.is_some_and(|a| a.is_file())
        {
            let record = match dir.open_file(name, false) {
                Ok(file) => file.as_ref().and_then(decoded),
                Err(e) if is_obstacle(&e) => None,
                Err(e) => return Err(e),
            };
            self.bad(What::Record, dir, digest, record.map(|r| r.key), why);
        } else {
            let path = format!("{at}/{}", name.escape_ascii());
            self.check.stranger(path, Some(self.tenant), attr, why);
        }
        Ok(())
    }

    fn walked(&self, above: &Dir, name: &[u8]) -> Result<()> {
        if self.check.repair {
            self.check.prune(above, name);
        }
        Ok(())
    }
}

/// The metadata of a file, if it has any that can be read.
fn decoded(file: &File) -> Option<Record> {
    let packed = os::xattr_get(file, record::XATTR, record::MAX_XATTR_BYTES + 64).ok().flatten()?;
    Record::decode(&packed).ok()
}
