//! The one table: a figure, what was found here, and the floor or reference beside it.

use std::time::Duration;

/// Rows in the order in which they were measured.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<[String; 3]>,
}

impl Table {
    pub(crate) fn row(&mut self, figure: impl Into<String>, here: impl Into<String>, beside: impl Into<String>) {
        self.rows.push([figure.into(), here.into(), beside.into()]);
    }

    pub(crate) fn append(&mut self, other: Self) {
        self.rows.extend(other.rows);
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let head = [["figure".to_owned(), "here".to_owned(), "floor, or reference".to_owned()]];
        let rows = || head.iter().chain(&self.rows);
        let width = |column: usize| rows().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let (first, second) = (width(0), width(1));
        rows().map(|[a, b, c]| format!("{a:<first$}   {b:>second$}   {c}").trim_end().to_owned()).collect()
    }
}

/// Durations, to be asked for percentiles.
#[derive(Default)]
pub(crate) struct Times(Vec<Duration>);

impl Extend<Duration> for Times {
    fn extend<I: IntoIterator<Item = Duration>>(&mut self, more: I) {
        self.0.extend(more);
        self.0.sort_unstable();
    }
}

impl FromIterator<Duration> for Times {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        let mut all = Self::default();
        all.extend(times);
        all
    }
}

impl Times {
    /// The value that `share` of all do not exceed (nearest rank), in seconds.
    pub(crate) fn at(&self, share: f64) -> f64 {
        let rank = (self.0.len() as f64 * share).ceil() as usize;
        self.0.get(rank.max(1) - 1).map_or(f64::NAN, Duration::as_secs_f64)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest() {
        let mut table = Table::default();
        table.row("a", "12.5", "floor 3");
        table.row("a longer one", "7", "");
        let lines = table.lines();
        assert_eq!(lines[1], "a              12.5   floor 3");
        assert_eq!(lines[2], "a longer one      7");
    }

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let times: Times = [5, 1, 4, 2, 3].map(Duration::from_secs).into_iter().collect();
        assert_eq!((times.at(0.5), times.at(0.99), times.at(0.0)), (3.0, 5.0, 1.0));
        assert!(Times::default().at(0.5).is_nan());
    }
}
