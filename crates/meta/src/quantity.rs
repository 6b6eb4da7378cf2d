//! Quantities as Kubernetes writes them: `1Gi`, `500m`, `1e3`. Exact arithmetic in billionths.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Parts of one: a quantity is a whole number of these.
const NANO: i128 = 1_000_000_000;

/// The largest quantity, in billionths: Kubernetes caps at 2⁶³-1 whole units.
const LARGEST: i128 = i64::MAX as i128 * NANO;

/// Parts of one that amounts of resources are counted in.
const MILLI: i128 = 1000;

/// A parsed quantity, exact to 10⁻⁹ as in Kubernetes (finer digits round up).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(i128);

/// The text is no quantity.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "quantities must match the regular expression \
     '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)]
pub struct ParseError;

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// So many.
    pub const fn from_integer(value: i64) -> Self {
        Self(value as i128 * NANO)
    }

    /// So many bytes.
    pub const fn from_bytes(value: u64) -> Self {
        Self(value as i128 * NANO)
    }

    /// So many billionths.
    pub const fn from_nanos(nanos: i128) -> Self {
        Self(nanos)
    }

    /// So many thousandths.
    pub const fn from_millis(millis: i128) -> Self {
        Self(millis.saturating_mul(NANO / MILLI))
    }

    /// Billionths, exactly.
    pub const fn nanos(self) -> i128 {
        self.0
    }

    /// Thousandths, rounded up; one that a `Quantity` can say has at most 2⁷³.
    pub fn millis(self) -> i128 {
        ceil(self.0, NANO / MILLI)
    }

    /// The whole number at or above this amount, saturating.
    pub fn value(self) -> i64 {
        clamp(ceil(self.0, NANO))
    }

    /// Thousandths, rounded up and saturating: what CPU is counted in.
    pub fn milli_value(self) -> i64 {
        clamp(self.millis())
    }

    /// Bytes; a negative amount is none.
    pub fn bytes(self) -> u64 {
        u64::try_from(self.value()).unwrap_or(0)
    }

    /// The form Kubernetes gives a byte count: the largest binary suffix that leaves a whole number.
    pub fn to_binary(self) -> Quantity {
        const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        if self.0 % NANO != 0 {
            return self.to_decimal();
        }
        let (number, step) = reduced(self.0 / NANO, 1024, SUFFIXES.len());
        Quantity(format!("{number}{}", SUFFIXES[step]))
    }

    /// The canonical decimal form: the largest decimal suffix that leaves a whole number.
    pub fn to_decimal(self) -> Quantity {
        const SUFFIXES: [&str; DECIMALS] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        if self.0 == 0 {
            return Quantity("0".to_owned());
        }
        let (number, step) = reduced(self.0, 1000, DECIMALS);
        Quantity(format!("{number}{}", SUFFIXES[step]))
    }

    fn to_exponent(self) -> String {
        let (number, step) = reduced(self.0, 1000, DECIMALS);
        // Billionths come first, units fourth.
        match step {
            3 => number.to_string(),
            _ => format!("{number}e{}", 3 * i64::try_from(step).unwrap_or(3) - 9),
        }
    }

    /// Both together; the largest amount where that is too much.
    pub fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// What is left without `other`; it may be negative.
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// So many times this; the largest amount where that is too much.
    pub fn saturating_mul(self, factor: i64) -> Self {
        Self(self.0.saturating_mul(i128::from(factor)))
    }
}

/// How many decimal suffixes there are, `n` to `E`.
const DECIMALS: usize = 10;

/// `number` divided by `base` as often as that leaves a whole one, but fewer than `most` times; and how often that was.
fn reduced(mut number: i128, base: i128, most: usize) -> (i128, usize) {
    let mut step = 0;
    while number != 0 && number % base == 0 && step + 1 < most {
        number /= base;
        step += 1;
    }
    (number, step)
}

/// The quantity in billionths; None when it is not one.
pub fn nanos(text: &str) -> Option<i128> {
    text.parse().ok().map(Amount::nanos)
}

