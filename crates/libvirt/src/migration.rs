//! Moving a running domain to another daemon.
//!
//! The daemon of the source does it by itself, peer to peer: it connects to the one of the target, has it prepare, and sends
//! memory and disks. The call lasts as long as that; the job is watched, changed and ended by calls beside it.

use crate::domain::{Domain, nothing};
use crate::wire::{self, checked, parameter, remote};
use crate::xdr::Reader;
use crate::{Parameter, Result, Value};

/// What a migration is to be like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migration {
    /// The daemon of the target as that of the source reaches it, such as `qemu+unix:///session?socket=PATH`.
    pub to: String,
    /// Where the QEMU of the target listens for memory, such as `unix:PATH`; libvirt's choice when empty.
    pub memory_uri: String,
    /// The domain as the target is to run it: what the guest sees may not differ.
    pub xml: Option<String>,
    /// MiB a second, after the guest runs on the target as before; 0 is no limit.
    pub bandwidth: u64,
    /// Targets (`vda`) of the disks whose top layer is copied; the target has files for them, and the layers below. The
    /// others are shared.
    pub copied_disks: Vec<String>,
    /// Where the target serves the disks to copy, such as `unix:PATH`.
    pub disks_uri: Option<String>,
    /// Connections that send memory at once; one when 0.
    pub parallel: u32,
    /// How memory is compressed on its way, such as `zstd`; needs parallel connections.
    pub compression: Option<String>,
    /// Slow the guest down when it changes memory faster than it can be sent.
    pub auto_converge: bool,
    /// `Domain::start_post_copy` may be called.
    pub post_copy: bool,
    /// The guest stays paused on the target.
    pub paused: bool,
    /// Skip libvirt's own judgement about caches of disks that are shared by path.
    pub trust_disks: bool,
}

/// A job of a domain that has not ended, in bytes and milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Job {
    pub elapsed: u64,
    pub memory_total: u64,
    pub memory_processed: u64,
    pub memory_remaining: u64,
    /// Bytes a second.
    pub memory_rate: u64,
    /// Bytes a second that the guest changes.
    pub dirty_rate: u64,
    pub iteration: u64,
    pub disk_total: u64,
    pub disk_processed: u64,
    pub disk_remaining: u64,
    /// How long the guest will stand still, by QEMU's guess; once the job has ended, how long it did.
    pub downtime: u64,
    /// How much the guest is slowed down, in percent.
    pub throttle: u64,
}

/// `virDomainMigrateFlags`.
mod flag {
    pub(super) const LIVE: u32 = 1;
    pub(super) const PEER_TO_PEER: u32 = 1 << 1;
    pub(super) const PERSIST_ON_TARGET: u32 = 1 << 3;
    pub(super) const UNDEFINE_SOURCE: u32 = 1 << 4;
    pub(super) const PAUSED: u32 = 1 << 5;
    pub(super) const NON_SHARED_LAYERS: u32 = 1 << 7;
    pub(super) const UNSAFE: u32 = 1 << 9;
    pub(super) const COMPRESSED: u32 = 1 << 11;
    pub(super) const ABORT_ON_ERROR: u32 = 1 << 12;
    pub(super) const AUTO_CONVERGE: u32 = 1 << 13;
    pub(super) const POST_COPY: u32 = 1 << 15;
    pub(super) const PARALLEL: u32 = 1 << 17;
}

impl Migration {
    fn flags(&self) -> u32 {
        let always = flag::LIVE | flag::PEER_TO_PEER | flag::PERSIST_ON_TARGET | flag::UNDEFINE_SOURCE;
        let asked = [
            (self.paused, flag::PAUSED),
            // A disk that cannot be written any more must not end the guest on both sides.
            (!self.copied_disks.is_empty(), flag::NON_SHARED_LAYERS | flag::ABORT_ON_ERROR),
            (self.trust_disks, flag::UNSAFE),
            (self.auto_converge, flag::AUTO_CONVERGE),
            (self.post_copy, flag::POST_COPY),
            (self.parallel > 0, flag::PARALLEL),
            (self.compression.is_some(), flag::COMPRESSED),
        ];
        asked.into_iter().filter(|(asked, _)| *asked).fold(always, |flags, (_, flag)| flags | flag)
    }

    /// Named as libvirt documents `VIR_MIGRATE_PARAM_*`.
    fn parameters(&self) -> Result<Vec<Parameter>> {
        let mut found = Vec::new();
        let mut text = |name: &str, what, value: &str| -> Result<()> {
            let value = Value::Text(checked(what, value)?.to_owned());
            found.push(Parameter { name: name.to_owned(), value });
            Ok(())
        };
        if !self.memory_uri.is_empty() {
            text("migrate_uri", "the address for memory", &self.memory_uri)?;
        }
        if let Some(xml) = &self.xml {
            text("destination_xml", "the domain XML", xml)?;
            text("persistent_xml", "the domain XML", xml)?;
        }
        for disk in &self.copied_disks {
            text("migrate_disks", "the disk's name", disk)?;
        }
        if let Some(uri) = &self.disks_uri {
            text("disks_uri", "the address for disks", uri)?;
        }
        if let Some(method) = &self.compression {
            text("compression", "the compression", method)?;
        }
        let limits = [("bandwidth", true), ("bandwidth.postcopy", self.post_copy)];
        for (name, _) in limits.into_iter().filter(|(_, applies)| *applies && self.bandwidth > 0) {
            found.push(Parameter { name: name.to_owned(), value: Value::Unsigned(self.bandwidth) });
        }
        if self.parallel > 0 {
            let value = Value::Integer(i32::try_from(self.parallel).unwrap_or(i32::MAX));
            found.push(Parameter { name: "parallel.connections".to_owned(), value });
        }
        Ok(found)
    }
}

