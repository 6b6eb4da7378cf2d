//! Which nodes have which images, for preferring a node that need not pull. Pure.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Node, PodSpec};

/// Image -> its size and how many nodes have it.
#[derive(Debug, Default)]
pub(crate) struct Census(HashMap<String, (i64, usize)>);

fn names(node: &Node) -> impl Iterator<Item = (&String, i64)> {
    let images = node.status.iter().flat_map(|status| status.images.iter().flatten());
    images.flat_map(|image| image.names.iter().flatten().map(|name| (name, image.size_bytes.unwrap_or(0))))
}

impl Census {
    /// Takes in a change of a node's list.
    pub(crate) fn replace(&mut self, old: Option<&Node>, new: Option<&Node>) {
        let list = |node: &Node| node.status.as_ref().and_then(|status| status.images.clone());
        if old.and_then(list) == new.and_then(list) {
            return;
        }
        for (name, _) in old.into_iter().flat_map(names) {
            if let Some((_, count)) = self.0.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(name);
                }
            }
        }
        for (name, size) in new.into_iter().flat_map(names) {
            let entry = self.0.entry(name.clone()).or_insert((size, 0));
            entry.0 = size;
            entry.1 += 1;
        }
    }

    /// What each of a pod's images is worth where it is present: its size, and less while few nodes have it, so that one
    /// node does not draw all pods.
    pub(crate) fn worth(&self, spec: &PodSpec, nodes: usize) -> Vec<(String, i64)> {
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let images = containers.filter_map(|container| container.image.as_deref()).map(complete);
        let worth = images.filter_map(|name| {
            let (size, count) = self.0.get(&name)?;
            Some((name, (*size as f64 * *count as f64 / nodes.max(1) as f64) as i64))
        });
        worth.collect()
    }
}

/// An image without a tag is the one tagged latest.
fn complete(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

/// Below this nothing is gained; at so much a container, everything.
const LEAST: i64 = 23 << 20;
const MOST: i64 = 1000 << 20;

/// 0 to 100 for a node by those of a pod's images that it has.
pub(crate) fn score(worth: &[(String, i64)], node: &Node, containers: usize) -> i64 {
    if worth.is_empty() {
        return 0;
    }
    let has = |name: &str| names(node).any(|(own, _)| own == name);
    let sum: i64 = worth.iter().filter(|(name, _)| has(name)).map(|(_, worth)| worth).sum();
    let most = MOST * i64::try_from(containers.max(1)).unwrap_or(1);
    100 * (sum.clamp(LEAST, most) - LEAST) / (most - LEAST)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn large_images_that_are_there_count() {
        let node = |images: serde_json::Value| -> Node {
            serde_json::from_value(json!({"status": {"images": images}})).unwrap()
        };
        let with = node(json!([{"names": ["registry.example/big:latest"], "sizeBytes": 2_000_000_000i64}]));
        let mut census = Census::default();
        census.replace(None, Some(&with));
        let spec =
            serde_json::from_value(json!({"containers": [{"name": "c", "image": "registry.example/big"}]})).unwrap();
        let worth = census.worth(&spec, 2);
        assert_eq!(score(&worth, &with, 1), 95);
        assert_eq!(score(&worth, &node(json!([])), 1), 0);
        census.replace(Some(&with), None);
        assert!(census.worth(&spec, 1).is_empty());
    }
}
