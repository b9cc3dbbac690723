//! One fuzzer for every target; `FENCEFS_FUZZ_TARGET` names it.

#![no_main]

use std::sync::OnceLock;

use fencefs::fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<Target> = OnceLock::new();

fn target() -> Target {
    let name = std::env::var("FENCEFS_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.into_iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("FENCEFS_FUZZ_TARGET={name:?} is none of {:?}", TARGETS.map(|(known, _)| known)))
}

fuzz_target!(|bytes: &[u8]| (TARGET.get_or_init(target).1)(bytes));