impl Job {
    fn read(parameters: &[Parameter]) -> Self {
        let figure = |name: &str| {
            let found = parameters.iter().find(|parameter| parameter.name == name);
            found.and_then(|parameter| parameter.value.as_u64()).unwrap_or_default()
        };
        Self {
            elapsed: figure("time_elapsed"),
            memory_total: figure("memory_total"),
            memory_processed: figure("memory_processed"),
            memory_remaining: figure("memory_remaining"),
            memory_rate: figure("memory_bps"),
            dirty_rate: figure("memory_dirty_rate").saturating_mul(figure("memory_page_size")),
            iteration: figure("memory_iteration"),
            disk_total: figure("disk_total"),
            disk_processed: figure("disk_processed"),
            disk_remaining: figure("disk_remaining"),
            downtime: figure("downtime"),
            throttle: figure("auto_converge_throttle"),
        }
    }
}

impl Domain {
    /// Moves the domain; returns when it runs on the target and is forgotten here, or has gone on running here.
    pub fn migrate(&self, migration: &Migration) -> Result<()> {
        let parameters = migration.parameters()?;
        let uri = checked("the target's URI", &migration.to)?;
        let arguments = self.arguments().optional(Some(uri));
        let arguments = wire::write_parameters(arguments, &parameters);
        let no_cookie = 0;
        let arguments = arguments.u32(no_cookie).u32(migration.flags());
        self.client.call_remote("migrating the domain", remote::DOMAIN_MIGRATE_PERFORM3_PARAMS, arguments, nothing)
    }

    /// How far the job is that runs now; `None` when none does.
    pub fn job(&self) -> Result<Option<Job>> {
        self.job_statistics(0)
    }

    /// The figures of the last job that ended; `None` when none has. Those of a migration are with the target's daemon.
    pub fn completed_job(&self) -> Result<Option<Job>> {
        const COMPLETED: u32 = 1;
        self.job_statistics(COMPLETED)
    }

    fn job_statistics(&self, flags: u32) -> Result<Option<Job>> {
        const NONE: i32 = 0;
        let arguments = self.arguments().u32(flags);
        self.client.call_remote(
            "reading the job's progress",
            remote::DOMAIN_GET_JOB_STATS,
            arguments,
            |answer: &mut Reader| {
                let kind = answer.i32()?;
                let parameters = answer.list(parameter)?;
                Ok((kind != NONE).then(|| Job::read(&parameters)))
            },
        )
    }

    /// Has the job that runs end as if it had not begun.
    pub fn abort_job(&self) -> Result<()> {
        self.client.call_remote("ending the job", remote::DOMAIN_ABORT_JOB, self.arguments(), nothing)
    }

    /// Lets the guest run on the target from now on; what it lacks of its memory is fetched when it is touched.
    pub fn start_post_copy(&self) -> Result<()> {
        self.flagged("switching to post-copy", remote::DOMAIN_MIGRATE_START_POST_COPY, 0)
    }

    /// How long, in milliseconds, the guest may stand still at the end of a migration.
    pub fn set_max_downtime(&self, milliseconds: u64) -> Result<()> {
        let arguments = self.arguments().u64(milliseconds).u32(0);
        self.client.call_remote("limiting the pause", remote::DOMAIN_MIGRATE_SET_MAX_DOWNTIME, arguments, nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_flags_and_parameters() {
        let check = |migration: Migration, flags: u32, names: &[&str]| {
            let parameters = migration.parameters().unwrap();
            assert_eq!(parameters.iter().map(|parameter| parameter.name.as_str()).collect::<Vec<_>>(), names);
            assert_eq!(migration.flags() & !(1 | 2 | 8 | 16), flags);
        };
        check(Migration::default(), 0, &[]);
        check(Migration { memory_uri: "unix:/m".into(), paused: true, ..Migration::default() }, 32, &["migrate_uri"]);
        let disks = Migration {
            copied_disks: vec!["vda".into(), "vdb".into()],
            disks_uri: Some("unix:/d".into()),
            ..Migration::default()
        };
        check(disks, 128 | 4096, &["migrate_disks", "migrate_disks", "disks_uri"]);
        let eager =
            Migration { auto_converge: true, post_copy: true, parallel: 2, bandwidth: 64, ..Migration::default() };
        check(eager, 8192 | 32768 | 131_072, &["bandwidth", "bandwidth.postcopy", "parallel.connections"]);
        let small = Migration { compression: Some("zstd".into()), parallel: 2, bandwidth: 1, ..Migration::default() };
        check(small, 2048 | 131_072, &["compression", "bandwidth", "parallel.connections"]);
        assert!(Migration { xml: Some("a\0b".into()), ..Migration::default() }.parameters().is_err());
    }

    #[test]
    fn a_job_is_read_from_its_figures() {
        let figure = |name: &str, value| Parameter { name: name.to_owned(), value: Value::Unsigned(value) };
        let job =
            Job::read(&[figure("memory_total", 9), figure("memory_dirty_rate", 2), figure("memory_page_size", 4096)]);
        assert_eq!(job, Job { memory_total: 9, dirty_rate: 8192, ..Job::default() });
    }
}
