//! The Prometheus text exposition format, version 0.0.4: a builder for the metrics file and endpoint.
//!
//! A metric is written as one family (its help, its type, then all its samples), because the format forbids
//! samples of one metric apart from each other. Names come from the code and are asserted; label values and
//! help are data and are escaped.

use std::fmt::{self, Write as _};

/// A sample's value. Whole numbers are written exactly; a byte count must not lose digits on its way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A count or a size.
    Whole(u64),
    /// A ratio or a duration in seconds.
    Real(f64),
}

impl From<u64> for Number {
    fn from(n: u64) -> Self {
        Number::Whole(n)
    }
}

impl From<f64> for Number {
    fn from(n: f64) -> Self {
        Number::Real(n)
    }
}

impl From<bool> for Number {
    fn from(b: bool) -> Self {
        Number::Whole(u64::from(b))
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Number::Whole(n) => n.fmt(f),
            Number::Real(n) if n == f64::INFINITY => f.write_str("+Inf"),
            Number::Real(n) if n == f64::NEG_INFINITY => f.write_str("-Inf"),
            Number::Real(n) => n.fmt(f),
        }
    }
}

/// The text so far.
#[derive(Debug, Default)]
pub struct Metrics {
    text: String,
}

impl Metrics {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A value that goes up and down, without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.gauges(name, help).sample(&[], value);
    }

    /// A value that only goes up while the daemon lives, without labels.
    pub fn counter(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.counters(name, help).sample(&[], value);
    }

    /// A gauge with labels: give every sample to what this returns. A name may be begun once only.
    pub fn gauges<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family(name, help, "gauge")
    }

    /// A counter with labels: give every sample to what this returns. A name may be begun once only.
    pub fn counters<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family(name, help, "counter")
    }

    /// The finished text; every line ends in a newline.
    pub fn finish(self) -> String {
        self.text
    }

    fn family<'a>(&'a mut self, name: &'a str, help: &str, kind: &str) -> Family<'a> {
        debug_assert!(is_name(name), "{name:?} is no metric name");
        let header = format!("# TYPE {name} {kind}\n");
        debug_assert!(!self.text.contains(&format!("# TYPE {name} ")), "{name} is begun twice");
        self.text.push_str("# HELP ");
        self.text.push_str(name);
        self.text.push(' ');
        escape(&mut self.text, help, false);
        self.text.push('\n');
        self.text.push_str(&header);
        Family { text: &mut self.text, name }
    }
}

/// One metric, open for its samples.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: &'a str,
}

impl Family<'_> {
    /// Adds the sample of one set of labels, which must be new to this metric.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Number>) -> &mut Self {
        self.text.push_str(self.name);
        for (at, (label, text)) in labels.iter().enumerate() {
            debug_assert!(is_name(label) && !label.starts_with("__"), "{label:?} is no label name");
            self.text.push(if at == 0 { '{' } else { ',' });
            self.text.push_str(label);
            self.text.push_str("=\"");
            escape(self.text, text, true);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        writeln!(self.text, " {}", value.into()).expect("a string takes every write");
        self
    }
}

/// Letters, digits and underscores, no digit first. Colons are kept for recording rules.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.as_bytes()[0].is_ascii_digit()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn escape(out: &mut String, text: &str, quoted: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quoted => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_follows_the_exposition_format() {
        let mut metrics = Metrics::new();
        metrics.gauge("fencefs_used_bytes", "Allocated bytes.", u64::MAX);
        metrics.counter("fencefs_evicted_keys_total", "Keys evicted.", 3_u64);
        metrics
            .gauges("fencefs_tenant_keys", "Keys of a tenant.")
            .sample(&[("tenant", "default")], 2_u64)
            .sample(&[("tenant", "b"), ("state", "ready")], 0.5);
        metrics.gauge("fencefs_passthrough", "Kernel I/O.", true);
        assert_eq!(
            metrics.finish(),
            "# HELP fencefs_used_bytes Allocated bytes.\n\
             # TYPE fencefs_used_bytes gauge\n\
             fencefs_used_bytes 18446744073709551615\n\
             # HELP fencefs_evicted_keys_total Keys evicted.\n\
             # TYPE fencefs_evicted_keys_total counter\n\
             fencefs_evicted_keys_total 3\n\
             # HELP fencefs_tenant_keys Keys of a tenant.\n\
             # TYPE fencefs_tenant_keys gauge\n\
             fencefs_tenant_keys{tenant=\"default\"} 2\n\
             fencefs_tenant_keys{tenant=\"b\",state=\"ready\"} 0.5\n\
             # HELP fencefs_passthrough Kernel I/O.\n\
             # TYPE fencefs_passthrough gauge\n\
             fencefs_passthrough 1\n"
        );
    }

    #[test]
    fn data_cannot_break_out_of_its_place() {
        let mut metrics = Metrics::new();
        metrics.gauges("m", "a \\ \"b\"\nc").sample(&[("l", "x\"} 1\ny\\")], 1_u64);
        assert_eq!(
            metrics.finish(),
            "# HELP m a \\\\ \"b\"\\nc\n# TYPE m gauge\nm{l=\"x\\\"} 1\\ny\\\\\"} 1\n"
        );
    }

    #[test]
    fn numbers_are_spelled_as_prometheus_reads_them() {
        let text = |n: f64| Number::from(n).to_string();
        assert_eq!(text(f64::INFINITY), "+Inf");
        assert_eq!(text(f64::NEG_INFINITY), "-Inf");
        assert_eq!(text(f64::NAN), "NaN");
        assert_eq!(text(1.0), "1");
        assert_eq!(text(-0.25), "-0.25");
    }

    #[test]
    fn names_keep_the_alphabet() {
        assert!(is_name("fencefs_used_bytes") && is_name("_a1"));
        for bad in ["", "1a", "a-b", "a b", "a:b", "\u{e9}"] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
