//! Renames that the model does not reach.

use std::os::unix::fs::FileExt;

use super::*;
use crate::os::RenameHow;

fn long(first: u8) -> Vec<u8> {
    [&[first], &[b'L'; 2500][..]].concat()
}

/// A copy would not see what the writer still writes.
#[test]
fn a_long_key_that_is_being_edited_is_not_renamed_by_copying() {
    let bench = Bench::new(StoreSettings::default());
    let dir = default_dir(&bench);
    let id = put(&bench, &long(b'1'), b"value").unwrap();
    let (file, _) = bench.begin_edit(id).unwrap().unwrap();
    let rename = || bench.rename((dir, &long(b'1')), (dir, &long(b'2')), RenameHow::Replace);
    assert_eq!(rename().unwrap_err().kind(), Kind::CrossTenant);
    file.write_all_at(b"V", 0).unwrap();
    bench.end_edit(id, &file).unwrap();
    rename().unwrap();
    assert_eq!(get(&bench, &long(b'2')).unwrap(), b"Value");
    bench.sound();
}

#[test]
fn a_copy_whose_original_cannot_be_removed_leaves_both() {
    let mut bench = Bench::new(StoreSettings::default());
    let dir = default_dir(&bench);
    put(&bench, &long(b'1'), b"value").unwrap();
    put(&bench, &long(b'2'), &[1; 20_000]).unwrap();
    if !bench.set_immutable(&long(b'1'), true) {
        return;
    }
    let done = bench.rename((dir, &long(b'1')), (dir, &long(b'2')), RenameHow::Replace);
    assert!(bench.set_immutable(&long(b'1'), false));
    assert!(done.is_err());
    for _ in 0..2 {
        assert_eq!(get(&bench, &long(b'1')).unwrap(), b"value");
        assert_eq!(get(&bench, &long(b'2')).unwrap(), b"value");
        bench.sound();
        bench.reopen();
    }
}
