//! Resource quantities, `100m`, `1.5Gi`, `2e3`, exactly enough to compare them.

/// The largest quantity there is; what is more is taken for it.
const LARGEST: i128 = i64::MAX as i128 * 1_000_000_000;

/// The quantity in billionths, rounded away from zero; None when it is not one.
pub fn nanos(text: &str) -> Option<i128> {
    let (number, suffix) = parts(text);
    let (negative, digits) = match number.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let numeric = |part: &str| part.len() <= 300 && part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() && fraction.is_empty() || !numeric(whole) || !numeric(fraction) {
        return None;
    }
    let unit = unit(suffix)?;
    let fraction = &fraction[..fraction.len().min(18)];
    let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let digits: Option<i128> = format!("0{whole}{fraction}").parse().ok();
    let product = digits.and_then(|digits| digits.checked_mul(unit));
    let value = product.map_or(LARGEST, |product| (product / scale + i128::from(product % scale > 0)).min(LARGEST));
    Some(if negative { -value } else { value })
}

/// Rounds a quantity up to thousandths, where it is finer.
pub fn thousandths(quantity: &mut serde_json::Value) {
    const MILLI: i128 = 1_000_000;
    if let Some(nanos) = quantity.as_str().and_then(nanos).filter(|nanos| nanos % MILLI != 0) {
        *quantity = format!("{}m", nanos.div_euclid(MILLI) + 1).into();
    }
}

fn parts(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '+' | '-' | '.'))).unwrap_or(text.len()))
}

/// The quantity as the API writes it: an integer with the largest suffix of its own kind that leaves it one.
pub fn canonical(text: &str) -> Option<String> {
    const ONE: i128 = 1_000_000_000;
    const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let nanos = nanos(text)?;
    let (_, suffix) = parts(text);
    if nanos == 0 {
        return Some("0".to_owned());
    }
    let binary = suffix.ends_with('i') && nanos % ONE == 0 && nanos.abs() >= 1024 * ONE;
    let (mut number, base) = if binary { (nanos / ONE, 1024) } else { (nanos, 1000) };
    let mut step = 0;
    while number % base == 0 && step + 1 < if binary { BINARY.len() } else { DECIMAL.len() } {
        number /= base;
        step += 1;
    }
    let exponent = suffix.len() > 1 && suffix.starts_with(['e', 'E']) && !suffix.ends_with('i');
    Some(match step {
        3 if !binary => number.to_string(),
        _ if binary => format!("{number}{}", BINARY[step]),
        _ if exponent => format!("{number}e{}", 3 * i64::try_from(step).unwrap_or(3) - 9),
        _ => format!("{number}{}", DECIMAL[step]),
    })
}

/// What a suffix stands for, in billionths.
fn unit(suffix: &str) -> Option<i128> {
    const ONE: i128 = 1_000_000_000;
    Some(match suffix {
        "n" => 1,
        "u" => 1_000,
        "m" => 1_000_000,
        "" => ONE,
        "k" => ONE * 1_000,
        "M" => ONE * 1_000_000,
        "G" => ONE * 1_000_000_000,
        "T" => ONE * 1_000_000_000_000,
        "P" => ONE * 1_000_000_000_000_000,
        "E" => ONE * 1_000_000_000_000_000_000,
        "Ki" => ONE << 10,
        "Mi" => ONE << 20,
        "Gi" => ONE << 30,
        "Ti" => ONE << 40,
        "Pi" => ONE << 50,
        "Ei" => ONE << 60,
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            let power: i32 = digits.parse().ok()?;
            let factor = 10_i128.checked_pow(power.unsigned_abs()).filter(|_| power.abs() <= 18)?;
            if power < 0 { ONE / factor } else { ONE * factor }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_compare() {
        let same = [
            ("1", "1000m"),
            ("1Ki", "1024"),
            ("1.5Gi", "1536Mi"),
            ("2e3", "2k"),
            ("+1", "1"),
            ("0.1", "100m"),
            (".5", "500m"),
        ];
        for (a, b) in same {
            assert_eq!(nanos(a), nanos(b), "{a} {b}");
            assert!(nanos(a).is_some());
        }
        for bad in ["", "a", "1X", "1 Gi", "-", "1..2", "1ki"] {
            assert_eq!(nanos(bad), None, "{bad}");
        }
        assert!(nanos("-1").unwrap() < nanos("0").unwrap());
        assert_eq!(nanos("99999999999999999999"), nanos("9223372036854775807"));
    }

    #[test]
    fn quantities_have_one_form() {
        for (text, expect) in [
            ("0.5Gi", "512Mi"),
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("1000m", "1"),
            ("0.1", "100m"),
            ("1000", "1k"),
            ("1024", "1024"),
            ("0.5Ki", "512"),
            ("1023Ki", "1023Ki"),
            ("0Gi", "0"),
            ("+5", "5"),
            ("1e3", "1e3"),
            ("12e2", "1200"),
            ("-1.5", "-1500m"),
            ("0.1n", "1n"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(expect), "{text}");
        }
    }
}
