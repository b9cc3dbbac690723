//! How far long work is: a line that moves on a terminal, plain lines now and then elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that is done sooner says nothing where there is no terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// Shows phases and counts on stderr; gone from a terminal when dropped.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    last_plain: Instant,
}

impl Progress {
    /// Nothing is shown before the first update.
    pub(super) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(
                ProgressStyle::with_template("{msg}: {human_pos}{prefix} ({elapsed})")
                    .unwrap_or(ProgressStyle::default_spinner()),
            );
            bar
        });
        Progress { bar, last_plain: Instant::now() }
    }

    /// `phase` is at `count`.
    pub(super) fn update(&mut self, phase: &str, count: u64) {
        self.update_of(phase, count, None);
    }

    /// `phase` is at `count`, of so many where that is known.
    pub(super) fn update_of(&mut self, phase: &str, count: u64, total: Option<u64>) {
        let of = total.map(|total| format!(" of {total}")).unwrap_or_default();
        if let Some(bar) = &self.bar {
            if bar.message() != phase {
                bar.set_message(phase.to_owned());
            }
            if bar.prefix() != of {
                bar.set_prefix(of);
            }
            bar.set_position(count);
        } else if self.last_plain.elapsed() >= PLAIN_EVERY {
            self.last_plain = Instant::now();
            drop(writeln!(std::io::stderr(), "fencefs: {phase}: {count}{of}"));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
