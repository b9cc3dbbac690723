//! The policy code at a million keys: nanoseconds a touch and bytes a key, next to crates that cache.
//!
//! `cargo bench --bench policy`. Every cache is filled with the same keys and then touched in the same order: half of the
//! touches go to a sixteenth of the keys. Bytes are what the allocator was asked for, with what the keys and values take:
//! in the crates a key is a `u64` and a value empty; in the policies it is a slot, and the index has the rest.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use fencefs::config::{EvictOptions, PolicyName};
use fencefs::store::evict::{self, Admission};

const KEYS: u64 = 1_000_000;
const TOUCHES: u64 = 10_000_000;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted.
struct Counted;

#[allow(unsafe_code)]
// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// The keys that are touched, the same for everybody.
fn touched() -> Vec<u32> {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        random >> 33
    };
    (0..TOUCHES)
        .map(|_| (if next() & 1 == 0 { next() % (KEYS / 16) } else { next() % KEYS }) as u32)
        .collect()
}

fn measure<C>(name: &str, keys: &[u32], fill: impl FnOnce() -> C, mut touch: impl FnMut(&mut C, u32)) {
    let before = ALLOCATED.load(Ordering::Relaxed);
    let mut cache = fill();
    let bytes = ALLOCATED.load(Ordering::Relaxed) - before;
    let start = Instant::now();
    for key in keys {
        touch(&mut cache, *key);
    }
    let ns = start.elapsed().as_nanos() as f64 / keys.len() as f64;
    black_box(&mut cache);
    println!("{name:24} {ns:7.1} ns a touch {:7.1} bytes a key", bytes as f64 / KEYS as f64);
}

fn main() {
    let keys = touched();
    for (text, name) in PolicyName::NAMES {
        let filled = |ghosts: bool| {
            let mut policy = evict::new(name, EvictOptions::default());
            policy.reserve(KEYS as usize);
            for slot in 0..KEYS as u32 {
                policy.insert(slot, Admission::default());
            }
            for key in (0..2 * KEYS).filter(|_| ghosts) {
                // What is evicted comes back as another key.
                let slot = (key % KEYS) as u32;
                policy.evicted(slot, key.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                policy.insert(slot, Admission::default());
            }
            policy
        };
        measure(text, &keys, || filled(false), |policy, key| policy.touch(key, None));
        if name == PolicyName::MqChain {
            measure(
                "mq-chain, in runs of 16",
                &keys,
                || filled(true),
                |policy, key| {
                    policy.touch(key, (key % 16 != 0).then(|| key - 1));
                },
            );
        }
    }
    let size = usize::try_from(KEYS).expect("a million fits");
    measure(
        "crate lru",
        &keys,
        || {
            let mut cache = lru::LruCache::new(size.try_into().expect("above 0"));
            for key in 0..KEYS {
                cache.put(key, ());
            }
            cache
        },
        |cache, key| _ = black_box(cache.get(&u64::from(key))),
    );
    measure(
        "crate quick_cache",
        &keys,
        || {
            let mut cache = quick_cache::unsync::Cache::new(size);
            (0..KEYS).for_each(|key| cache.insert(key, ()));
            cache
        },
        |cache, key| _ = black_box(cache.get(&u64::from(key))),
    );
    measure(
        "crate moka",
        &keys,
        || {
            let cache = moka::sync::Cache::new(KEYS);
            (0..KEYS).for_each(|key| cache.insert(key, ()));
            cache.run_pending_tasks();
            cache
        },
        |cache, key| _ = black_box(cache.get(&u64::from(key))),
    );
}