/// The quantity as the API stores it: an integer with the largest suffix of its own family (binary, decimal, exponent) that
/// leaves it one. None when it is not a quantity.
pub fn canonical(text: &str) -> Option<String> {
    let amount: Amount = text.parse().ok()?;
    let number = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.');
    let suffix = text.trim_start_matches(number);
    // Below 1024, and where a fraction is left, binary quantities are written as decimal ones.
    let binary = suffix.ends_with('i') && amount.0 % NANO == 0 && amount.0.abs() >= 1024 * NANO;
    let exponent = suffix.len() > 1 && suffix.starts_with(['e', 'E']) && !suffix.ends_with('i');
    Some(match (binary, exponent) {
        _ if amount == Amount::ZERO => "0".to_owned(),
        (true, _) => amount.to_binary().0,
        (false, true) => amount.to_exponent(),
        (false, false) => amount.to_decimal().0,
    })
}

fn ceil(value: i128, unit: i128) -> i128 {
    value.div_euclid(unit) + i128::from(value.rem_euclid(unit) != 0)
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

impl TryFrom<&Quantity> for Amount {
    type Error = ParseError;

    fn try_from(quantity: &Quantity) -> Result<Self, ParseError> {
        quantity.0.parse()
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_binary().0)
    }
}

impl FromStr for Amount {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let split = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(split);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(ParseError);
        }
        let scale = Scale::parse(suffix)?;
        let magnitude = scale.apply(whole, fraction);
        Ok(Self(if negative { -magnitude } else { magnitude }))
    }
}

/// What a suffix multiplies by.
enum Scale {
    Binary(u32),
    Decimal(i32),
}

impl Scale {
    fn parse(suffix: &str) -> Result<Self, ParseError> {
        Ok(match suffix {
            "Ki" => Self::Binary(10),
            "Mi" => Self::Binary(20),
            "Gi" => Self::Binary(30),
            "Ti" => Self::Binary(40),
            "Pi" => Self::Binary(50),
            "Ei" => Self::Binary(60),
            "n" => Self::Decimal(-9),
            "u" => Self::Decimal(-6),
            "m" => Self::Decimal(-3),
            "" => Self::Decimal(0),
            "k" => Self::Decimal(3),
            "M" => Self::Decimal(6),
            "G" => Self::Decimal(9),
            "T" => Self::Decimal(12),
            "P" => Self::Decimal(15),
            "E" => Self::Decimal(18),
            other => {
                let exponent = other.strip_prefix(['e', 'E']).ok_or(ParseError)?;
                Self::Decimal(exponent.parse::<i16>().map_err(|_| ParseError)?.into())
            }
        })
    }

    /// `whole.fraction` times the scale in nano-units, rounded up, saturating.
    fn apply(&self, whole: &str, fraction: &str) -> i128 {
        let fraction = fraction.trim_end_matches('0');
        let digits: String = whole.chars().chain(fraction.chars()).collect();
        let digits = digits.trim_start_matches('0');
        if digits.is_empty() {
            return 0;
        }
        let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
        let (factor, decimal) = match self {
            Self::Binary(shift) => (1_i128 << shift, 9 - places),
            Self::Decimal(exponent) => (1, exponent.saturating_add(9).saturating_sub(places)),
        };
        let Some(mantissa) = digits.parse::<i128>().ok().and_then(|m| m.checked_mul(factor)) else {
            // More digits than an i128 holds: the tail only decides how the precision that is kept is rounded.
            let most = usize::try_from(i128::MAX.ilog10() - factor.ilog10() - 1).unwrap_or(1);
            let (kept, tail) = digits.split_at(digits.len().min(most));
            let cut = i32::try_from(tail.len()).unwrap_or(i32::MAX);
            let rest = i128::from(tail.bytes().any(|digit| digit != b'0'));
            let mantissa = kept.parse::<i128>().unwrap_or(i128::MAX).saturating_add(rest).saturating_mul(factor);
            return scale_ten(mantissa, decimal.saturating_add(cut));
        };
        scale_ten(mantissa, decimal)
    }
}

