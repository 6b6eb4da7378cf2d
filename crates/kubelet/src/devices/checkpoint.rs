//! What containers were given, in a file: who is asked for devices after this process has started again must not get those of others, and
//! a container that starts again needs what its plugin said.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use prost::Message as _;
use rpc::deviceplugin::ContainerAllocateResponse;
use serde::{Deserialize, Serialize};

/// By pod and container, and then by resource.
pub(super) type Held = HashMap<(String, String), BTreeMap<String, Kept>>;

/// Devices of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Kept {
    pub(super) ids: Vec<String>,
    /// What their plugin said the container needs for them; none until it has been asked, or when it has to be asked anew.
    pub(super) answers: Option<Vec<ContainerAllocateResponse>>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    pod: String,
    container: String,
    resource: String,
    devices: Vec<String>,
    answers: Option<Vec<String>>,
}

/// What is in the file; nothing where there is none.
///
/// # Errors
/// When it cannot be read, or somebody else has written it.
pub(super) fn read(path: &Path) -> io::Result<Held> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Held::new()),
        text => text?,
    };
    let mut held = Held::new();
    for line in serde_json::from_slice::<Vec<Line>>(&text)? {
        let answers = line.answers.map(|all| all.iter().map(|one| decode(one)).collect()).transpose()?;
        let kept = Kept { ids: line.devices, answers };
        held.entry((line.pod, line.container)).or_default().insert(line.resource, kept);
    }
    Ok(held)
}

fn decode(answer: &str) -> io::Result<ContainerAllocateResponse> {
    let bytes = BASE64_STANDARD.decode(answer).map_err(io::Error::other)?;
    ContainerAllocateResponse::decode(bytes.as_slice()).map_err(io::Error::other)
}

/// Replaces the file, in one step.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write(path: &Path, held: &Held) -> io::Result<()> {
    let encode = |answer: &ContainerAllocateResponse| BASE64_STANDARD.encode(answer.encode_to_vec());
    let lines: Vec<Line> = held
        .iter()
        .flat_map(|((pod, container), resources)| {
            resources.iter().map(move |(resource, kept)| (pod, container, resource, kept))
        })
        .map(|(pod, container, resource, kept)| Line {
            pod: pod.clone(),
            container: container.clone(),
            resource: resource.clone(),
            devices: kept.ids.clone(),
            answers: kept.answers.as_ref().map(|all| all.iter().map(encode).collect()),
        })
        .collect();
    let new = path.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(&lines)?)?;
    std::fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_known_in_the_next_life() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("given.json");
        assert_eq!(read(&path).unwrap(), Held::new());
        let answer =
            ContainerAllocateResponse { envs: HashMap::from([("A".into(), "b".into())]), ..Default::default() };
        let kept = |answers| Kept { ids: vec!["d0".into(), "d1".into()], answers };
        let resources =
            BTreeMap::from([("x/asked".into(), kept(Some(vec![answer]))), ("x/reserved".into(), kept(None))]);
        let held = Held::from([(("uid".into(), "main".into()), resources)]);
        write(&path, &held).unwrap();
        assert_eq!(read(&path).unwrap(), held);
        std::fs::write(&path, "[{}]").unwrap();
        assert!(read(&path).is_err());
    }
}
