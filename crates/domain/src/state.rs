//! The state of a domain, in the words that launchers and node agents exchange. A word that is not known here is one of a newer
//! or older launcher, and says nothing.

/// Enums of words, each with how it is written.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            /// Nothing was said, or no word that is known.
            #[default]
            Unset,
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// Each of them.
            pub const ALL: &[Self] = &[Self::Unset, $(Self::$variant,)*];

            /// How it is written; empty when unset.
            pub const fn as_str(self) -> &'static str {
                match self {
                    Self::Unset => "",
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)*
                    _ => Self::Unset,
                }
            }
        }
    };
}

words! {
    /// What a domain does, as libvirt says it.
    DomainStatus {
        /// Libvirt does not know.
        NoState = "NoState",
        /// It runs.
        Running = "Running",
        /// It waits for a resource.
        Blocked = "Blocked",
        /// It stands still.
        Paused = "Paused",
        /// It is shutting itself down.
        Shutdown = "Shutdown",
        /// It has ended.
        Shutoff = "Shutoff",
        /// It has crashed.
        Crashed = "Crashed",
        /// It sleeps.
        PmSuspended = "PMSuspended",
    }
}

words! {
    /// Why it does that, as KubeVirt calls it.
    DomainReason {
        /// Somebody paused it.
        PausedUser = "PausedUser",
        /// For the end of a migration.
        PausedMigration = "PausedMigration",
        /// To be saved.
        PausedSave = "PausedSave",
        /// For a dump of its memory.
        PausedDump = "PausedDump",
        /// A disk failed.
        PausedIoError = "PausedIOError",
        /// Its watchdog.
        PausedWatchdog = "PausedWatchdog",
        /// For a snapshot.
        PausedSnapshot = "PausedSnapshot",
        /// On its way down.
        PausedShuttingDown = "PausedShuttingDown",
        /// It crashed.
        PausedCrashed = "PausedCrashed",
        /// Not begun yet.
        PausedStartingUp = "PausedStartingUp",
        /// For post-copy.
        PausedPostCopy = "PausedPostcopy",
        /// Post-copy broke.
        PausedPostCopyFailed = "PausedPostcopyFailed",
        /// Libvirt does not say.
        PausedUnknown = "PausedUnknown",
        /// It shut itself down.
        Shutdown = "Shutdown",
        /// It was ended.
        Destroyed = "Destroyed",
        /// It crashed.
        Crashed = "Crashed",
        /// Its kernel panicked.
        Panicked = "Panicked",
        /// It goes on elsewhere.
        Migrated = "Migrated",
        /// It was saved.
        Saved = "Saved",
        /// QEMU failed.
        Failed = "Failed",
        /// It was put back to a snapshot.
        FromSnapshot = "FromSnapshot",
        /// Its memory was on two nodes when the way between them broke.
        PostCopyFailed = "PostCopyFailed",
        /// There is nothing to say.
        Unknown = "Unknown",
    }
}

impl DomainStatus {
    /// There is a guest in it.
    pub const fn has_guest(self) -> bool {
        matches!(self, Self::Running | Self::Paused | Self::Blocked | Self::PmSuspended | Self::Shutdown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_as_it_is_written() {
        for status in DomainStatus::ALL {
            assert_eq!(DomainStatus::from(status.as_str()), *status);
        }
        for reason in DomainReason::ALL {
            assert_eq!(DomainReason::from(reason.as_str()), *reason);
        }
        assert_eq!((DomainStatus::from("Dreaming"), DomainReason::from("?")), Default::default());
    }
}
