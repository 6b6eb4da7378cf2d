//! Keeping logs small: a file over the limit is moved aside and the runtime told to open a new one.

use std::fs;
use std::path::Path;

use rpc::cri::{self, ContainerState};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::known::Known;
use crate::runtime::label;

const LIMIT: u64 = 10 << 20;
const KEEP: usize = 4;

/// Rotates the logs of running containers that have grown over the limit.
pub(crate) async fn rotate(context: &Context, known: &Known) -> Result<()> {
    let pods = known.borrow().clone();
    for container in context.runtime.list_containers(None).await? {
        let uid = container.labels.get(label::POD_UID).cloned().unwrap_or_default();
        let (Some(pod), ContainerState::ContainerRunning) = (pods.get(&uid), container.state()) else { continue };
        let Some(metadata) = &container.metadata else { continue };
        let dir = crate::sandbox::log_directory(pod, &context.config.log_dir);
        let log = Path::new(&dir).join(crate::sandbox::log_path(&metadata.name, metadata.attempt));
        if fs::metadata(&log).is_ok_and(|meta| meta.len() > LIMIT) {
            shift(&log)?;
            let request = cri::ReopenContainerLogRequest { container_id: container.id };
            context.runtime.cri().reopen_container_log(request).await.map_err(Error::runtime("reopen log"))?;
        }
    }
    Ok(())
}

/// `x.log` becomes `x.log.1`, `x.log.1` becomes `x.log.2`, …; the last is dropped.
fn shift(log: &Path) -> Result<()> {
    let numbered = |number: usize| match number {
        0 => log.to_path_buf(),
        number => log.with_extension(format!("log.{number}")),
    };
    for number in (0..KEEP).rev() {
        let from = numbered(number);
        if from.exists() {
            fs::rename(&from, numbered(number + 1)).map_err(Error::file("rotate", from))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifting_drops_the_oldest() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        for content in ["a", "b", "c", "d", "e", "f"] {
            fs::write(&log, content).unwrap();
            shift(&log).unwrap();
        }
        let read = |n: usize| fs::read_to_string(dir.path().join(format!("0.log.{n}"))).unwrap();
        assert_eq!((read(1), read(2), read(4)), ("f".to_owned(), "e".to_owned(), "c".to_owned()));
        assert!(!log.exists() && !dir.path().join("0.log.5").exists());
    }
}
