//! Two threads at one key.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::os::RenameHow;

/// Runs `other` again and again beside `main`.
fn beside(store: &Arc<Store>, other: impl Fn(&Store) + Send + 'static, main: impl FnOnce()) {
    let stop = Arc::new(AtomicBool::new(false));
    let thread = std::thread::spawn({
        let (store, stop) = (Arc::clone(store), Arc::clone(&stop));
        move || {
            while !stop.load(Ordering::Relaxed) {
                other(&store);
            }
        }
    });
    main();
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}

/// Whoever holds a node finds it, whatever it is called at the moment.
#[test]
fn a_value_is_found_while_it_is_being_renamed() {
    let bench = Bench::new(StoreSettings::default());
    let id = put(&bench, b"a", b"value").unwrap();
    let dir = default_dir(&bench);
    let find = move |store: &Store| {
        assert!(store.open_value(id, None).unwrap().is_some());
        assert!(store.attr(id).unwrap().is_some());
        let (file, _) = store.begin_edit(id).unwrap().unwrap();
        store.end_edit(id, &file).unwrap();
        store.set_pinned(id, true).unwrap();
        assert!(store.attribute_file(id).unwrap().is_some());
    };
    beside(&bench, find, || {
        for _ in 0..3000 {
            bench.rename((dir, b"a"), (dir, b"b"), RenameHow::Replace).unwrap();
            bench.rename((dir, b"b"), (dir, b"a"), RenameHow::Replace).unwrap();
        }
    });
    assert_eq!(get(&bench, b"a").unwrap(), b"value");
    bench.sound();
}

/// A look at one of two values that change places counts its own blocks, not the other's.
#[test]
fn a_look_during_an_exchange_counts_the_right_file() {
    let bench = Bench::new(StoreSettings::default());
    let (small, large) = (vec![1; 10], vec![2; 50_000]);
    let a = put(&bench, b"a", &small).unwrap();
    put(&bench, b"b", &large).unwrap();
    let dir = default_dir(&bench);
    let look = move |store: &Store| assert_eq!(store.attr(a).unwrap().unwrap().attr.size_bytes, 10);
    beside(&bench, look, || {
        for _ in 0..3000 {
            bench.rename((dir, b"a"), (dir, b"b"), RenameHow::Exchange).unwrap();
        }
    });
    bench.sound();
}

/// A name is a value or a directory, never both, whoever comes first.
#[test]
fn a_value_and_a_directory_of_one_name() {
    let bench = Bench::new(StoreSettings::default());
    let dir = default_dir(&bench);
    let store = Arc::clone(&bench);
    let values = std::thread::spawn(move || {
        let mut published = 0;
        for _ in 0..2000 {
            match put_in(&store, dir, b"x", b"value") {
                Ok(_) => {
                    published += 1;
                    // A directory may have come meanwhile only after the value went.
                    let gone = store.unlink(dir, b"x");
                    assert!(gone.is_ok(), "{gone:?}");
                }
                Err(e) => assert_eq!(e.kind(), Kind::IsDirectory),
            }
        }
        published
    });
    for _ in 0..2000 {
        match bench.make_dir(dir, b"x", OWNER) {
            Ok(_) => bench.remove_dir(dir, b"x").unwrap(),
            Err(e) => assert_eq!(e.kind(), Kind::Exists),
        }
    }
    assert!(values.join().unwrap() > 0);
    bench.sound();
    assert_eq!(names(&bench), [""; 0]);
    assert!(records(&bench.root()).is_empty());
}
