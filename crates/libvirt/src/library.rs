//! The loaded library and the one thread that runs its event loop.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;

use crate::raw::{Core, Qemu, VirError};
use crate::{Error, Result};

pub(crate) struct Library {
    pub(crate) core: Core,
    pub(crate) qemu: Qemu,
}

static LIBRARY: OnceLock<Library> = OnceLock::new();
/// Held while loading: two threads must not register the event loop twice.
static LOADING: std::sync::Mutex<()> = std::sync::Mutex::new(());

impl Library {
    /// The library, loaded and with its event loop running. It stays loaded until the process ends.
    pub(crate) fn get() -> Result<&'static Self> {
        if let Some(library) = LIBRARY.get() {
            return Ok(library);
        }
        let _loading = LOADING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(library) = LIBRARY.get() {
            return Ok(library);
        }
        let library = Self::load()?;
        let library = LIBRARY.get_or_init(|| library);
        library.start()?;
        Ok(library)
    }

    fn load() -> Result<Self> {
        let open = |name: &'static str| {
            // SAFETY: libvirt's constructors have no preconditions.
            unsafe { libloading::Library::new(name) }.map_err(|source| Error::Load { library: name, source })
        };
        let core = Box::leak(Box::new(open("libvirt.so.0")?));
        let qemu = Box::leak(Box::new(open("libvirt-qemu.so.0")?));
        let failed = |library: &'static str| move |source| Error::Load { library, source };
        // SAFETY: leaked, hence loaded for good; the tables have the types of libvirt's stable ABI.
        let core = unsafe { Core::load(core) }.map_err(failed("libvirt.so.0"))?;
        // SAFETY: as above.
        let qemu = unsafe { Qemu::load(qemu) }.map_err(failed("libvirt-qemu.so.0"))?;
        Ok(Self { core, qemu })
    }

    fn start(&'static self) -> Result<()> {
        // SAFETY: first calls into the library, made once, before any connection.
        unsafe {
            (self.core.virSetErrorFunc)(std::ptr::null_mut(), Some(silent));
            if (self.core.virInitialize)() < 0 {
                return Err(Error::last(self, "virInitialize"));
            }
            if (self.core.virEventRegisterDefaultImpl)() < 0 {
                return Err(Error::last(self, "virEventRegisterDefaultImpl"));
            }
        }
        std::thread::Builder::new()
            .name("libvirt-events".to_owned())
            .stack_size(256 << 10)
            .spawn(move || {
                loop {
                    // SAFETY: the default implementation is registered; only this thread runs it.
                    if unsafe { (self.core.virEventRunDefaultImpl)() } < 0 {
                        let error = Error::last(self, "virEventRunDefaultImpl");
                        tracing::error!(%error, "the event loop of libvirt failed");
                    }
                }
            })
            .map_err(Error::Thread)?;
        Ok(())
    }
}

/// Errors reach the caller as values; libvirt need not print them too.
unsafe extern "C" fn silent(_: *mut c_void, _: *const VirError) {}

pub(crate) fn c_string(what: &'static str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Text(what))
}

/// Takes a string that libvirt allocated for us.
///
/// # Safety
/// `text` is null or a zero-terminated string from malloc that nobody else frees.
pub(crate) unsafe fn take_string(text: *mut c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: zero-terminated by contract.
    let owned = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: from malloc, freed once.
    unsafe { libc::free(text.cast()) };
    Some(owned)
}

/// Copies a string that stays libvirt's; null reads as empty.
///
/// # Safety
/// `text` is null or a zero-terminated string that lives during the call.
pub(crate) unsafe fn read_string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: zero-terminated by contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
