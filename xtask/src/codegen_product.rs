//! deploy/ferrovirt-operators.yaml and the packages: a Helm chart, a kustomization, and a bundle and a catalog for OLM.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::package::{helm, kustomize, olm};
use crate::product;

/// Directories in which nothing lies but what is generated here.
const OWN: [&str; 3] = ["deploy/helm", "deploy/kustomize", "deploy/olm"];

/// Writes the files, or only compares them when `check`.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let documents = product::compose(root)?;
    let mut files = BTreeMap::from([("deploy/ferrovirt-operators.yaml".into(), product::file_of(&documents))]);
    let object = |name: &str| -> Result<String> {
        let path = root.join("deploy").join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    files.extend(helm::files(&documents, &object("hostpath-cr.yaml")?)?);
    files.extend(kustomize::files(&documents, &object("hco-cr.yaml")?)?);
    files.extend(olm::files(&documents)?);
    let there: BTreeSet<PathBuf> = OWN.iter().flat_map(|dir| below(root, Path::new(dir))).collect();
    let superfluous: Vec<&PathBuf> = there.iter().filter(|path| !files.contains_key(*path)).collect();
    if check {
        ensure!(superfluous.is_empty(), "nothing makes {superfluous:?}: run `cargo xtask codegen manifests`");
    }
    for path in superfluous {
        std::fs::remove_file(root.join(path)).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    for (path, text) in files {
        let target = root.join(&path);
        if check {
            let found = std::fs::read_to_string(&target).unwrap_or_default();
            ensure!(found == text, "{} is out of date: run `cargo xtask codegen manifests`", path.display());
            continue;
        }
        let dir = target.parent().context("a file is in no directory")?;
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        std::fs::write(&target, text).with_context(|| format!("cannot write {}", target.display()))?;
    }
    Ok(())
}

/// The files in and below `dir`, as `root` sees them.
fn below(root: &Path, dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root.join(dir)).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| {
            let path = dir.join(entry.file_name());
            if entry.path().is_dir() { below(root, &path) } else { vec![path] }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_packages_are_current() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        run(&root, std::env::var_os("UPDATE_EXPECT").is_none()).unwrap();
    }
}
