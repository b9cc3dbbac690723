//! What may be seen in a storm, and what may not.
//!
//! A clock of one number orders what the threads do. A value carries when its file was open (`opened`, taken after
//! open(2) returned) and the epoch told before that. A removal has the time before it was asked for (`begun`) and the
//! time after its acknowledgement was seen (`ended`). A key has *candidates*: the states that it may be in after the last
//! operation on it, of which there is more than one when the daemon died in the middle. Each key has one writer.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64;

/// A value, and all that it says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) tenant: String,
    pub(crate) key: String,
    pub(crate) serial: u64,
    /// The epoch that the control file told before the write.
    pub(crate) told: u64,
    /// Whether `user.fencefs.epoch` was set to it: then the value is of this epoch or of none.
    pub(crate) conditional: bool,
    /// Before anything of this write.
    pub(crate) begun: u64,
    /// After its file was open.
    pub(crate) opened: u64,
    pub(crate) length: u64,
}

impl Value {
    /// Head, body, checksum: text.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = format!(
            "{} {} {} {} {} {} {} {}\n",
            self.tenant,
            self.key,
            self.serial,
            self.told,
            self.conditional,
            self.begun,
            self.opened,
            self.length
        );
        let body = format!("{}:{}/{};", self.serial, self.tenant, self.key);
        text.extend(body.chars().cycle().take(self.length as usize));
        let sum = xxh3_64(text.as_bytes());
        text.push_str(&format!("\n{sum:016x}"));
        text.into_bytes()
    }

    /// The value that these bytes are, whole and unmixed; else what is wrong with them.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Value, String> {
        let why =
            |what: &str| format!("{what}, {} bytes: {:?}", bytes.len(), bytes.get(..120).unwrap_or(bytes));
        let text = std::str::from_utf8(bytes).map_err(|_| why("not text"))?;
        let head: Vec<&str> = text.lines().next().unwrap_or_default().split(' ').collect();
        let [tenant, key, numbers @ ..] = &head[..] else { return Err(why("no head")) };
        let [serial, told, conditional, begun, opened, length] = numbers else {
            return Err(why("a cut head"));
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| why("no number in the head"));
        let value = Value {
            tenant: (*tenant).to_owned(),
            key: (*key).to_owned(),
            serial: number(serial)?,
            told: number(told)?,
            conditional: *conditional == "true",
            begun: number(begun)?,
            opened: number(opened)?,
            length: number(length)?,
        };
        if value.encode() == bytes { Ok(value) } else { Err(why("its checksum or body is not its own")) }
    }
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// With an error that says that nothing happened.
    Refused,
    /// The daemon died: it happened or not.
    Unknown,
}

/// A removal that was begun.
#[derive(Debug, Clone)]
pub(crate) struct Removal {
    number: usize,
    pub(crate) tenant: Option<String>,
}

impl Removal {
    /// Its scope, in the control file's words.
    pub(crate) fn words(&self) -> String {
        self.tenant.as_ref().map_or("scope=global".to_owned(), |t| format!("tenant={t}"))
    }
}

#[derive(Debug)]
struct Known {
    tenant: Option<String>,
    begun: u64,
    /// Since when it cannot remove anything any more.
    ended: Option<u64>,
    /// Where it was acknowledged.
    generation: Option<u64>,
    /// write(2) returned: it is durable.
    bound: bool,
}

impl Known {
    fn covers(&self, tenant: &str) -> bool {
        self.tenant.as_deref().is_none_or(|own| own == tenant)
    }
}

type Name = (String, String);
type Candidates = Vec<Option<Value>>;

#[derive(Debug, Default)]
struct State {
    removals: Vec<Known>,
    keys: HashMap<Name, Candidates>,
    /// As they were before the operation under way.
    before: HashMap<Name, Candidates>,
}

impl State {
    fn candidates(&mut self, name: &Name) -> &mut Candidates {
        self.keys.entry(name.clone()).or_insert_with(|| vec![None])
    }

    fn keep(&mut self, name: &Name) {
        let now = self.candidates(name).clone();
        self.before.insert(name.clone(), now);
    }

    fn restore(&mut self, name: &Name) {
        if let Some(before) = self.before.remove(name) {
            self.keys.insert(name.clone(), before);
        }
    }

    fn add(&mut self, name: &Name, state: Option<Value>) {
        let candidates = self.candidates(name);
        if !candidates.contains(&state) {
            candidates.push(state);
        }
    }
}

/// The checker of one storm.
#[derive(Debug)]
pub(crate) struct Checker {
    clock: AtomicU64,
    evicts: bool,
    state: Mutex<State>,
}

fn named(tenant: &str, key: &str) -> Name {
    (tenant.to_owned(), key.to_owned())
}

/// The writer of a key, by its name or that of its temporary file.
fn writer_of(key: &str) -> &str {
    let key = key.strip_prefix(".tmp-").unwrap_or(key);
    key.split('-').next().unwrap_or(key)
}

impl Checker {
    /// `evicts`: any key may be absent at any time.
    pub(crate) fn new(evicts: bool) -> Checker {
        Checker { clock: AtomicU64::new(1), evicts, state: Mutex::default() }
    }

    /// The time; later each time.
    pub(crate) fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// A value is about to be written to its key.
    pub(crate) fn may_become(&self, value: &Value) {
        let mut state = self.state.lock().unwrap();
        let name = named(&value.tenant, &value.key);
        state.keep(&name);
        state.add(&name, Some(value.clone()));
    }

    /// What came of it.
    pub(crate) fn written(&self, value: &Value, outcome: Outcome) {
        let mut state = self.state.lock().unwrap();
        let name = named(&value.tenant, &value.key);
        match outcome {
            Outcome::Done => drop(state.keys.insert(name, vec![Some(value.clone())])),
            Outcome::Refused => state.restore(&name),
            Outcome::Unknown => (),
        }
    }

