//! Plays requests through the eviction order alone, without a store: for `scripts/replay --policy-only`.
//!
//! `replay RUNS POLICY[,POLICY...] KEYS[,KEYS...] [QUEUES LIFETIME GHOSTS]` reads requests from standard input, a line each: the
//! length of its last block, then its blocks. A request opens its blocks in order until one is missing, and publishes
//! the rest: each under another name first, then renamed, as clients do. RUNS says what tells the runs apart: `one`
//! opener for all requests, an opener for each `request`, or `none`. Prints a JSON object for each policy and number of keys.

use std::collections::HashMap;
use std::io::Read;
use std::time::Instant;

use fencefs::config::{EvictOptions, PolicyName};
use fencefs::store::NodeId;
use fencefs::store::evict::{self, Opener, Order, Slot, Use, Verdict};
use fencefs::{Error, Kind, Result};

/// Length of a block that is whole.
const WHOLE: u64 = 512;
/// The temporary name's hash.
const TEMPORARY: u64 = 0;

struct Request {
    last: u64,
    blocks: Vec<u64>,
}

#[derive(Clone, Copy)]
enum Who {
    One,
    Request,
    Nobody,
}

/// What a store of so many keys would have.
struct Keys {
    order: Order,
    capacity: usize,
    by_block: HashMap<u64, NodeId>,
    /// The block in each slot, and the generation of the slot.
    slots: Vec<(u64, u64)>,
    free: Vec<Slot>,
}

#[derive(Default)]
struct Counts {
    gets: u64,
    blocks: u64,
    prefix_hits: u64,
    puts: u64,
    evictions: u64,
}

/// A well-mixed hash of a block's number, as a digest is.
fn hash(block: u64) -> u64 {
    let mut z = block.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Keys {
    fn get(&mut self, block: u64, by: Option<Use>, size: u64) -> bool {
        let Some(&id) = self.by_block.get(&block) else { return false };
        let slots = &self.slots;
        self.order.opened(id, by, Some(size), |id| slots[id.slot() as usize].1 == id.0 >> 32);
        true
    }

    fn put(&mut self, block: u64, by: Option<Use>, size: u64) -> u64 {
        let mut evictions = 0;
        while self.order.len() >= self.capacity {
            let Some(victim) = self.order.victim(None, &mut |_| Verdict::Goes).slot else { break };
            let (old, _) = self.slots[victim as usize];
            self.by_block.remove(&old);
            self.order.evicted(victim, hash(old));
            self.release(victim);
            evictions += 1;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, 0));
            self.slots.len() as Slot - 1
        });
        self.slots[slot as usize].0 = block;
        let id = NodeId(self.slots[slot as usize].1 << 32 | u64::from(slot));
        self.publish(id, TEMPORARY, by, size);
        if let Some(old) = self.by_block.insert(block, id) {
            self.order.evicted(old.slot(), hash(block));
            self.release(old.slot());
        }
        self.publish(id, hash(block), by, size);
        evictions
    }

    fn publish(&mut self, id: NodeId, key: u64, by: Option<Use>, size: u64) {
        let slots = &self.slots;
        self.order.published(id, key, by, Some(size), |id| slots[id.slot() as usize].1 == id.0 >> 32);
    }

    fn release(&mut self, slot: Slot) {
        self.slots[slot as usize].1 += 1;
        self.free.push(slot);
    }
}

fn play(
    requests: &[Request],
    who: Who,
    policy: PolicyName,
    options: EvictOptions,
    capacity: usize,
) -> Counts {
    let order = Order::new(evict::new(policy, options));
    let mut keys = Keys { order, capacity, by_block: HashMap::new(), slots: Vec::new(), free: Vec::new() };
    let (mut counts, at) = (Counts::default(), Instant::now());
    for (number, request) in (1..).zip(requests) {
        let opener = match who {
            Who::One => Some(Opener(1)),
            Who::Request => Some(Opener(number)),
            Who::Nobody => None,
        };
        let by = opener.map(|opener| Use { opener, directory: 0, at });
        let length = |at: usize| if at + 1 == request.blocks.len() { request.last } else { WHOLE };
        let mut blocks = request.blocks.iter().enumerate().peekable();
        while let Some((at, block)) = blocks.peek() {
            counts.gets += 1;
            if !keys.get(**block, by, length(*at)) {
                break;
            }
            counts.prefix_hits += 1;
            blocks.next();
        }
        for (at, block) in blocks {
            counts.puts += 1;
            counts.evictions += keys.put(*block, by, length(at));
        }
        counts.blocks += request.blocks.len() as u64;
    }
    counts
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| Error::new(Kind::Invalid, format!("{text} is no number")))
}

fn read_requests() -> Result<Vec<Request>> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|e| Error::os("cannot read the requests", e))?;
    let request = |line: &str| {
        let mut numbers = line.split_whitespace().map(number);
        let last = numbers.next().unwrap_or(Ok(WHOLE))?;
        Ok(Request { last, blocks: numbers.collect::<Result<_>>()? })
    };
    text.lines().map(request).collect()
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ([runs, policies, sizes], options) = match arguments.as_slice() {
        [a, b, c] => ([*a, *b, *c], EvictOptions::default()),
        [a, b, c, queues, lifetime, ghosts] => {
            let options =
                EvictOptions::new(Some(number(queues)?), Some(number(lifetime)?), Some(number(ghosts)?))?;
            ([*a, *b, *c], options)
        }
        _ => {
            let usage = "usage: replay one|request|none POLICIES KEYS [QUEUES LIFETIME GHOSTS] < REQUESTS";
            return Err(Error::new(Kind::Invalid, usage));
        }
    };
    let who = match runs {
        "one" => Who::One,
        "request" => Who::Request,
        "none" => Who::Nobody,
        _ => return Err(Error::new(Kind::Invalid, format!("{runs} is not one, request or none"))),
    };
    let requests = read_requests()?;
    for policy in policies.split(',') {
        let name: PolicyName = policy.parse()?;
        for size in sizes.split(',') {
            let capacity = number(size)?;
            let Counts { gets, blocks, prefix_hits, puts, evictions } =
                play(&requests, who, name, options, capacity);
            println!(
                "{{\"policy\":\"{policy}\",\"keys\":{capacity},\"blocks\":{blocks},\"gets\":{gets},\
                 \"prefix_hits\":{prefix_hits},\"puts\":{puts},\"evictions\":{evictions}}}"
            );
        }
    }
    Ok(())
}
