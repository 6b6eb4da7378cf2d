//! The C functions we use, found by name in the loaded libraries.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulong, c_ulonglong, c_void};

pub(crate) enum Conn {}
pub(crate) enum Dom {}
pub(crate) enum Stream {}

/// The head of `virError`, which is all we read.
#[repr(C)]
pub(crate) struct VirError {
    pub(crate) code: c_int,
    pub(crate) domain: c_int,
    pub(crate) message: *const c_char,
    pub(crate) level: c_int,
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct DomainInfo {
    pub(crate) state: c_uchar,
    pub(crate) max_mem: c_ulong,
    pub(crate) memory: c_ulong,
    pub(crate) vcpus: u16,
    pub(crate) cpu_time: c_ulonglong,
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct BlockInfo {
    pub(crate) capacity: c_ulonglong,
    pub(crate) allocation: c_ulonglong,
    pub(crate) physical: c_ulonglong,
}

#[repr(C)]
pub(crate) struct IpAddress {
    pub(crate) kind: c_int,
    pub(crate) address: *const c_char,
    pub(crate) prefix: c_uint,
}

#[repr(C)]
pub(crate) struct Interface {
    pub(crate) name: *const c_char,
    pub(crate) hwaddr: *const c_char,
    pub(crate) naddrs: c_uint,
    pub(crate) addrs: *const IpAddress,
}

#[repr(C)]
pub(crate) union ParameterValue {
    pub(crate) int: c_int,
    pub(crate) uint: c_uint,
    pub(crate) llong: i64,
    pub(crate) ullong: u64,
    pub(crate) double: f64,
    pub(crate) boolean: c_char,
    pub(crate) string: *const c_char,
}

#[repr(C)]
pub(crate) struct TypedParameter {
    pub(crate) field: [c_char; 80],
    pub(crate) kind: c_int,
    pub(crate) value: ParameterValue,
}

#[repr(C)]
pub(crate) struct StatsRecord {
    pub(crate) dom: *mut Dom,
    pub(crate) params: *const TypedParameter,
    pub(crate) nparams: c_int,
}

pub(crate) type FreeCallback = unsafe extern "C" fn(*mut c_void);
pub(crate) type AnyCallback = unsafe extern "C" fn();
pub(crate) type CloseCallback = unsafe extern "C" fn(*mut Conn, c_int, *mut c_void);
pub(crate) type ErrorCallback = unsafe extern "C" fn(*mut c_void, *const VirError);

/// Declares a struct of function pointers and how to fill it from a library.
macro_rules! table {
    ($name:ident { $($function:ident: fn($($argument:ty),*) $(-> $answer:ty)?;)* }) => {
        #[allow(non_snake_case)]
        pub(crate) struct $name {
            $(pub(crate) $function: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        impl $name {
            /// # Safety
            /// The library stays loaded for as long as the table is used, and its symbols have these types.
            pub(crate) unsafe fn load(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($function: {
                        // SAFETY: the type is the one libvirt's ABI gives this symbol; the caller keeps the library.
                        unsafe { *library.get(stringify!($function))? }
                    },)*
                })
            }
        }
    };
}

table!(Core {
    virInitialize: fn() -> c_int;
    virEventRegisterDefaultImpl: fn() -> c_int;
    virEventRunDefaultImpl: fn() -> c_int;
    virSetErrorFunc: fn(*mut c_void, Option<ErrorCallback>);
    virGetLastError: fn() -> *const VirError;
    virConnectOpen: fn(*const c_char) -> *mut Conn;
    virConnectClose: fn(*mut Conn) -> c_int;
    virConnectIsAlive: fn(*mut Conn) -> c_int;
    virConnectGetVersion: fn(*mut Conn, *mut c_ulong) -> c_int;
    virConnectGetLibVersion: fn(*mut Conn, *mut c_ulong) -> c_int;
    virConnectGetCapabilities: fn(*mut Conn) -> *mut c_char;
    virConnectGetDomainCapabilities: fn(*mut Conn, *const c_char, *const c_char, *const c_char, *const c_char, c_uint) -> *mut c_char;
    virConnectRegisterCloseCallback: fn(*mut Conn, CloseCallback, *mut c_void, Option<FreeCallback>) -> c_int;
    virConnectUnregisterCloseCallback: fn(*mut Conn, CloseCallback) -> c_int;
    virConnectDomainEventRegisterAny: fn(*mut Conn, *mut Dom, c_int, AnyCallback, *mut c_void, Option<FreeCallback>) -> c_int;
    virConnectDomainEventDeregisterAny: fn(*mut Conn, c_int) -> c_int;
    virDomainDefineXMLFlags: fn(*mut Conn, *const c_char, c_uint) -> *mut Dom;
    virDomainCreateXML: fn(*mut Conn, *const c_char, c_uint) -> *mut Dom;
    virDomainLookupByName: fn(*mut Conn, *const c_char) -> *mut Dom;
    virDomainFree: fn(*mut Dom) -> c_int;
    virDomainGetName: fn(*mut Dom) -> *const c_char;
    virDomainCreateWithFlags: fn(*mut Dom, c_uint) -> c_int;
    virDomainUndefineFlags: fn(*mut Dom, c_uint) -> c_int;
    virDomainDestroyFlags: fn(*mut Dom, c_uint) -> c_int;
    virDomainShutdownFlags: fn(*mut Dom, c_uint) -> c_int;
    virDomainReboot: fn(*mut Dom, c_uint) -> c_int;
    virDomainReset: fn(*mut Dom, c_uint) -> c_int;
    virDomainSuspend: fn(*mut Dom) -> c_int;
    virDomainResume: fn(*mut Dom) -> c_int;
    virDomainGetXMLDesc: fn(*mut Dom, c_uint) -> *mut c_char;
    virDomainGetState: fn(*mut Dom, *mut c_int, *mut c_int, c_uint) -> c_int;
    virDomainGetInfo: fn(*mut Dom, *mut DomainInfo) -> c_int;
    virDomainGetBlockInfo: fn(*mut Dom, *const c_char, *mut BlockInfo, c_uint) -> c_int;
    virDomainInterfaceAddresses: fn(*mut Dom, *mut *mut *mut Interface, c_uint, c_uint) -> c_int;
    virDomainInterfaceFree: fn(*mut Interface);
    virDomainScreenshot: fn(*mut Dom, *mut Stream, c_uint, c_uint) -> *mut c_char;
    virDomainSetTime: fn(*mut Dom, i64, c_uint, c_uint) -> c_int;
    virDomainFSFreeze: fn(*mut Dom, *const *const c_char, c_uint, c_uint) -> c_int;
    virDomainFSThaw: fn(*mut Dom, *const *const c_char, c_uint, c_uint) -> c_int;
    virDomainAgentSetResponseTimeout: fn(*mut Dom, c_int, c_uint) -> c_int;
    virDomainAttachDeviceFlags: fn(*mut Dom, *const c_char, c_uint) -> c_int;
    virDomainDetachDeviceFlags: fn(*mut Dom, *const c_char, c_uint) -> c_int;
    virDomainSetVcpusFlags: fn(*mut Dom, c_uint, c_uint) -> c_int;
    virDomainListGetStats: fn(*mut *mut Dom, c_uint, *mut *mut *mut StatsRecord, c_uint) -> c_int;
    virDomainStatsRecordListFree: fn(*mut *mut StatsRecord);
    virStreamNew: fn(*mut Conn, c_uint) -> *mut Stream;
    virStreamRecv: fn(*mut Stream, *mut c_char, usize) -> c_int;
    virStreamFinish: fn(*mut Stream) -> c_int;
    virStreamAbort: fn(*mut Stream) -> c_int;
    virStreamFree: fn(*mut Stream) -> c_int;
});

table!(Qemu {
    virDomainQemuAgentCommand: fn(*mut Dom, *const c_char, c_int, c_uint) -> *mut c_char;
    virDomainQemuMonitorCommand: fn(*mut Dom, *const c_char, *mut *mut c_char, c_uint) -> c_int;
});
