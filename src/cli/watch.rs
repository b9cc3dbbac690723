//! `fencefs status --watch` on a terminal: what a mount holds and does, once a second, with bars.
//!
//! A frame is made of two status objects and the size of the terminal, and of nothing else. The terminal gets its own screen
//! back at the end, whatever ends it.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;

use super::control_client;
use super::status::text_of;
use crate::config::format_size;
use crate::error::{Error, Kind, Result};

const EVERY: Duration = Duration::from_secs(1);
/// Where the terminal does not say how large it is.
const USUAL_SIZE: (usize, usize) = (80, 24);
const BAR_COLUMNS: usize = 24;

/// The terminal's other screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// How a frame is drawn.
#[derive(Debug, Clone, Copy)]
struct Style {
    colours: bool,
    /// Full and empty, of a bar.
    bar: (char, char),
}

impl Style {
    fn of_environment() -> Self {
        let var = |name| std::env::var(name).unwrap_or_default();
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].map(var).into_iter().find(|v| !v.is_empty());
        let utf8 = locale.is_some_and(|l| l.to_ascii_uppercase().replace('-', "").contains("UTF8"));
        let bar = if utf8 { ('\u{2588}', '\u{2591}') } else { ('#', '.') };
        Style { colours: std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()), bar }
    }

    fn paint(self, code: u8, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A share as a bar: green, yellow from 85 %, red from 97 %; the other way round where much is good.
    fn bar(self, share: f64, much_is_good: bool) -> String {
        let full = ((share.clamp(0.0, 1.0) * BAR_COLUMNS as f64).round()) as usize;
        let filled: String = std::iter::repeat_n(self.bar.0, full).collect();
        let empty: String = std::iter::repeat_n(self.bar.1, BAR_COLUMNS - full).collect();
        let code = match if much_is_good { 1.0 - share } else { share } {
            0.97.. => 31,
            0.85.. => 33,
            _ => 32,
        };
        self.paint(code, &filled) + &self.paint(90, &empty)
    }
}

/// Whether stdout can show it.
pub(super) fn is_possible() -> bool {
    std::io::stdout().is_terminal() && std::env::var("TERM").is_ok_and(|term| term != "dumb")
}

/// Shows the mount until somebody has seen enough (Ctrl-C), or it is gone.
pub(super) fn run(mountpoint: &Path) -> Result<()> {
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGWINCH]);
    let mut signals = signals.map_err(|e| Error::os("cannot install signal handlers", e))?;
    let (tell, told) = channel();
    let listen = move || signals.forever().try_for_each(|signal| tell.send(signal));
    let spawned = std::thread::Builder::new().spawn(listen);
    drop(spawned.map_err(|e| Error::os("cannot start a thread", e))?);
    // Before the screen is taken: no mount is said where the command was typed.
    let mut before = read(mountpoint)?;
    let style = Style::of_environment();
    super::print(ENTER)?;
    let shown = (|| {
        let mut at = Instant::now();
        let mut rates = Rates::default();
        loop {
            super::print(on_screen(&frame(
                &mountpoint.display().to_string(),
                &before,
                rates,
                size(),
                style,
            )))?;
            match told.recv_timeout(EVERY.saturating_sub(at.elapsed())) {
                Ok(SIGWINCH) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let (now, then) = (read(mountpoint)?, std::mem::replace(&mut at, Instant::now()));
                    rates = Rates::between(&before, &now, at.duration_since(then).as_secs_f64());
                    before = now;
                }
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    })();
    drop(std::io::stdout().write_all(LEAVE.as_bytes()).and_then(|()| std::io::stdout().flush()));
    shown
}

fn read(mountpoint: &Path) -> Result<Value> {
    let text = control_client::read(mountpoint, "status")?;
    serde_json::from_str(&text)
        .map_err(|e| Error::new(Kind::Corrupt, format!("the status of this mount is no JSON: {e}")))
}

/// Columns and rows.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => USUAL_SIZE,
    }
}

/// From the first line, each line to its end, and nothing below: without a flicker.
fn on_screen(lines: &[String]) -> String {
    format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n"))
}