fn scale_ten(mantissa: i128, exponent: i32) -> i128 {
    let scaled = if exponent >= 0 {
        10_i128.checked_pow(exponent.unsigned_abs()).and_then(|p| mantissa.checked_mul(p)).unwrap_or(LARGEST)
    } else {
        match 10_i128.checked_pow(exponent.unsigned_abs()) {
            Some(divisor) => ceil(mantissa, divisor),
            None => 1,
        }
    };
    scaled.min(LARGEST)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, value: i64, milli: i64, canonical: &str) {
        let amount: Amount = text.parse().unwrap();
        assert_eq!((amount.value(), amount.milli_value(), amount.to_string().as_str()), (value, milli, canonical));
    }

    #[test]
    fn parses_as_kubernetes_does() {
        check("0", 0, 0, "0");
        check("1", 1, 1000, "1");
        check("100m", 1, 100, "100m");
        check("1.5", 2, 1500, "1500m");
        check("1.5Gi", 1_610_612_736, 1_610_612_736_000, "1536Mi");
        check("128Mi", 134_217_728, 134_217_728_000, "128Mi");
        check("1e3", 1000, 1_000_000, "1000");
        check("1E3", 1000, 1_000_000, "1000");
        check("2k", 2000, 2_000_000, "2000");
        check("-1Ki", -1024, -1_024_000, "-1Ki");
        check(".5", 1, 500, "500m");
        check("5.", 5, 5000, "5");
        check("0.1n", 1, 1, "1n");
        check("9Ei", i64::MAX, i64::MAX, "9223372036854775807");
        check("1e19", i64::MAX, i64::MAX, "9223372036854775807");
        check("1e-19", 1, 1, "1n");
        check("1.0000000000000000000000000000000000000000000Gi", 1 << 30, 1000 << 30, "1Gi");
        check("1.0000000000000000000000000000000000000000001", 2, 1001, "1000000001n");
        check(
            "123456789012.1234567890000000000000000000000001",
            123_456_789_013,
            123_456_789_012_124,
            "123456789012123456790n",
        );
        check("100000000000000000000000000000000000000000e-41", 1, 1000, "1");
    }

    #[test]
    fn quantities_are_stored_in_one_form() {
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
        assert_eq!(canonical("1X"), None);
    }

    #[test]
    fn refuses_what_kubernetes_refuses() {
        for text in [
            "", "Mi", "1 Gi", "1gi", "1..2", "1.2.3", "e3", "1e", "--1", "1Gib", "0x10", "1e1.5", "a", "-", "1X", "1ki",
        ] {
            assert_eq!(text.parse::<Amount>(), Err(ParseError), "{text:?}");
        }
    }

    #[test]
    fn decimal_form() {
        assert_eq!("1500m".parse::<Amount>().unwrap().to_decimal().0, "1500m");
        assert_eq!("1000000".parse::<Amount>().unwrap().to_decimal().0, "1M");
    }

    proptest! {
        #[test]
        fn canonical_form_reads_back(value in any::<i32>(), exponent in 0_u32..5) {
            let amount = Amount(i128::from(value) * 1000_i128.pow(exponent));
            prop_assert_eq!(amount.to_binary().0.parse::<Amount>().unwrap(), amount);
            prop_assert_eq!(amount.to_decimal().0.parse::<Amount>().unwrap(), amount);
        }

        #[test]
        fn order_is_numeric(a in any::<u32>(), b in any::<u32>()) {
            let (x, y) = (format!("{a}Ki").parse::<Amount>().unwrap(), format!("{b}Ki").parse::<Amount>().unwrap());
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
        }

        #[test]
        fn never_panics(text in "[-+]?[0-9.]{0,45}[a-zA-Z]{0,2}[-+]?[0-9]{0,4}") {
            let _ = text.parse::<Amount>();
        }
    }
}