    /// A key is about to be renamed over another.
    pub(crate) fn may_move(&self, tenant: &str, from: &str, to: &str) {
        let mut state = self.state.lock().unwrap();
        let (from, to) = (named(tenant, from), named(tenant, to));
        state.keep(&from);
        state.keep(&to);
        for candidate in state.candidates(&from).clone().into_iter().flatten() {
            state.add(&to, Some(candidate));
        }
        state.add(&from, None);
    }

    /// What came of it.
    pub(crate) fn moved(&self, tenant: &str, from: &str, to: &str, outcome: Outcome) {
        let mut state = self.state.lock().unwrap();
        let (from, to) = (named(tenant, from), named(tenant, to));
        match outcome {
            Outcome::Done => {
                let moved: Candidates = state.before[&from].iter().filter(|c| c.is_some()).cloned().collect();
                assert!(!moved.is_empty(), "{from:?} was renamed and cannot have been there");
                state.keys.insert(to, moved);
                state.keys.insert(from, vec![None]);
            }
            Outcome::Refused => {
                state.restore(&from);
                state.restore(&to);
            }
            Outcome::Unknown => (),
        }
    }

    /// A key is about to be deleted.
    pub(crate) fn may_go(&self, tenant: &str, key: &str) {
        let mut state = self.state.lock().unwrap();
        let name = named(tenant, key);
        state.keep(&name);
        state.add(&name, None);
    }

    /// What came of it.
    pub(crate) fn gone(&self, tenant: &str, key: &str, outcome: Outcome) {
        let mut state = self.state.lock().unwrap();
        let name = named(tenant, key);
        match outcome {
            Outcome::Done => drop(state.keys.insert(name, vec![None])),
            Outcome::Refused => state.restore(&name),
            Outcome::Unknown => (),
        }
    }

    /// A removal is about to be asked for.
    pub(crate) fn removal_begins(&self, tenant: Option<&str>) -> Removal {
        let begun = self.tick();
        let tenant = tenant.map(str::to_owned);
        let mut state = self.state.lock().unwrap();
        state.removals.push(Known {
            tenant: tenant.clone(),
            begun,
            ended: None,
            generation: None,
            bound: false,
        });
        Removal { number: state.removals.len() - 1, tenant }
    }

    /// It is durable: it may not get lost any more.
    pub(crate) fn must_happen(&self, removal: &Removal) {
        self.state.lock().unwrap().removals[removal.number].bound = true;
    }

    /// Whether it is.
    pub(crate) fn is_bound_to_happen(&self, removal: &Removal) -> bool {
        self.state.lock().unwrap().removals[removal.number].bound
    }

    /// It was seen acknowledged, under this generation; or (`None`) it is over, whether it happened or not.
    pub(crate) fn removal_ends(&self, removal: &Removal, generation: Option<u64>) {
        let mut state = self.state.lock().unwrap();
        let now = self.tick();
        let known = &mut state.removals[removal.number];
        (known.ended, known.generation) = (Some(now), generation);
    }

    /// The highest generation that was seen acknowledged and covers the tenant.
    pub(crate) fn acknowledged(&self, tenant: &str) -> u64 {
        let state = self.state.lock().unwrap();
        let covering = state.removals.iter().filter(|r| r.covers(tenant)).filter_map(|r| r.generation);
        covering.max().unwrap_or(0)
    }

    /// A value was read under a name, by a reader that began at `begun`.
    pub(crate) fn may_be_seen(&self, tenant: &str, key: &str, value: &Value, begun: u64) {
        self.check_seen(&self.state.lock().unwrap(), tenant, key, value, begun);
    }

    fn check_seen(&self, state: &State, tenant: &str, key: &str, value: &Value, begun: u64) {
        let same = value.tenant == tenant && writer_of(&value.key) == writer_of(key);
        assert!(same, "{tenant}/{key} holds a foreign value: {value:?}");
        for removal in state.removals.iter().filter(|r| r.covers(tenant)) {
            let (Some(generation), Some(ended)) = (removal.generation, removal.ended) else { continue };
            if ended < begun {
                assert!(value.opened > removal.begun, "{tenant}/{key} outlived {removal:?}: {value:?}");
                let older = value.conditional && value.told < generation;
                assert!(!older, "{tenant}/{key} is of an epoch before {removal:?}: {value:?}");
            }
        }
    }

    /// Its writer saw this state of a key, between two times: it must be one of those that it may be in, and it is the
    /// only one from now on.
    pub(crate) fn saw(&self, tenant: &str, key: &str, seen: Option<&Value>, (begun, done): (u64, u64)) {
        let mut state = self.state.lock().unwrap();
        let name = named(tenant, key);
        let candidates = state.candidates(&name).clone();
        match seen {
            Some(value) => {
                self.check_seen(&state, tenant, key, value, begun);
                let known = candidates.iter().flatten().any(|c| c == value);
                assert!(known, "{tenant}/{key} holds {value:?}, and can only hold {candidates:?}");
            }
            None => {
                let may_be_removed = |value: &Value| {
                    let mut covering = state.removals.iter().filter(|r| r.covers(tenant));
                    covering.any(|r| r.begun < done && r.ended.is_none_or(|ended| ended > value.begun))
                };
                let absent = self.evicts || candidates.iter().any(|c| c.as_ref().is_none_or(may_be_removed));
                assert!(absent, "{tenant}/{key} is lost: it can only hold {candidates:?}");
            }
        }
        state.keys.insert(name, vec![seen.cloned()]);
    }
}
