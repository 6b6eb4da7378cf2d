//! Formats of texts that a schema may ask for; one it does not know accepts everything, as in Kubernetes.

/// Whether a text is of a format.
pub(super) fn fits(format: &str, text: &str) -> bool {
    match format {
        "date-time" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok(),
        "duration" => duration(text),
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "cidr" => text.parse::<ipnet::IpNet>().is_ok(),
        "mac" => mac(text),
        "uuid" => uuid::Uuid::parse_str(text).is_ok(),
        "uuid3" | "uuid4" | "uuid5" => {
            let version = uuid::Uuid::parse_str(text).ok().map(|uuid| uuid.get_version_num());
            version == format.trim_start_matches("uuid").parse().ok()
        }
        "byte" => base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).is_ok(),
        // A request's target: absolute, or a path.
        "uri" => text.starts_with('/') || url::Url::parse(text).is_ok(),
        "hostname" => hostname(text),
        "email" => text.rsplit_once('@').is_some_and(|(name, host)| !name.is_empty() && hostname(host)),
        "hexcolor" => {
            let digits = text.strip_prefix('#').unwrap_or(text);
            matches!(digits.len(), 3 | 6) && digits.chars().all(|c| c.is_ascii_hexdigit())
        }
        _ => true,
    }
}

fn hostname(text: &str) -> bool {
    let label = |part: &str| {
        !part.is_empty()
            && part.len() <= 63
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    text.len() <= 255 && text.trim_end_matches('.').split('.').all(label)
}

/// Six or eight octets in hexadecimal, with one kind of separator.
fn mac(text: &str) -> bool {
    let octets = |separator: char| {
        let parts: Vec<&str> = text.split(separator).collect();
        matches!(parts.len(), 6 | 8 | 20)
            && parts.iter().all(|part| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit()))
    };
    octets(':') || octets('-')
}

/// Numbers with units, `1h30m`, or a number of days or weeks.
fn duration(text: &str) -> bool {
    const UNITS: [&str; 16] =
        ["ns", "us", "µs", "ms", "s", "m", "h", "d", "w", "sec", "min", "hour", "hours", "day", "days", "weeks"];
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let unit = rest[digits..].trim_start();
        let length = unit.find(|c: char| c.is_ascii_digit()).unwrap_or(unit.len());
        if rest[..digits].parse::<f64>().is_err() || !UNITS.contains(&unit[..length].trim()) {
            return false;
        }
        rest = &unit[length..];
    }
    !text.is_empty()
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn formats() {
        for (format, good, bad) in [
            ("date-time", "2026-01-01T00:00:00Z", "2026-01-01"),
            ("date", "2026-01-01", "yesterday"),
            ("duration", "1h30m", "1 fortnight"),
            ("duration", "3 days", ""),
            ("ipv4", "10.0.0.1", "10.0.0.256"),
            ("ipv6", "fd00::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0"),
            ("mac", "02:00:00:00:00:01", "02:00:00:00:00"),
            ("uuid", "67e55044-10b1-426f-9247-bb680e5fe0c8", "67e55044"),
            ("uuid4", "67e55044-10b1-426f-9247-bb680e5fe0c8", "67e55044-10b1-126f-9247-bb680e5fe0c8"),
            ("byte", "aGVsbG8=", "!"),
            ("uri", "https://a.example/b", "a b"),
            ("hostname", "a.example", "a_b"),
            ("email", "a@b.example", "a"),
            ("hexcolor", "#ff0000", "red"),
        ] {
            assert!(fits(format, good), "{format} {good}");
            assert!(!fits(format, bad), "{format} {bad}");
        }
        assert!(fits("nobody-knows", "anything"));
    }
}
