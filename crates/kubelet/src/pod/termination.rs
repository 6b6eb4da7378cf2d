//! A container's last words: its termination log, or the end of its output.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use crate::logs::record;

const MESSAGE_LIMIT: u64 = 4096;
const FALLBACK_BYTES: usize = 2048;
const FALLBACK_LINES: usize = 80;

/// The message: the termination log, or with `fallback` (asked for and the container failed) the end of its log.
pub(crate) fn message(termination_log: &Path, container_log: &Path, fallback: bool) -> String {
    let mut text = Vec::new();
    let own = File::open(termination_log).and_then(|file| file.take(MESSAGE_LIMIT).read_to_end(&mut text));
    if own.is_ok() && !text.is_empty() {
        return String::from_utf8_lossy(&text).into_owned();
    }
    if fallback { tail(container_log).unwrap_or_default() } else { String::new() }
}

fn tail(log: &Path) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(4 * FALLBACK_BYTES as u64)))?;
    let mut raw = Vec::new();
    file.read_to_end(&mut raw)?;
    let mut text = String::new();
    for line in raw.split_inclusive(|byte| *byte == b'\n') {
        if let Some(record) = record::parse(line) {
            text.push_str(&String::from_utf8_lossy(record.text));
            if !record.partial {
                text.push('\n');
            }
        }
    }
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let mut kept: String = lines[lines.len().saturating_sub(FALLBACK_LINES)..].concat();
    while kept.len() > FALLBACK_BYTES {
        let cut = kept.char_indices().nth(1).map_or(kept.len(), |(at, _)| at);
        let from = (kept.len() - FALLBACK_BYTES).max(cut);
        let from = (from..=kept.len()).find(|at| kept.is_char_boundary(*at)).unwrap_or(kept.len());
        kept.drain(..from);
    }
    Ok(kept)
}
