//! `kubectl cp` both ways: files, directories, a large file.

use anyhow::{Result, ensure};
use e2e::Namespace;

use crate::Test;
use crate::pods::{idle, sh};

pub(crate) const TESTS: &[Test] =
    &[("files_and_directories_are_copied_both_ways", files_and_directories_are_copied_both_ways)];

fn files_and_directories_are_copied_both_ways() -> Result<()> {
    let space = Namespace::new("copy")?;
    idle(&space, "p")?;
    let dir = tempfile::tempdir()?;
    let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let bytes: Vec<u8> = (0..10_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(at("large"), &bytes)?;
    space.kubectl(&["cp", &at("large"), "p:/tmp/large"])?;
    space.kubectl(&["cp", "p:/tmp/large", &at("back")])?;
    ensure!(std::fs::read(at("back"))? == bytes, "the file came back changed");

    std::fs::create_dir_all(dir.path().join("tree/below"))?;
    std::fs::write(dir.path().join("tree/below/file"), "words")?;
    space.kubectl(&["cp", &at("tree"), "p:/tmp/tree"])?;
    ensure!(sh(&space, "p", "cat /tmp/tree/below/file")? == "words", "the directory did not arrive");
    sh(&space, "p", "echo more > /tmp/tree/more")?;
    space.kubectl(&["cp", "p:/tmp/tree", &at("tree-back"), "-c", "main"])?;
    ensure!(std::fs::read_to_string(dir.path().join("tree-back/more"))? == "more\n", "the directory did not come back");
    ensure!(
        std::fs::read_to_string(dir.path().join("tree-back/below/file"))? == "words",
        "a file below did not come back"
    );
    Ok(())
}