/// What happened since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Rates {
    hits: f64,
    misses: f64,
    evictions: f64,
}

impl Rates {
    fn between(before: &Value, now: &Value, seconds: f64) -> Self {
        let rate = |name: &str| {
            let [a, b] = [before, now].map(|status| status[name].as_u64().unwrap_or(0));
            // A daemon that was started again counts from zero.
            b.saturating_sub(a) as f64 / seconds.max(0.001)
        };
        Rates { hits: rate("hits"), misses: rate("misses"), evictions: rate("evicted_keys") }
    }
}

/// What fits of the view.
fn frame(
    at: &str,
    status: &Value,
    rates: Rates,
    (columns, rows): (usize, usize),
    style: Style,
) -> Vec<String> {
    let number = |name: &str| status[name].as_u64().unwrap_or(0);
    let text = |name: &str| text_of(&status[name]).unwrap_or("-".to_owned());
    let state = text("state");
    let state_code = if state == "ready" { 32 } else { 31 };
    let copies = if status["passthrough"] == true { "passthrough" } else { "copying" };
    let mut lines = vec![
        format!(
            "{}  {}  {copies}, {}, {}",
            style.paint(1, &format!("fencefs {at}")),
            style.paint(state_code, &state),
            text("evict"),
            text("version")
        ),
        String::new(),
    ];
    let (used, quota) = (number("used_bytes"), number("quota_bytes"));
    let keys = number("keys");
    lines.push(format!(
        "used       {}  {}, {keys} keys",
        style.bar(share(used, quota), false),
        of(used, quota)
    ));
    let (hits, misses) = (rates.hits, rates.misses);
    let (asked, since) = if hits + misses > 0.0 {
        ((hits, misses), "")
    } else {
        ((number("hits") as f64, number("misses") as f64), " since the mount")
    };
    let ratio = asked.0 / (asked.0 + asked.1).max(1e-9);
    lines.push(format!(
        "hit ratio  {}  {:.0} %{since}, {hits:.0} hits/s, {misses:.0} misses/s",
        style.bar(ratio, true),
        ratio * 100.0
    ));
    lines.push(format!(
        "evictions  {:.0}/s, {} in all; written now {}, pinned {}",
        rates.evictions,
        number("evicted_keys"),
        format_size(number("staged_bytes")),
        format_size(number("pinned_bytes"))
    ));
    let pending = format!("{} pending", number("pending_requests"));
    let pending = if number("pending_requests") > 0 { style.paint(33, &pending) } else { pending };
    lines.push(format!("removals   {pending}, generation {}", number("generation")));
    if let Some(error) = text_of(&status["last_error"]) {
        lines.push(style.paint(31, &format!("last error {error}")));
    }
    lines.push(String::new());
    lines.extend(tenants(status, rows.saturating_sub(lines.len() + 1), style));
    lines.push(style.paint(90, "Ctrl-C ends this"));
    lines.truncate(rows);
    lines.iter().map(|line| cut(line, columns)).collect()
}

