//! Ages as people read them: two units at most, coarser with time.

use jiff::Timestamp;
use serde_json::Value;

/// A span of seconds: `5s`, `3m20s`, `7h5m`, `2d3h`, `400d`, `3y10d`.
pub fn human(seconds: i64) -> String {
    let two = |large: i64, unit: &str, small: i64, sub: &str| {
        if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small}{sub}") }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

/// The age of an RFC 3339 timestamp, `<unknown>` without one.
pub(super) fn since(timestamp: &Value, now: Timestamp) -> String {
    match parse(timestamp) {
        Some(then) => human(now.duration_since(then).as_secs()),
        None => "<unknown>".to_owned(),
    }
}

pub(super) fn parse(timestamp: &Value) -> Option<Timestamp> {
    timestamp.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_coarsen_with_time() {
        for (seconds, expect) in [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (25_500, "7h5m"),
            (28_800, "8h"),
            (172_800, "2d"),
            (183_600, "2d3h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_072_000 + 864_000, "2y10d"),
            (252_288_000, "8y"),
        ] {
            assert_eq!(human(seconds), expect, "{seconds}");
        }
    }
}
