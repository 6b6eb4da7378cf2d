//! Resource quantities (`500m`, `1.5Gi`, `2e3`) as exact thousandths.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Thousandths of a unit. Fractions beyond that are rounded up, as Kubernetes does.
pub(crate) type Milli = i128;

/// Parses a quantity; `None` when it is malformed.
pub(crate) fn parse(text: &str) -> Option<Milli> {
    let text = text.trim();
    let digits_end = text
        .char_indices()
        .find(|(i, c)| !(c.is_ascii_digit() || *c == '.' || (*i == 0 && (*c == '-' || *c == '+'))))
        .map_or(text.len(), |(i, _)| i);
    let (number, suffix) = text.split_at(digits_end);
    let (negative, number) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || whole.len() + fraction.len() > 24 {
        return None;
    }
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (multiplier, divisor) = scale(suffix)?;
    let divisor = divisor.checked_mul(10i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)?;
    let scaled = mantissa.checked_mul(multiplier)?.checked_mul(1000)?;
    let milli = scaled / divisor + i128::from(scaled % divisor != 0);
    Some(if negative { -milli } else { milli })
}

fn scale(suffix: &str) -> Option<(i128, i128)> {
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10i128.checked_pow(exponent.unsigned_abs())?;
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    })
}

/// The value of a quantity; a malformed one counts as nothing (the API server admits none).
pub(crate) fn of(quantity: &Quantity) -> Milli {
    parse(&quantity.0).unwrap_or(0)
}

/// Writes a quantity the way it is usually read: binary suffixes for memory, thousandths for fractions.
pub(crate) fn format(milli: Milli, binary: bool) -> Quantity {
    if milli % 1000 != 0 {
        return Quantity(format!("{milli}m"));
    }
    let value = milli / 1000;
    if binary && value != 0 {
        for (suffix, shift) in [("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)] {
            if value % (1i128 << shift) == 0 {
                return Quantity(format!("{}{suffix}", value >> shift));
            }
        }
    }
    Quantity(value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<Milli>) {
        assert_eq!(parse(text), expect, "{text}");
    }

    #[test]
    fn quantities() {
        check("1", Some(1000));
        check("500m", Some(500));
        check("0.5", Some(500));
        check("1.5Gi", Some(1_610_612_736_000));
        check("100u", Some(1));
        check("2e3", Some(2_000_000));
        check("1E", Some(1_000_000_000_000_000_000_000));
        check("-1k", Some(-1_000_000));
        check("", None);
        check("1x", None);
        check("m", None);
    }

    #[test]
    fn written_back() {
        for (text, binary) in [("250m", false), ("3", false), ("128Mi", true), ("1Gi", true), ("0", true)] {
            assert_eq!(format(parse(text).unwrap(), binary).0, text);
        }
    }
}