/// The tenants that use most, as many as fit, a bar each.
fn tenants(status: &Value, rows: usize, style: Style) -> Vec<String> {
    let mut tenants: Vec<&Value> = status["tenants"].as_array().into_iter().flatten().collect();
    tenants.sort_by_key(|t| std::cmp::Reverse(t["bytes"].as_u64()));
    let name = |t: &Value| text_of(&t["name"]).unwrap_or_default();
    let width = tenants.iter().map(|t| name(t).len()).max().unwrap_or(0).max(9);
    let line = |t: &&Value| {
        let used = t["bytes"].as_u64().unwrap_or(0);
        // Without a quota of its own, a tenant has what the store has.
        let own = t["quota_bytes"].as_u64();
        let quota = own.or(status["quota_bytes"].as_u64()).unwrap_or(0);
        let state = text_of(&t["state"]).unwrap_or_default();
        let state = if state == "ready" { String::new() } else { style.paint(31, &format!("  {state}")) };
        let of = own.map_or_else(|| format_size(used), |own| of(used, own));
        let keys = t["keys"].as_u64().unwrap_or(0);
        format!("{:width$}  {}  {of}, {keys} keys{state}", name(t), style.bar(share(used, quota), false))
    };
    let shown = if tenants.len() > rows { rows.saturating_sub(1) } else { tenants.len() };
    let mut lines: Vec<String> = tenants.iter().take(shown).map(line).collect();
    if shown < tenants.len() {
        lines.push(format!("and {} tenants more", tenants.len() - shown));
    }
    lines
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn of(used: u64, quota: u64) -> String {
    format!("{:.0} % ({} of {})", share(used, quota) * 100.0, format_size(used), format_size(quota))
}

/// The first columns of a line. What paints takes none; what is cut leaves no paint behind.
fn cut(line: &str, columns: usize) -> String {
    let (mut out, mut left, mut painting) = (String::new(), columns, false);
    for c in line.chars() {
        if c == '\x1b' {
            painting = true;
        }
        if painting {
            out.push(c);
            painting = c != 'm';
        } else if left > 0 {
            out.push(c);
            left -= 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Style = Style { colours: false, bar: ('#', '.') };

    fn status() -> Value {
        serde_json::json!({"version": "1", "state": "ready", "passthrough": true, "evict": "lru", "quota_bytes": 4096,
            "used_bytes": 1024, "keys": 3, "hits": 30, "misses": 10, "evicted_keys": 5, "staged_bytes": 0,
            "pinned_bytes": 0, "pending_requests": 1, "generation": 7, "last_error": null, "tenants": [
                {"name": "a", "state": "ready", "keys": 1, "bytes": 256, "quota_bytes": null},
                {"name": "b", "state": "removing", "keys": 2, "bytes": 768, "quota_bytes": 1024}]})
    }

    #[test]
    fn a_frame_for_people() {
        let lines = frame("/m", &status(), Rates::default(), (100, 24), PLAIN);
        assert_eq!(
            lines,
            [
                "fencefs /m  ready  passthrough, lru, 1",
                "",
                "used       ######..................  25 % (1 KiB of 4 KiB), 3 keys",
                "hit ratio  ##################......  75 % since the mount, 0 hits/s, 0 misses/s",
                "evictions  0/s, 5 in all; written now 0 B, pinned 0 B",
                "removals   1 pending, generation 7",
                "",
                "b          ##################......  75 % (768 B of 1 KiB), 2 keys  removing",
                "a          ##......................  256 B, 1 keys",
                "Ctrl-C ends this",
            ]
        );
    }

    #[test]
    fn rates_are_of_the_last_look() {
        let mut now = status();
        now["hits"] = 70.into();
        now["evicted_keys"] = 0.into();
        let rates = Rates::between(&status(), &now, 2.0);
        assert_eq!(rates, Rates { hits: 20.0, misses: 0.0, evictions: 0.0 });
        let line = &frame("/m", &now, rates, (100, 24), PLAIN)[3];
        assert_eq!(line, "hit ratio  ########################  100 %, 20 hits/s, 0 misses/s");
    }

    #[test]
    fn a_frame_fits_its_terminal() {
        let style = Style { colours: true, ..PLAIN };
        for (columns, rows) in [(10, 3), (40, 8), (1, 1), (200, 50)] {
            let lines = frame("/m", &status(), Rates::default(), (columns, rows), style);
            assert!(lines.len() <= rows);
            for line in &lines {
                let bare: String =
                    line.split('\x1b').map(|s| s.split_once('m').map_or(s, |(_, t)| t)).collect();
                assert!(bare.chars().count() <= columns.max(bare.len().min(columns)), "{line:?}");
                assert_eq!(line.matches("\x1b[0m").count() * 2, line.matches('\x1b').count(), "{line:?}");
            }
        }
        assert!(frame("/m", &status(), Rates::default(), (80, 9), PLAIN)[7].contains("2 tenants more"));
    }

    #[test]
    fn nothing_is_painted_where_nobody_wants_it() {
        let lines = frame("/m", &status(), Rates::default(), (100, 24), PLAIN);
        assert!(!lines.iter().any(|l| l.contains('\x1b')));
        assert_eq!(on_screen(&["a".into(), "b".into()]), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J");
    }
}
