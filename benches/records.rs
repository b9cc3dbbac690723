//! Writes many small records into a store, without a mount, and ends without a clean stop: for `scripts/bench`.
//!
//! `records STORE COUNT BYTES`. Keys are `NNNN/NNNNNNN`, a thousand a directory.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use fencefs::config::StoreSettings;
use fencefs::key::{RecordKind, Tenant};
use fencefs::store::{Owner, Store, StoreRoot};
use fencefs::{Error, Kind, Result};

const KEYS_A_DIRECTORY: usize = 1000;
const THREADS: usize = 2;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [root, count, bytes] = arguments.as_slice() else {
        return Err(Error::new(Kind::Invalid, "usage: records STORE COUNT BYTES"));
    };
    let number = |text: &String| {
        text.parse::<usize>().map_err(|_| Error::new(Kind::Invalid, format!("{text} is no number")))
    };
    let (count, value) = (number(count)?, vec![b'v'; number(bytes)?]);
    let root = StoreRoot::lock(Path::new(root))?;
    let store = Store::open(root, &StoreSettings::default(), &[], &mut |_, _| {})?;
    std::thread::scope(|scope| {
        let write = |part: usize| {
            let (store, value) = (&store, &value);
            scope.spawn(move || {
                let directories = count.div_ceil(KEYS_A_DIRECTORY);
                (part..directories).step_by(THREADS).try_for_each(|n| fill(store, n, count, value))
            })
        };
        let parts: Vec<_> = (0..THREADS).map(write).collect();
        let failed = || Error::new(Kind::Invalid, "a thread panicked");
        parts.into_iter().try_for_each(|part| part.join().map_err(|_| failed())?)
    })?;
    store.sync_names()
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
