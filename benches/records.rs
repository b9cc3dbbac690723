//! Writes many small records, without a mount: for `scripts/bench`.
//!
//! `records STORE COUNT BYTES` into a store, which is left without a clean stop; `records --legacy DIR COUNT BYTES` in
//! Mooncake's file-per-key layout. Keys are `NNNN/NNNNNNN` of the tenant `default`, a thousand a directory.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use fencefs::config::StoreSettings;
use fencefs::format::legacy::{self, FSDIR, StorageKey};
use fencefs::key::{Key, RecordKind, Tenant};
use fencefs::store::{Owner, Store, StoreRoot};
use fencefs::{Error, Kind, Result};

const KEYS_A_DIRECTORY: usize = 1000;
const THREADS: usize = 2;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number =
        |text: &str| text.parse().map_err(|_| Error::new(Kind::Invalid, format!("{text} is no number")));
    match arguments.as_slice() {
        ["--legacy", dir, count, bytes] => {
            let (count, value) = (number(count)?, vec![b'v'; number(bytes)?]);
            let dir = Path::new(dir).join(FSDIR);
            (0..=u8::MAX).try_for_each(|n| {
                let letter = |n: u8| char::from(b'a' + n % 16).to_string();
                let made = std::fs::create_dir_all(dir.join(letter(n)).join(letter(n / 16)));
                made.map_err(|e| Error::os("cannot make a directory", e))
            })?;
            in_threads(count, &|n| fill_legacy(&dir, n, count, &value))
        }
        [root, count, bytes] => {
            let (count, value) = (number(count)?, vec![b'v'; number(bytes)?]);
            let root = StoreRoot::lock(Path::new(root))?;
            let store = Store::open(root, &StoreSettings::default(), &[], &mut |_, _| {})?;
            in_threads(count, &|n| fill(&store, n, count, &value))?;
            store.sync_names()
        }
        _ => Err(Error::new(Kind::Invalid, "usage: records [--legacy] DIR COUNT BYTES")),
    }
}

/// Calls `fill` with the number of each directory that `count` keys take.
fn in_threads(count: usize, fill: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
    std::thread::scope(|scope| {
        let write = |part: usize| {
            let directories = count.div_ceil(KEYS_A_DIRECTORY);
            scope.spawn(move || (part..directories).step_by(THREADS).try_for_each(fill))
        };
        let parts: Vec<_> = (0..THREADS).map(write).collect();
        let failed = || Error::new(Kind::Invalid, "a thread panicked");
        parts.into_iter().try_for_each(|part| part.join().map_err(|_| failed())?)
    })
}

fn fill_legacy(dir: &Path, directory: usize, count: usize, value: &[u8]) -> Result<()> {
    for n in directory * KEYS_A_DIRECTORY..((directory + 1) * KEYS_A_DIRECTORY).min(count) {
        let key = Key::new(format!("{directory:04}/{n:07}").as_bytes())?;
        let storage_key = StorageKey::scoped(&Tenant::default_tenant(), &key);
        let mut record = legacy::head(&storage_key, value.len() as u64);
        record.extend_from_slice(value);
        let path = legacy::path(storage_key.as_bytes());
        let written = std::fs::write(dir.join(std::ffi::OsStr::from_bytes(&path)), record);
        written.map_err(|e| Error::os("cannot write a legacy record", e))?;
    }
    Ok(())
}

fn fill(store: &Arc<Store>, directory: usize, count: usize, value: &[u8]) -> Result<()> {
    let owner = Owner { mode: 0o755, uid: 0, gid: 0 };
    let top = store.tenant_node(&Tenant::default_tenant())?;
    let dir = store.make_dir(top, format!("{directory:04}").as_bytes(), owner)?;
    let owner = Owner { mode: 0o644, ..owner };
    for n in directory * KEYS_A_DIRECTORY..((directory + 1) * KEYS_A_DIRECTORY).min(count) {
        let mut staged = store.stage(dir, format!("{n:07}").as_bytes(), RecordKind::File, owner)?;
        (&**staged.file()).write_all(value).map_err(|e| Error::os("cannot write a value", e))?;
        store.publish(&mut staged, false)?;
    }
    Ok(())
}
