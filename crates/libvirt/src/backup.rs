//! Backups of running domains, and the checkpoints that say since when blocks are counted as changed.

use crate::domain::{Domain, nothing};
use crate::wire::{DomainName, checked, remote};
use crate::xdr::Reader;
use crate::{Event, Parameter, Result, Value};

/// `VIR_DOMAIN_JOB_OPERATION_BACKUP`
const BACKUP: i32 = 9;
/// `VIR_DOMAIN_BACKUP_BEGIN_REUSE_EXTERNAL`
const INTO_FILES_THAT_ARE_THERE: u32 = 1;
/// `VIR_DOMAIN_CHECKPOINT_CREATE_REDEFINE` and `…_REDEFINE_VALIDATE`
const REDEFINE: u32 = 1 | 1 << 2;

/// How a backup ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All of it was written.
    Complete,
    /// Somebody ended it: how a backup that is served ends, and how one that is written does not.
    Cancelled,
    /// It was not, for this reason.
    Failed(String),
}

/// What libvirt says of a job that somebody ended.
const CANCELLED: &str = "Operation canceled";

impl Domain {
    /// Begins a backup into files that are there, or one that is served with such files beside it, until it is aborted;
    /// `Event::JobCompleted` tells of its end. With a checkpoint, changes are counted from the backup's moment on.
    pub fn begin_backup(&self, backup: &str, checkpoint: Option<&str>) -> Result<()> {
        let checkpoint = checkpoint.map(|xml| checked("the checkpoint XML", xml)).transpose()?;
        let arguments = self.arguments().text(checked("the backup XML", backup)?);
        let arguments = arguments.optional(checkpoint).u32(INTO_FILES_THAT_ARE_THERE);
        self.client.call_remote("beginning a backup", remote::DOMAIN_BACKUP_BEGIN, arguments, nothing)
    }

    /// Tells this daemon of a checkpoint that an earlier one made; refused where its bitmaps are not what they should be.
    pub fn redefine_checkpoint(&self, xml: &str) -> Result<()> {
        let arguments = self.arguments().text(checked("the checkpoint XML", xml)?).u32(REDEFINE);
        self.client.call_remote("redefining a checkpoint", remote::DOMAIN_CHECKPOINT_CREATE_XML, arguments, |answer| {
            answer.text()?;
            DomainName::read(answer).map(drop)
        })
    }

    /// Names of the checkpoints that this daemon knows.
    pub fn checkpoints(&self) -> Result<Vec<String>> {
        let with_names = 1;
        let arguments = self.arguments().i32(with_names).u32(0);
        self.client.call_remote(
            "listing the checkpoints",
            remote::DOMAIN_LIST_ALL_CHECKPOINTS,
            arguments,
            |answer: &mut Reader| {
                answer.list(|one| {
                    let name = one.text()?;
                    DomainName::read(one).map(|_| name)
                })
            },
        )
    }

    /// Forgets a checkpoint and its bitmaps; what it counted goes to the one before it.
    pub fn delete_checkpoint(&self, name: &str) -> Result<()> {
        let arguments = crate::xdr::Writer::default().text(checked("the checkpoint's name", name)?);
        let arguments = self.name(arguments).u32(0);
        self.client.call_remote("deleting a checkpoint", remote::DOMAIN_CHECKPOINT_DELETE, arguments, nothing)
    }
}

/// What `event` says of a backup, if it is about the end of one.
pub fn ended(event: &Event) -> Option<Ended> {
    let Event::JobCompleted { parameters, .. } = event else { return None };
    let find = |name: &str| parameters.iter().find(|one| one.name == name).map(|one: &Parameter| &one.value);
    if find("operation") != Some(&Value::Integer(BACKUP)) {
        return None;
    }
    if find("success") == Some(&Value::Boolean(true)) {
        return Some(Ended::Complete);
    }
    match find("errmsg") {
        Some(Value::Text(why)) if why != CANCELLED => Some(Ended::Failed(why.clone())),
        _ => Some(Ended::Cancelled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_a_backup_is_one() {
        let check = |parameters: &[(&str, Value)], expect: Option<Ended>| {
            let parameters =
                parameters.iter().map(|(name, value)| Parameter { name: (*name).to_owned(), value: value.clone() });
            let event = Event::JobCompleted { domain: "d".to_owned(), parameters: parameters.collect() };
            assert_eq!(ended(&event), expect);
        };
        let backup = ("operation", Value::Integer(BACKUP));
        check(&[("operation", Value::Integer(5)), ("success", Value::Boolean(true))], None);
        check(&[backup.clone(), ("success", Value::Boolean(true))], Some(Ended::Complete));
        let why = ("errmsg", Value::Text("No space left on device".to_owned()));
        check(&[backup.clone(), why], Some(Ended::Failed("No space left on device".to_owned())));
        check(&[backup.clone(), ("errmsg", Value::Text(CANCELLED.to_owned()))], Some(Ended::Cancelled));
        check(&[backup, ("success", Value::Boolean(false))], Some(Ended::Cancelled));
        assert_eq!(ended(&Event::Disconnected), None);
    }
}
