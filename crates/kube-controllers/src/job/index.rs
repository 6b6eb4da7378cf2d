//! Completion indexes: a pod's, and many as the API writes them, `1,3-5,7`. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

/// Annotation and label of an indexed Job's pods.
pub(crate) const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The index that a pod completes.
pub(crate) fn completion_index(pod: &Pod) -> Option<i32> {
    pod.metadata.annotations.as_ref()?.get(INDEX)?.parse().ok()
}

/// Reads an interval list; what is malformed is left out.
pub(crate) fn parse(text: &str) -> BTreeSet<i32> {
    let mut indexes = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            indexes.extend(first..=last);
        }
    }
    indexes
}

/// Writes an interval list.
pub(crate) fn format(indexes: &BTreeSet<i32>) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for index in indexes {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => runs.push((*index, *index)),
        }
    }
    let run = |(first, last): (i32, i32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    runs.into_iter().map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        for text in ["", "0", "0,1", "0-2", "1,3-5,7", "0-9"] {
            assert_eq!(format(&parse(text)), text);
        }
        assert_eq!(parse("x,2").into_iter().collect::<Vec<_>>(), [2]);
    }
}
