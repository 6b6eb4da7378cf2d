//! Durations as Go writes them, which is how Kubernetes' objects hold them.

use std::time::Duration;

/// `24h30m`, as Go writes durations.
pub fn parse(text: &str) -> Option<Duration> {
    let mut total = 0.0;
    let mut rest = text;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit_end = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        total += number
            * match &rest[digits..unit_end] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit_end..];
    }
    Duration::try_from_secs_f64(total).ok()
}

/// `24h30m0s`, as Go writes durations of whole seconds.
pub fn format(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_go_writes_them() {
        assert_eq!(parse("24h0m0s"), Some(Duration::from_secs(86400)));
        assert_eq!(parse("1h30m"), Some(Duration::from_secs(5400)));
        assert_eq!(parse("90s"), Some(Duration::from_secs(90)));
        for wrong in ["", "5", "h", "5d", "1h2"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        for right in ["0s", "59s", "20m0s", "1h30m5s", "48h0m0s"] {
            assert_eq!(parse(right).map(format).as_deref(), Some(right));
        }
    }
}
