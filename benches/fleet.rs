//! What the daemons of a fleet ask of etcd, without their mounts: for `scripts/fleet-cost`.
//!
//! `fleet COORDINATOR MEMBERS CALLS`: makes so many members, then does each operation so often. Before and after each it
//! prints a line and waits for one, so that whoever leads it can look at what etcd has used meanwhile.

use std::io::{BufRead, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fencefs::config::{Coordinator, CoordinatorWords, limits};
use fencefs::key::Tenant;
use fencefs::ledger::{EtcdLedger, Ledger};
use fencefs::scope::{Mode, Scope};
use fencefs::{Error, Kind, Result};
use serde_json::json;
use uuid::Uuid;

const THREADS: usize = 8;

fn main() -> Result<()> {
    let invalid = |why: &str| Error::new(Kind::Invalid, why.to_owned());
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, members, calls] = &arguments[..] else {
        return Err(invalid("usage: fleet COORDINATOR MEMBERS CALLS"));
    };
    let Coordinator::Etcd(settings) = url.parse::<CoordinatorWords>()?.coordinator()? else {
        return Err(invalid("a fleet has its ledger in etcd"));
    };
    let number = |text: &str| text.parse::<usize>().map_err(|_| invalid("no number"));
    let (members, calls) = (number(members)?, number(calls)?);
    let ledger = EtcdLedger::new(&settings)?;
    let storages: Vec<Uuid> = (0..members).map(|_| Uuid::new_v4()).collect();
    let scope = Scope::Tenant(Tenant::new(b"tenant")?);
    let any = |n: usize| storages[(n * 7919) % members];

    measure("start", members, &|n| ledger.register(storages[n], &[], Uuid::new_v4()))?;
    // One that keeps no leases: those of so many daemons would run out in one, and be renewed all the time.
    let ledger = EtcdLedger::new(&settings)?;
    measure("poll", calls, &|n| ledger.standing(any(n)).map(drop))?;
    measure("look for open requests", calls, &|_| ledger.unfinished().map(drop))?;
    let raw = Raw::new(&settings.endpoints[0], calls.min(members))?;
    measure("renew a lease", calls, &|n| raw.renew(n))?;
    measure("note presence", calls, &|n| raw.note(&settings.prefix, any(n)))?;
    measure("count members", calls, &|_| ledger.count().map(drop))?;
    // Who submits reads the members once, and again when they change.
    let made = Mutex::new(ledger.submit(&scope, Mode::Physical, None)?.request.generation);
    // Few: each of them is open while the others are acknowledged.
    measure("submit", calls.min(20), &|_| {
        let request = ledger.submit(&scope, Mode::Physical, None)?.request;
        let mut made = made.lock().unwrap_or_else(|e| e.into_inner());
        *made = request.generation.max(*made);
        Ok(())
    })?;
    let last = *made.lock().unwrap_or_else(|e| e.into_inner());
    // All have the same to do, and come in no order.
    measure("acknowledge", members, &|n| ledger.ack(storages[n], &scope, last))?;
    if !ledger.unfinished()?.is_empty() {
        return Err(invalid("everybody has acknowledged, and something is open"));
    }
    measure("list the fleet", 5, &|_| ledger.storages().map(drop))?;
    measure("look at a request", 5, &|_| {
        ledger.request(&fencefs::ledger::RequestName::Generation(last)).map(drop)
    })?;
    println!(
        "{}",
        json!({
            "poll": limits::ETCD_POLL.as_secs_f64(), "polls_a_second": limits::ETCD_POLLS_A_SECOND,
            "renew": limits::ETCD_LEASE.as_secs_f64() / 3.0, "renewals_a_second": limits::ETCD_RENEWALS_A_SECOND,
            "note": limits::ETCD_NOTE.as_secs_f64(), "notes_a_second": limits::ETCD_NOTES_A_SECOND,
            "watchers": limits::ETCD_WATCHERS,
        })
    );
    Ok(())
}

/// Does one operation so often, on several threads, between two lines and the answers to them.
fn measure(name: &str, count: usize, call: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
    step(&json!({ "begin": name }))?;
    let (next, began) = (AtomicUsize::new(0), Instant::now());
    let times = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|s| {
        let run = || -> Result<()> {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    return Ok(());
                }
                let began = Instant::now();
                call(n)?;
                times.lock().unwrap_or_else(|e| e.into_inner()).push(began.elapsed());
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|_| s.spawn(run)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::new(Kind::Invalid, "a thread panicked")))
        })
    })?;
    let all = began.elapsed();
    let mut times: Vec<Duration> = times.into_inner().unwrap_or_else(|e| e.into_inner());
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1000.0;
    step(&json!({
        "end": name, "calls": count, "seconds": all.as_secs_f64(), "median_ms": at(50), "p99_ms": at(99)
    }))
}

/// Says something, and waits until that was heard.
fn step(line: &serde_json::Value) -> Result<()> {
    let io = |e| Error::os("nobody leads this", e);
    writeln!(std::io::stdout(), "{line}").map_err(io)?;
    std::io::stdout().flush().map_err(io)?;
    std::io::stdin().lock().read_line(&mut String::new()).map(drop).map_err(io)
}

/// What a daemon asks now and then beside the protocol, as it asks it.
struct Raw {
    agent: ureq::Agent,
    endpoint: String,
    leases: Vec<String>,
}

impl Raw {
    fn new(endpoint: &str, leases: usize) -> Result<Raw> {
        let agent = ureq::Agent::config_builder().proxy(None).build().new_agent();
        let mut raw = Raw { agent, endpoint: endpoint.to_owned(), leases: Vec::new() };
        for _ in 0..leases.min(500) {
            let granted = raw.ask("lease/grant", &json!({ "TTL": "600" }))?;
            raw.leases.push(granted["ID"].as_str().unwrap_or_default().to_owned());
        }
        Ok(raw)
    }

    fn ask(&self, path: &str, body: &serde_json::Value) -> Result<serde_json::Value> {
        let failed = |e: &dyn std::fmt::Display| Error::new(Kind::Unreachable, format!("etcd: {path}: {e}"));
        let sent = self.agent.post(format!("http://{}/v3/{path}", self.endpoint)).send(body.to_string());
        let text = sent.and_then(|mut answer| answer.body_mut().read_to_string()).map_err(|e| failed(&e))?;
        serde_json::from_str(&text).map_err(|e| failed(&e))
    }

    fn renew(&self, n: usize) -> Result<()> {
        self.ask("lease/keepalive", &json!({ "ID": self.leases[n % self.leases.len()] })).map(drop)
    }

    fn note(&self, prefix: &str, storage: Uuid) -> Result<()> {
        use base64::Engine;
        let encoded = |text: String| base64::engine::general_purpose::STANDARD.encode(text);
        let put = json!({ "key": encoded(format!("{prefix}/seen/{storage}")), "value": encoded("1700000000000".into()) });
        self.ask("kv/txn", &json!({ "success": [{ "request_put": put }] })).map(drop)
    }
}
