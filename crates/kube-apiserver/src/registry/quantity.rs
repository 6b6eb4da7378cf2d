//! Resource quantities, `100m`, `1.5Gi`, `2e3`, exactly enough to compare them.

/// The quantity in billionths; None when it is not one.
pub(crate) fn nanos(text: &str) -> Option<i128> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '+' | '-' | '.'))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (negative, digits) = match number.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() || whole.len() > 18 || fraction.len() > 18 {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let unit = unit(suffix)?;
    let value = digits.checked_mul(unit)? / scale;
    Some(if negative { -value } else { value })
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
    }
}
