//! Headers that a DataVolume wants sent: open ones in the environment, secret ones in files.

use std::path::Path;

const VARIABLE: &str = "IMPORTER_EXTRA_HEADER_";

/// The headers in variables `IMPORTER_EXTRA_HEADER_n`, by their numbers.
pub(super) fn from_environment(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let mut found: Vec<(u32, String)> =
        variables.filter_map(|(name, value)| Some((name.strip_prefix(VARIABLE)?.parse().ok()?, value))).collect();
    found.sort();
    found.into_iter().map(|(_, value)| value).collect()
}

/// The headers in the files of a directory of mounted secrets; hidden files are the kubelet's machinery.
pub(super) fn from_directory(directory: &Path) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    collect(directory, 0, &mut found)
        .map_err(|e| format!("cannot read the headers in {}: {e}", directory.display()))?;
    Ok(found)
}

fn collect(directory: &Path, depth: u32, found: &mut Vec<String>) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let mut paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    for path in paths {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')) {
            continue;
        }
        if path.is_dir() {
            if depth < 2 {
                collect(&path, depth + 1, found)?;
            }
        } else {
            let text = std::fs::read_to_string(&path)?;
            found.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_taken_in_their_order() {
        let names = ["IMPORTER_EXTRA_HEADER_10", "IMPORTER_EXTRA_HEADER_9", "PATH", "IMPORTER_EXTRA_HEADER_x"];
        let variables = names.into_iter().map(|name| (name.to_owned(), format!("X: {name}")));
        let expect = ["X: IMPORTER_EXTRA_HEADER_9", "X: IMPORTER_EXTRA_HEADER_10"];
        assert_eq!(from_environment(variables), expect);
    }

    #[test]
    fn secrets_are_read_as_they_are_mounted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("0/..2024_data")).unwrap();
        std::fs::write(dir.path().join("0/..2024_data/auth"), "X-Auth: a\n").unwrap();
        std::os::unix::fs::symlink("..2024_data", dir.path().join("0/..data")).unwrap();
        std::os::unix::fs::symlink("..data/auth", dir.path().join("0/auth")).unwrap();
        std::fs::write(dir.path().join("direct"), "X-B: b").unwrap();
        assert_eq!(from_directory(dir.path()).unwrap(), ["X-Auth: a", "X-B: b"]);
        assert_eq!(from_directory(&dir.path().join("missing")).unwrap(), Vec::<String>::new());
    }
}
