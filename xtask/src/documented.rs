//! `docs/kubernetes.md` says what the embedded cluster serves and what it does not, `docs/security.md` which holes are closed. Each
//! line of their tables ends with the tests that show it; a line that names none, or one that is not there, is a finding.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

const PAGES: [&str; 2] = ["docs/kubernetes.md", "docs/security.md"];

/// Lines of the pages that no test of these sources backs.
pub(crate) fn findings(root: &Path, files: &[impl AsRef<Path>]) -> Result<Vec<String>> {
    let mut tests = BTreeSet::new();
    for path in files.iter().map(AsRef::as_ref).filter(|path| path.extension().is_some_and(|e| e == "rs" || e == "py"))
    {
        let text =
            std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {}", path.display()))?;
        tests.extend(declared(&text));
    }
    let mut found = Vec::new();
    for page in PAGES {
        let text = std::fs::read_to_string(root.join(page)).with_context(|| format!("cannot read {page}"))?;
        found.extend(unbacked(page, &text, &tests));
    }
    Ok(found)
}

fn unbacked(page: &str, text: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| is_row(line)) {
        let named: Vec<_> = last_cell(line).split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            found.push(format!("{page}:{}: no test is named for this line", number + 1));
        }
        for name in named.iter().filter(|name| !tests.contains(**name)) {
            found.push(format!("{page}:{}: there is no test {name}", number + 1));
        }
    }
    found
}

/// A line of a table that is neither its head nor the rule below it.
fn is_row(line: &str) -> bool {
    line.starts_with('|') && !line.starts_with("|-") && !line.trim_end().ends_with("| shown by |")
}

fn last_cell(line: &str) -> &str {
    line.trim_end().trim_end_matches('|').rsplit('|').next().unwrap_or_default()
}

/// Names of the tests in a source: functions with a test attribute, those listed by name in a table of live tests, and Python's.
fn declared(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut marked = false;
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[") && (line.contains("test]") || line.contains("test(")) {
            marked = true;
        } else if let Some(name) = name_after(line, "fn ") {
            found.extend(marked.then_some(name));
            marked = false;
        } else if let Some(name) = name_after(line, "def ").filter(|name| name.starts_with("test_")) {
            found.push(name);
        }
        found.extend(line.split("(\"").skip(1).filter_map(listed));
        let scenario = ["trial(\"", "long(\""].iter().find_map(|call| line.split_once(call));
        found.extend(scenario.and_then(|(_, rest)| rest.split_once('"')).map(|(name, _)| name.to_owned()));
    }
    found
}

fn name_after(line: &str, word: &str) -> Option<String> {
    let rest = line.split_once('(')?.0;
    let (before, name) = rest.rsplit_once(word)?;
    let name = name.split('<').next()?;
    (before.is_empty() || before.ends_with(' ')).then(|| name.to_owned())
}

/// `name", name` of `("name", name)`, or of `("name", |space| …)`. A scenario's function may have a shorter name.
fn listed(rest: &str) -> Option<String> {
    let (name, function) = rest.split_once("\",")?;
    if function.trim_start().starts_with("|space|") {
        return Some(name.to_owned());
    }
    function
        .trim_start()
        .trim_start_matches("super::")
        .split([')', ','])
        .next()
        .filter(|f| f.ends_with(name))
        .map(|_| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_wherever_they_are_declared() {
        let check = |text: &str, expect: &[&str]| assert_eq!(declared(text), expect, "{text}");
        check("#[test]\nfn one() {", &["one"]);
        check("#[tokio::test(start_paused = true)]\nasync fn two() -> X {", &["two"]);
        check("fn plain() {", &[]);
        check("    &[(\"three\", three), (\"four\", deep::four)];", &["three", "four"]);
        check("call(\"five\", other);", &[]);
        check("        long(\"a_nine\", nine),", &["a_nine"]);
        check("    (\"eight\", |space| Box::pin(token(space))),", &["eight"]);
        check("    def test_six(self):", &["test_six"]);
        check("    def seven(self):", &[]);
    }

    #[test]
    fn each_line_names_tests_that_exist() {
        let tests = BTreeSet::from(["one".to_owned(), "two".to_owned()]);
        let check = |row: &str, expect: usize| {
            let text = format!("# Title\n\n| what | shown by |\n|---|---|\n{row}\n");
            assert_eq!(unbacked("page.md", &text, &tests).len(), expect, "{row}");
        };
        check("| `Pod` | `one` |", 0);
        check("| `Pod` | `one`, `two` |", 0);
        check("| Pod | `three`, `two` |", 1);
        check("| Pod |  |", 1);
    }
}
