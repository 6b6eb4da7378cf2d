//! Cron expressions, as far as to tell whether one is one: five fields, or six with seconds, or seven with years besides.

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const NAMED: [&str; 7] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

struct Field {
    first: u32,
    last: u32,
    names: &'static [&'static str],
    /// What else a part may be.
    special: fn(&str) -> bool,
}

const fn field(first: u32, last: u32, names: &'static [&'static str]) -> Field {
    Field { first, last, names, special: |_| false }
}

const SECONDS: Field = field(0, 59, &[]);
const MINUTES: Field = field(0, 59, &[]);
const HOURS: Field = field(0, 23, &[]);
const DAY_OF_MONTH: Field = Field {
    special: |part| part == "l" || part == "lw" || part.strip_suffix('w').is_some_and(|day| number(day, 1, 31)),
    ..field(1, 31, &[])
};
const MONTH: Field = field(1, 12, &MONTHS);
const DAY_OF_WEEK: Field = Field {
    special: |part| {
        let day = |day: &str| number(day, 0, 7) || DAYS.contains(&day);
        part == "l"
            || part.strip_suffix('l').is_some_and(day)
            || part.split_once('#').is_some_and(|(name, nth)| day(name) && number(nth, 1, 5))
    },
    ..field(0, 7, &DAYS)
};
const YEAR: Field = field(1970, 2099, &[]);

fn number(text: &str, first: u32, last: u32) -> bool {
    text.parse::<u32>().is_ok_and(|number| (first..=last).contains(&number))
}

impl Field {
    fn value(&self, text: &str) -> Option<u32> {
        if let Some(at) = self.names.iter().position(|name| *name == text) {
            return u32::try_from(at).ok().map(|at| at + self.first);
        }
        text.parse().ok().filter(|number| (self.first..=self.last).contains(number))
    }

    fn part(&self, part: &str) -> bool {
        let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
        if step.is_some_and(|step| !number(step, 1, self.last.max(1))) {
            return false;
        }
        match range.split_once('-') {
            Some((first, last)) => self.value(first).zip(self.value(last)).is_some_and(|(first, last)| first <= last),
            None => {
                matches!(range, "*" | "?") || self.value(range).is_some() || (step.is_none() && (self.special)(range))
            }
        }
    }

    fn holds(&self, text: &str) -> bool {
        text.split(',').all(|part| self.part(part))
    }
}

/// True when `text` says when.
pub(crate) fn is_schedule(text: &str) -> bool {
    let text = text.trim().to_ascii_lowercase();
    if text.starts_with('@') {
        return NAMED.contains(&text.as_str());
    }
    let parts: Vec<&str> = text.split_ascii_whitespace().collect();
    let five = [MINUTES, HOURS, DAY_OF_MONTH, MONTH, DAY_OF_WEEK];
    let fields: Vec<Field> = match parts.len() {
        5 => five.into(),
        6 => five.into_iter().chain([YEAR]).collect(),
        7 => [SECONDS].into_iter().chain(five).chain([YEAR]).collect(),
        _ => return false,
    };
    fields.iter().zip(parts).all(|(field, part)| field.holds(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules() {
        for good in ["* * * * *", "0 */12 * * *", "30 1 * * 1-5", "@daily", "0 0 1,15 jan-mar mon", "0 0 L * 5#2"] {
            assert!(is_schedule(good), "{good}");
        }
        for bad in ["", "* * * *", "60 * * * *", "*/0 * * * *", "@never", "a b c d e", "5-1 * * * *", "1 2 3 13 *"] {
            assert!(!is_schedule(bad), "{bad}");
        }
    }
}
