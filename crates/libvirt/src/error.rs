//! What libvirt says when a call fails.
#![allow(unsafe_code)]

use std::ffi::CStr;

use crate::library::Library;

/// Numbers of `virErrorNumber` that callers decide by.
pub mod code {
    pub const INVALID_ARGUMENT: i32 = 8;
    pub const OPERATION_INVALID: i32 = 55;
    pub const NO_DOMAIN: i32 = 42;
    pub const OPERATION_TIMEOUT: i32 = 68;
    pub const AGENT_UNRESPONSIVE: i32 = 86;
    pub const AGENT_UNSYNCED: i32 = 90;
    pub const NO_SUPPORT: i32 = 3;
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call that libvirt refused.
    #[error("{call}: {message}")]
    Call { call: &'static str, code: i32, message: String },
    #[error("libvirt is not installed: cannot open {library}")]
    Load {
        library: &'static str,
        #[source]
        source: libloading::Error,
    },
    #[error("the event thread of libvirt did not start")]
    Thread(#[source] std::io::Error),
    #[error("{0} holds a zero byte")]
    Text(&'static str),
    #[error("{what} is larger than {limit} bytes")]
    TooLarge { what: &'static str, limit: usize },
}

impl Error {
    /// The error of the last call on this thread.
    pub(crate) fn last(library: &Library, call: &'static str) -> Self {
        // SAFETY: no arguments; the answer is null or lives until the next libvirt call on this thread.
        let error = unsafe { (library.core.virGetLastError)() };
        if error.is_null() {
            return Self::Call { call, code: 0, message: "failed without a reason".to_owned() };
        }
        // SAFETY: not null, and libvirt fills the head of the structure.
        let (code, message) = unsafe { ((*error).code, (*error).message) };
        let message = if message.is_null() {
            "failed without a reason".to_owned()
        } else {
            // SAFETY: a zero-terminated string owned by libvirt.
            unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
        };
        Self::Call { call, code, message }
    }

    /// The number libvirt gave, 0 when there was none.
    pub fn code(&self) -> i32 {
        match self {
            Self::Call { code, .. } => *code,
            _ => 0,
        }
    }

    pub fn is_no_domain(&self) -> bool {
        self.code() == code::NO_DOMAIN
    }
}
